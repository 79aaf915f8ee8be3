"""Runs cases on a device: each implementation pinned in turn, poisoned memory, two runs, one verdict."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import portable
from portable import catalog, errors, machine
from portable.conformance import inputs, oracle
from portable.conformance.cases import Case
from portable.conformance.judge import Verdict, deterministic, digest

STATES = (
    "Pass", "QualityWarning", "NotSupported", "Fail.value", "Fail.shape", "Fail.dtype", "Fail.nonfinite",
    "Fail.nondeterministic", "Fail.bounds_write", "Fail.behaviour", "ResourceError",
    "CompileError", "Crash", "InternalError", "NotRun", "XFail", "XPass", "Waived",
)  # fmt: skip
CONFORMING = frozenset({"Pass", "QualityWarning", "NotSupported", "XFail", "XPass", "Waived"})
"""The last three are made of others by `waivers`; an XPass conforms, the entry that it shows does not."""
KNOWN = frozenset({"XFail", "Waived"})
"""Failures that are known, and so conform."""


@dataclass(frozen=True)
class Result:
    """The outcome of a case or behaviour on one implementation. `worst` is the largest |error| / bound;
    `digest` is of the outputs' bits, and `exact` says that they had to equal the reference's."""

    case: Any
    impl: str
    state: str
    message: str = ""
    worst: float = 0.0
    max_abs: float = 0.0
    digest: str = ""
    exact: bool = False

    @property
    def conforms(self) -> bool:
        return self.state in CONFORMING


@dataclass
class Group:
    """All results of one implementation of one op."""

    op: str
    impl: str
    results: list[Result] = field(default_factory=list)

    @property
    def states(self) -> Counter[str]:
        return Counter(result.state for result in self.results)

    @property
    def conforms(self) -> bool:
        return all(result.conforms for result in self.results)

    @property
    def worst(self) -> Result | None:
        """The case that came closest to its bound, or went furthest beyond."""
        judged = [result for result in self.results if result.state == "Pass" or result.worst]
        return max(judged, key=lambda result: result.worst, default=None)

    def record(self) -> dict[str, Any]:
        worst = self.worst
        problems = [r for r in self.results if r.state not in ("Pass", "NotSupported")]
        rules = Counter(r.message for r in self.results if r.state == "NotSupported")
        return {
            "op": self.op,
            "impl": self.impl,
            "states": dict(sorted(self.states.items())),
            "worst_ratio": worst.worst if worst else None,
            "worst_case": worst.case.id if worst else None,
            "problems": [{"case": r.case.id, "state": r.state, "message": r.message} for r in problems],
            "digests": {r.case.id: r.digest for r in self.results if r.digest},
            "exact": sorted(r.case.id for r in self.results if r.exact),
            "not_supported": dict(sorted(rules.items())),
        }


class DeviceLost(RuntimeError):
    """The device answers no more (a kernel faulted); what is left of the run cannot be trusted."""


def torch_device() -> torch.device:
    """Where the active backend's tensors live."""
    return torch.device(machine.main_backend().device_type)


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """`torch.empty` gives NaN inside: an element that a kernel leaves unwritten shows."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = fill


def implementations(op: str) -> tuple[str, ...]:
    """Implementations of `op` whose language the active backend builds for the device that is here."""
    from portable import dispatch

    return tuple(dispatch.candidates(op))


def run_case(question: oracle.Question, impl: str, device: torch.device) -> Result:
    """Run one case on one pinned implementation, twice, and judge it. Exceptions become states.

    Raises DeviceLost when the device does not come back from a crash.
    """
    case = question.case
    try:
        with portable.using(**{case.op: impl}):
            return _run_pinned(question, impl, device)
    except Exception as error:
        state, message = classify(error, impl)
        if state == "Crash" and device.type != "cpu":
            try:
                synchronize(device)
            except Exception as lost:
                raise DeviceLost(f"{case.id} on {impl}: {message}") from lost
        return Result(case, impl, state, message)


def classify(error: Exception, impl: str) -> tuple[str, str]:
    """The state and message that an exception makes of a case."""
    if isinstance(error, errors.PinError):
        reason = str(error.__dict__.get("reason", error))
        return "NotSupported", reason.partition(f": {impl}: ")[2] or reason
    if isinstance(error, errors.CompileError):
        return "CompileError", str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "ResourceError", str(error).splitlines()[0]
    return "Crash", f"{type(error).__name__}: {error}"


def _run_pinned(question: oracle.Question, impl: str, device: torch.device) -> Result:
    case = question.case
    moved = {name: made.on(device) for name, made in question.inputs.items()}
    tensors = {name: view for name, (view, _) in moved.items()}
    with poisoned_memory():
        first, fence = _call(question, tensors, device)
    second, _ = _call(question, tensors, device)
    synchronize(device)
    verdicts: list[tuple[str, Verdict]] = []
    if set(first) != set(question.expected):
        found = Verdict(
            "Fail.shape", note=f"got outputs {sorted(first)}, expected {sorted(question.expected)}"
        )
        return _result(case, impl, [("", found)])
    for name, expected in question.expected.items():
        verdict = expected.judge(first[name], question.biased_values)
        if verdict.passed:
            verdict = deterministic(first[name], second[name]) or verdict
        verdicts.append((name, verdict))
    if fence is not None and not inputs.fence_intact(fence):
        verdicts.append(("out", Verdict("Fail.bounds_write", note="memory beside out= was written")))
    for name, (_, buffer) in moved.items():
        if not inputs.same_bits(buffer.cpu(), question.inputs[name].buffer):
            verdicts.append(
                (name, Verdict("Fail.bounds_write", note="an input, or memory beside it, was written"))
            )
    exact = all(expected.exact for expected in question.expected.values())
    return replace(_result(case, impl, verdicts), digest=digest(first), exact=exact)


def _call(
    question: oracle.Question, tensors: dict[str, torch.Tensor], device: torch.device
) -> tuple[dict[str, Any], torch.Tensor | None]:
    """The op's outputs by name (gradients in a "grad" case), and the fenced buffer of `out=`."""
    case, spec = question.case, question.spec
    op: Callable[..., Any] = getattr(portable, case.op)
    arguments: dict[str, Any] = {name: tensors.get(name) for name in spec.inputs} | case.params
    if case.mode == "grad":
        leaves = {name: tensors[name].detach().requires_grad_() for name in spec.inputs if name in tensors}
        arguments |= leaves
        with torch.enable_grad():
            outputs = _named(spec, op(**arguments))
            upstream = [tensors[f"d{name}"] for name in outputs]
            grads = torch.autograd.grad(list(outputs.values()), list(leaves.values()), upstream)
        return {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}, None
    fence = None
    if case.mode == "out" and spec.out is not None:
        expected = question.expected[spec.out.name]
        arguments["out"], fence = inputs.fenced(tuple(expected.ref.shape), expected.dtype, device)
    outputs = _named(spec, op(**arguments))
    if fence is not None and next(iter(outputs.values())) is not arguments["out"]:
        raise RuntimeError("the op did not return the tensor that it was given as out=")
    return outputs, fence


def _named(spec: Any, result: Any) -> dict[str, Any]:
    several = result if isinstance(result, (tuple, list)) else (result,)
    if len(several) != len(spec.outputs):
        return {f"output {number}": value for number, value in enumerate(several)}
    return dict(zip(spec.outputs, several, strict=True))


def _result(case: Case, impl: str, verdicts: list[tuple[str, Verdict]]) -> Result:
    """The worst of several outputs' verdicts."""
    order = {"Pass": 0, "QualityWarning": 1, "Fail.bounds_write": 3}
    name, verdict = max(verdicts, key=lambda each: (order.get(each[1].state, 2), each[1].worst))
    message = "" if verdict.state == "Pass" else f"{name}: {verdict}".removeprefix(": ")
    finite = [v.worst for _, v in verdicts]
    return Result(case, impl, verdict.state, message, max(finite), max(v.max_abs for _, v in verdicts))


Progress = Callable[[Result], None]
Excuse = Callable[[Result], Result]


def naked(result: Result) -> Result:
    """The excuse that excuses nothing."""
    return result


def run(
    cases: Iterable[Case],
    device: torch.device,
    impls: Iterable[str] | None = None,
    progress: Progress | None = None,
    excuse: Excuse = naked,
) -> tuple[list[Group], dict[str, dict[str, str]]]:
    """Run `cases`, each on every implementation that this device builds (or on `impls` among them);
    `excuse` has a say in every result.

    Returns the groups by op and implementation, and the SHA-256 of every case's inputs.
    """
    groups: dict[tuple[str, str], Group] = {}
    hashes: dict[str, dict[str, str]] = {}
    wanted = None if impls is None else set(impls)
    lost = ""
    for number, case in enumerate(cases):
        names = [name for name in implementations(case.op) if wanted is None or name in wanted]
        question, fault = None, ""
        try:
            question = oracle.ask(case, catalog.spec(case.op))
            hashes[case.id] = question.sha256
        except Exception as error:  # a broken reference is the suite's fault, not the implementation's
            fault = f"the oracle failed: {type(error).__name__}: {error}"
        for name in names:
            if lost:
                result = Result(case, name, "NotRun", lost)
            elif question is None:
                result = Result(case, name, "InternalError", fault)
            else:
                try:
                    result = run_case(question, name, device)
                except DeviceLost as error:
                    result = Result(case, name, "Crash", f"the device was lost: {error}")
                    lost = f"the device was lost in {case.id} on {name}"
            result = excuse(result)
            groups.setdefault((case.op, name), Group(case.op, name)).results.append(result)
            if progress is not None:
                progress(result)
        if number % 64 == 63:
            gc.collect()
    return list(groups.values()), hashes
