"""Which implementation runs a call, and why each of the others does not: choices as values."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from portable.backend import Backend
from portable.configs import lookup, shape_class
from portable.dispatch import pins
from portable.errors import NoImplementationError, PinError, listed
from portable.plan import Call, Device, Plan, Rejected, TensorInfo
from portable.spec import registry

if TYPE_CHECKING:
    from portable.spec.formula import Formula
    from portable.spec.model import Implementation, Spec


@dataclass(frozen=True)
class CallSignature:
    """The metadata of a checked call: what selection depends on."""

    spec: Spec
    tensors: Mapping[str, TensorInfo | None]
    params: Mapping[str, Any]
    axes: Mapping[str, int]
    types: Mapping[str, str]

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """The values that formulas may name."""
        return {**self.axes, **self.params, **self.types, **shape_class.orders(self.spec, self.tensors)}

    @functools.cached_property
    def empty(self) -> bool:
        """Every result is empty: nothing is launched, and no implementation is evaluated."""
        outputs = (self.tensors[name] for name in self.spec.results)
        return all(info is None or info.numel == 0 for info in outputs)

    def __str__(self) -> str:
        parts = [
            f"{name} {info.dtype}{list(info.shape)}"
            for name, info in self.tensors.items()
            if info is not None
        ]
        return ", ".join(parts)


@dataclass(frozen=True)
class Candidate:
    """Whether one implementation runs a call, and why. `plan` and `config` are set where it could."""

    implementation: Implementation
    accepted: bool
    reason: str
    config: lookup.Config | None = None
    plan: Plan | None = None
    chosen: bool = False

    @property
    def name(self) -> str:
        return self.implementation.name


_LANGUAGES = {"cuda": "CUDA C++", "hip": "HIP C++", "triton": "Triton"}


def _language(name: str) -> str:
    """A language as sentences name it."""
    return _LANGUAGES.get(name, name)


def static_reason(implementation: Implementation, backend: Backend, device: Device) -> str | None:
    """Why an implementation can never run on this device, or None where it can."""
    languages = [language for language in implementation.languages if language in backend.languages]
    if not languages:
        builds = listed(map(_language, backend.languages))
        verb = "runs torch only" if backend.languages == ("torch",) else f"builds {builds}"
        needed = " or ".join(map(_language, implementation.languages))
        return f"needs {needed}; the {backend.name} backend {verb}"
    missing = [backend.language_missing(language) for language in languages]
    if all(missing):
        return str(missing[0])
    patterns = implementation.requires.arch
    if patterns and not any(backend.arch_matches(pattern, device.arch) for pattern in patterns):
        return f"needs {' or '.join(patterns)}; this is {device.arch}"
    return None


def accumulation_ulp(implementation: Implementation, backend: Backend, device: Device) -> Formula | None:
    """The bound of its own that an implementation has on a device; None where it is the tolerance's."""
    bounds = implementation.accumulation_ulp.items()
    return next((each for arch, each in bounds if backend.arch_matches(arch, device.arch)), None)


def _dynamic_reason(implementation: Implementation, signature: CallSignature) -> str | None:
    for variable, legal in implementation.requires.types.items():
        if signature.types.get(variable) not in legal:
            return f"takes {variable} of {listed(legal)}; this call has {signature.types.get(variable)}"
    for rule in implementation.requires.rules:
        if not rule.evaluate(**{name: signature.facts[name] for name in rule.names}):
            return f"needs {rule}"
    return None


def pinned(spec: Spec) -> tuple[str, frozenset[str]] | None:
    """The pin that holds for an op and the names of the implementations that it admits.

    An internal op follows its folder's op: by the same name, or by the pinned one's languages.
    """
    own = pins.pin(spec.op)
    inherited = None if own is not None else pins.pin(spec.folder.name)
    wanted = own if own is not None else inherited
    if wanted is None:
        return None
    names = _admitted(spec, wanted)
    if not names and inherited is not None:
        main = registry.spec(spec.folder.name).implementation(inherited)
        languages = main.languages if main is not None else ()
        names = frozenset().union(*(_admitted(spec, language) for language in languages))
    if not names:
        legal = [implementation.name for implementation in spec.implementations]
        raise PinError(spec.op, wanted, f"the op has only {listed(legal)}", _source(spec))
    return wanted, names


def _source(spec: Spec) -> str:
    return pins.source(spec.op if pins.pin(spec.op) is not None else spec.folder.name)


def _admitted(spec: Spec, wanted: str) -> frozenset[str]:
    """The implementation of that name, else all of that language."""
    if spec.implementation(wanted) is not None:
        return frozenset({wanted})
    return frozenset(each.name for each in spec.implementations if wanted in each.languages)


def evaluate(
    implementation: Implementation,
    signature: CallSignature,
    backend: Backend,
    device: Device,
    *,
    static: bool = True,
) -> Candidate:
    """Evaluate one implementation; `static=False` skips whether this machine can build it."""
    reason = static_reason(implementation, backend, device) if static else None
    reason = reason or _dynamic_reason(implementation, signature)
    if reason is not None:
        return Candidate(implementation, False, reason)
    # What a tuner measured may follow the number of rows.
    tuned = not pins.batch_invariant()
    config = lookup.resolve(signature.spec, implementation, backend, device, signature.facts, tuned=tuned)
    if implementation.kind == "run":
        return Candidate(implementation, True, "runs through torch's own kernels", config)
    planner = entry_function(implementation)
    plan = planner(Call(signature.tensors, signature.params, signature.axes, device, config.values))
    if isinstance(plan, Rejected):
        return Candidate(implementation, False, plan.reason, config)
    return Candidate(implementation, True, "can run this call", config, plan)


def entry_function(implementation: Implementation) -> Any:
    """The function that an implementation's `plan` or `run` names; a broken import is raised."""
    return registry.load_entry(implementation.entry)


MAY_DEPEND = "a row's bits may depend on the other rows, and batch_invariant is asked for"


def candidates(signature: CallSignature, backend: Backend, device: Device) -> Iterator[Candidate]:
    """Every implementation, evaluated in the spec's order; the first accepted one is chosen.

    On an emulated device the torch implementation runs on the CPU, so it is tried last.
    """
    pin = pinned(signature.spec)
    found = False
    for implementation in sorted(
        signature.spec.implementations, key=lambda each: device.emulated and each.kind == "run"
    ):
        if pin is not None and implementation.name not in pin[1]:
            yield Candidate(implementation, False, f"{pin[0]!r} is pinned")
            continue
        if pins.batch_invariant() and not implementation.batch_invariant:
            reason = static_reason(implementation, backend, device) or MAY_DEPEND
            yield Candidate(implementation, False, reason)
            continue
        candidate = evaluate(implementation, signature, backend, device)
        if candidate.accepted and not found:
            found = True
            why = "pinned" if pin is not None else "the first in the spec's order that can run this call"
            if device.emulated and implementation.kind == "run":
                why = f"{why}; torch computes it on the CPU, not on the {device}"
            candidate = replace(candidate, chosen=True, reason=why)
        elif candidate.accepted:
            candidate = replace(candidate, reason="could run this call; later in the spec's order")
        yield candidate


def choose(signature: CallSignature, backend: Backend, device: Device) -> Candidate:
    """The implementation that runs. Raises PinError or NoImplementationError with every reason."""
    refused = []
    for candidate in candidates(signature, backend, device):
        if candidate.chosen:
            return candidate
        refused.append((candidate.name, candidate.reason))
    pin = pinned(signature.spec)
    if pin is not None:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused if name in pin[1])
        why = f"it cannot run {signature} on {device}: {reasons}"
        raise PinError(signature.spec.op, pin[0], why, _source(signature.spec))
    raise NoImplementationError(signature.spec.op, str(device), refused, str(signature))


@dataclass(frozen=True)
class Explanation:
    """Why a call runs as it does; `print` it. `candidates` are in the spec's order; none where every output
    is empty. `modelled`: `Backend.modelled`."""

    signature: CallSignature
    device: Device
    candidates: tuple[Candidate, ...]
    modelled: tuple[str, ...] = ()

    @property
    def choice(self) -> Candidate | None:
        """The implementation that runs, or None where none can or need."""
        return next((candidate for candidate in self.candidates if candidate.chosen), None)

    def __str__(self) -> str:
        lines = [f"{self.signature.spec.op}({self.signature}) on {self.device}"]
        if self.signature.empty:
            lines.append("    nothing is launched: every output is empty")
        width = max((len(candidate.name) for candidate in self.candidates), default=0)
        for candidate in self.candidates:
            mark = "->" if candidate.chosen else "  "
            lines.append(f" {mark} {candidate.name:<{width}}  {candidate.reason}")
        choice = self.choice
        if choice is not None and choice.config is not None and choice.config.values:
            values = ", ".join(f"{name}={value}" for name, value in choice.config.values.items())
            lines.append(f"    config: {values} [{choice.config.source}]")
        for launch in choice.plan.launches if choice is not None and choice.plan is not None else ():
            lines.append(f"    launch: {launch.kernel.name} on a grid of {'x'.join(map(str, launch.grid))}")
        lines += [f"    {line}" for line in self.modelled]
        return "\n".join(lines)
