"""What an op is timed against: torch, torch.compile, and the kernel libraries that are installed.

A baseline is bound to a buffer set before it is timed, so that what a library keeps from the forward pass
(statistics, block sizes) is given to its backward pass for nothing, as in training. Before that, what it
computes on the first set is compared with the op: a baseline that computes something else, that writes
over its inputs, or that raises is not timed, and the reason is reported.

`libraries` has the libraries' own functions.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from portable import dtypes
from portable.conformance.perf.libraries import (
    LIBRARIES,
    Adapter,
    Call,
    Params,
    Tensors,
    Unsupported,
    given,
    installed,
)
from portable.conformance.perf.torch_attention import CUDNN, FLASH, FLEX
from portable.spec import registry
from portable.spec.model import Entry, Spec

KERNELS: Mapping[str, tuple[str, Mapping[str, Adapter]]] = {
    "cudnn": ("torch", CUDNN), "flash": ("torch", FLASH), "flex": ("torch", FLEX), **LIBRARIES,
}  # fmt: skip
"""Per baseline that is no function of torch alone: its package and, per op, its adapter."""

NAMES = ("torch", "torch.compile", *KERNELS)
"""Every baseline, whether it is there or not, in the order of the tables."""

_FOLDERS = re.compile(r"(?<!\w)(?:/[^\s/:'\"]+)+/(?=[^\s/])")
_LONGEST = 240


def ready(
    spec: Spec,
    sets: Sequence[Tensors],
    params: Params,
    outputs: Sequence[Tensor],
    names: Sequence[str] | None = None,
) -> tuple[dict[str, list[Call]], dict[str, str]]:
    """The baselines (those of `names`, or all) that compute the op on this machine, each as one call per
    buffer set, and why the others do not.

    `outputs` are the op's own, of the first set, with what it writes in place after them. Inputs that a
    baseline wrote over are restored.
    """
    params = _complete(spec, params)
    before = {name: tensor.clone() for name, tensor in sets[0].items() if tensor is not None}
    found: dict[str, list[Call]] = {}
    reasons: dict[str, str] = {}
    for name, make in makers(spec, params).items():
        if names is not None and name not in names:
            continue
        try:
            bind = make()
            first = bind(sets[0])
            reason = difference(outputs, results(spec, sets[0], first()))
            found[name] = [first, *(bind(tensors) for tensors in sets[1:])]
        except Unsupported as error:
            reason = str(error)
        except Exception as error:  # another project's code: whatever it raises is why it is not timed
            reason = explained(error)
        written = [name for name in restored(sets[0], before) if name not in spec.mutated]
        reason = f"writes over its input {', '.join(written)}" if written else reason
        if reason:
            reasons[name] = reason
            found.pop(name, None)
    return found, reasons


def makers(spec: Spec, params: Params) -> dict[str, Callable[[], Callable[[Tensors], Call]]]:
    """Per baseline, what loads (or compiles) it and gives the function that binds it to a buffer set."""

    def of_library(package: str, adapters: Mapping[str, Adapter]) -> Callable[[], Callable[[Tensors], Call]]:
        def make() -> Callable[[Tensors], Call]:
            if spec.op not in adapters:
                raise Unsupported(f"has no {spec.op}")
            installed(package)

            def bind(tensors: Tensors) -> Call:
                with torch.no_grad():
                    return _without_gradients(adapters[spec.op](tensors, params))

            return bind

        return make

    return {
        "torch": lambda: bound_to_torch(spec, params),
        "torch.compile": lambda: bound_to_torch(spec, params, _compiled),
        **{name: of_library(package, adapters) for name, (package, adapters) in KERNELS.items()},
    }


def bound_to_torch(
    spec: Spec, params: Params, wrap: Callable[[Any], Any] | None = None
) -> Callable[[Tensors], Call]:
    """Binds torch's own function, or `wrap` of it, to a buffer set."""
    function, params = torch_function(spec), _complete(spec, params)
    wrapped = function if wrap is None else wrap(function)

    def bind(tensors: Tensors) -> Call:
        arguments = {**tensors, **params, **_statistics(function, tensors, params)}
        return _without_gradients(lambda: wrapped(**arguments))

    return bind


def _complete(spec: Spec, params: Params) -> dict[str, Any]:
    return {name: param.default for name, param in spec.params.items()} | dict(params)


def torch_function(spec: Spec) -> Callable[..., Any]:
    """What a user of torch alone would call: as the spec's cost names it, or the function of
    torch.nn.functional of the op's name and arguments; else the torch implementation."""
    entry = spec.cost.baseline or _functional(spec)
    if entry is None:
        entry = next(each.entry for each in spec.implementations if each.kind == "run")
    return registry.load_entry(entry)


def _functional(spec: Spec) -> Entry | None:
    """torch.nn.functional's function of the op's name, if it takes the op's arguments in their order: by the
    same names, but for a first one called `input`, and with a default for everything else."""
    try:
        theirs = list(inspect.signature(getattr(torch.nn.functional, spec.op)).parameters.values())
    except (AttributeError, TypeError, ValueError):  # no such function, or one without a signature
        return None
    ours = (*spec.inputs, *spec.params)
    names = [each.name for each in theirs[: len(ours)]]
    if names[:1] == ["input"]:
        names[:1] = ours[:1]
    if tuple(names) != ours or any(each.default is each.empty for each in theirs[len(ours) :]):
        return None
    return Entry(spec.file, spec.op, module="torch.nn.functional", positional=ours)


def results(spec: Spec, tensors: Tensors, returned: object) -> list[Any]:
    """What a call returned, then the contents of the inputs that it wrote in place."""
    several: list[Any] = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    written = (tensors[name] for name in spec.mutated)
    own = several if spec.outputs else []
    return own + [tensor.clone() for tensor in written if tensor is not None]


def difference(outputs: Sequence[Tensor], result: object) -> str:
    """Why a baseline's result is not the op's ("" where it is).

    The relative error in the root of the sum of squares may reach five roundings of the output's type: two
    correct kernels that round at other places stay below, and TF32 in place of float32 (3e-4) does not.
    Integers must be equal.
    """
    several: list[Any] = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(several) < len(outputs):
        return f"computes something else: {len(several)} outputs where the op has {len(outputs)}"
    for number, (expected, got) in enumerate(zip(outputs, several, strict=False)):
        if expected.numel() == 0 or (several[number] is None and len(several) > 1):  # torch lacks it
            continue
        if not isinstance(got, Tensor) or got.shape != expected.shape:
            shape = list(got.shape) if isinstance(got, Tensor) else type(got).__name__
            return f"computes something else: output {number} is {shape}, the op's is {list(expected.shape)}"
        if not expected.is_floating_point():
            if not torch.equal(expected, got.to(expected.dtype)):
                return f"computes something else: output {number} differs"
            continue
        error = _relative_error(expected, got)
        limit = max(5 * torch.finfo(expected.dtype).eps, 5e-5)
        if not error <= limit:
            off = f"its relative error is {error:.2g}, the limit is {limit:.2g}"
            return f"computes something else: output {number} differs, {off}"
    return ""


def explained(error: Exception) -> str:
    """An exception as one short line, of files only their names: a record holds no paths of the machine."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    text = _FOLDERS.sub("", lines[0])
    return f"{type(error).__name__}: {text[:_LONGEST]}{' ...' * (len(text) > _LONGEST)}"


def _relative_error(expected: Tensor, got: Tensor) -> float:
    wide = torch.float64 if expected.dtype == torch.float64 else torch.float32
    if dtypes.of(expected.dtype).bits == 8:  # of those torch has no norm
        expected = expected.to(wide)
    norm = torch.linalg.vector_norm(expected, dtype=wide)
    return float(torch.linalg.vector_norm(got.to(wide) - expected.to(wide)) / norm.clamp_min(1e-30))


def restored(tensors: Tensors, before: Mapping[str, Tensor]) -> list[str]:
    """Put back the inputs that were written over; their names."""
    changed = []
    for name, kept in before.items():
        tensor = tensors[name]
        if tensor is not None and not torch.equal(tensor, kept):
            tensor.copy_(kept)
            changed.append(name)
    return changed


def _without_gradients(call: Call) -> Call:
    def run() -> object:
        with torch.no_grad():
            return call()

    return run


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compile` for one set of shapes. The reset keeps earlier shapes from counting against the number
    of recompilations after which torch gives up and runs the plain function."""
    torch.compiler.reset()
    return torch.compile(function, fullgraph=False, dynamic=False)


def _statistics(function: Callable[..., Any], tensors: Tensors, params: Params) -> dict[str, Tensor]:
    """The row statistics that a norm's backward pass takes from its forward pass, where it has parameters for
    them: float32 tensors of x's shape with a last dimension of 1."""
    parameters = inspect.signature(function).parameters
    if "rstd" not in parameters:
        return {}
    x = given(tensors, "x").float()
    if "mean" not in parameters:
        return {"rstd": torch.rsqrt(x.square().mean(-1, keepdim=True) + params["eps"])}
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return {"mean": mean, "rstd": torch.rsqrt(variance + params["eps"])}
