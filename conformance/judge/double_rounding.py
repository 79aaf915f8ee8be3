"""Double rounding: whether wrong results are just what one rounding too many gives, of a result or of a step.

A result that went through bfloat16 on its way to float32, or through float16 on its way to bfloat16, is off
by what that rounding loses and by nothing else. So is one whose kernel stored a step in 16 bits (the
normalised row before its weight). Both are tried: `explain` rounds the float64 reference, or one operation of
it, and answers only where that gives every element of every output.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from portable import dtypes
from portable.conformance.judge import reference
from portable.conformance.judge.bound import Tolerance
from portable.conformance.text import pluralize
from portable.runtime.tensors import widened

NARROW = (torch.bfloat16, torch.float16, torch.float32)
"""Types that a value may have been rounded to first."""
EVIDENCE = 3
"""Elements that the result, rounded once, would not have: fewer may be chance."""
MOST_ELEMENTS = 1 << 26
"""Elements that the reference may compute in all runs with one operation rounded: some seconds."""
RUNS = (0, -1, 1)
"""Of one operation: as it is, and with what the arithmetic before it may be off, to either side."""


@dataclass(frozen=True)
class Between:
    """Where each output lies if it was rounded as `words` say: from `low` to `high`, in float64 by name."""

    words: str
    low: Mapping[str, torch.Tensor]
    high: Mapping[str, torch.Tensor]


def explain(made: reference.MaterializedCase, got: Mapping[str, Any]) -> str:
    """A sentence on the rounding too many that gives every element of `got` (outputs by name); "" where none
    does, where fewer than `EVIDENCE` elements tell it from the right result, and for gradients."""
    floats = {name: each for name, each in made.expected.items() if dtypes.of(each.dtype).is_float}
    if made.case.mode == "grad" or made.spec.mutated or set(got) != set(made.expected):
        return ""
    wrong = {name: each.judge(got[name], False) for name, each in made.expected.items()}
    failing = [name for name, verdict in wrong.items() if not verdict.passed]
    if not failing or not set(failing) <= set(floats) or not all(wrong[name].wrong for name in failing):
        return ""
    values = {name: got[name].detach().cpu().to(torch.float64) for name in floats}
    for tried in _tried(made, floats):
        if _holds(tried, values, floats):
            parts = [f"{pluralize(wrong[name].wrong, 'wrong element')} of {name}" for name in failing]
            return f"rounded twice: the {' and the '.join(parts)} are what {tried.words} gives"
    return ""


def _holds(
    tried: Between, values: Mapping[str, torch.Tensor], floats: Mapping[str, reference.Expected]
) -> bool:
    """Whether every element lies between the bounds, and enough of them where the right result does not."""
    telling = 0
    for name, each in floats.items():
        low, high = tried.low[name], tried.high[name]
        inside = (values[name] >= low) & (values[name] <= high) | values[name].isnan() & low.isnan()
        if not bool(inside.all()):
            return False
        once = each.ref.to(each.dtype).to(torch.float64)
        telling += int(((once < low) | (once > high)).sum())
    return telling >= EVIDENCE


def _tried(made: reference.MaterializedCase, floats: Mapping[str, reference.Expected]) -> Iterator[Between]:
    """First the results themselves by each type, then each operation of the reference."""
    first = next(iter(floats.values()))
    acc = first.tolerance.acc
    narrow = [dtype for dtype in NARROW if dtypes.of(dtype).eps > dtypes.of(acc).eps]
    names = {dtype: dtypes.of(dtype).name for dtype in {*narrow, *(each.dtype for each in floats.values())}}
    last = " and ".join(dict.fromkeys(names[each.dtype] for each in floats.values()))
    for dtype in narrow:
        if any(each.dtype == dtype for each in floats.values()):
            continue  # a second rounding to the same type changes nothing
        low, high = {}, {}
        for name, each in floats.items():
            slack = _slack(each.ref, each.error_scale, each.tolerance)
            low[name], high[name] = (
                _through(value, dtype, each.dtype) for value in (each.ref - slack, each.ref + slack)
            )
        yield Between(f"rounding first to {names[dtype]} and then to {last}", low, high)
    with contextlib.suppress(Exception):  # the verdict is there; a hint only explains it
        plain = _run(made, _Rounding())
        steps = plain.names
        if plain.elements * len(steps) * len(narrow) * len(RUNS) > MOST_ELEMENTS:
            return
        for dtype in narrow:
            for step, what in enumerate(steps):
                found = _step(made, floats, step, dtype)
                words = (
                    f"rounding an intermediate result (after {what}, operation {step + 1} of the reference's "
                    f"{len(steps)}) to {names[dtype]} and the result to {last}"
                )
                yield Between(words, *found)


def _step(
    made: reference.MaterializedCase, floats: Mapping[str, reference.Expected], step: int, dtype: torch.dtype
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The bounds of the outputs where the reference's operation `step` is rounded to `dtype`, either way
    where the arithmetic before it may decide which."""
    tolerance = next(iter(floats.values())).tolerance
    error = tolerance.accumulation_ulp * dtypes.of(tolerance.acc).eps
    runs = [_run(made, _Rounding(step, dtype, 1 + sign * error)).outputs for sign in RUNS]
    low, high = {}, {}
    for name, each in floats.items():
        several = torch.stack([run[name].broadcast_to(each.ref.shape) for run in runs])
        slack = _slack(each.ref, each.error_scale, each.tolerance)
        for bounds, value in ((low, several.amin(0) - slack), (high, several.amax(0) + slack)):
            bounds[name] = value.to(each.dtype).to(torch.float64)
    return low, high


def _slack(ref: torch.Tensor, scale: torch.Tensor | None, tolerance: Tolerance) -> torch.Tensor:
    """How far off a result may be before it is rounded."""
    size = ref.abs() if scale is None else ref.abs() + scale.abs()
    return size.nan_to_num(0.0, 0.0, 0.0) * (tolerance.accumulation_ulp * dtypes.of(tolerance.acc).eps)


def _through(value: torch.Tensor, first: torch.dtype, then: torch.dtype) -> torch.Tensor:
    return value.to(first).to(then).to(torch.float64)


class _Rounding(TorchDispatchMode):
    """Rounds the result of one operation: the `step`-th that makes float64 numbers, times `factor`. `names`
    lists these operations, `elements` counts what they made."""

    def __init__(self, step: int = -1, dtype: torch.dtype = torch.float64, factor: float = 1.0):
        super().__init__()
        self._step, self._dtype, self._factor = step, dtype, factor
        self.names: list[str] = []
        self.elements = 0
        self.outputs: dict[str, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        views = any(each.alias_info is not None for each in func._schema.returns)
        if views or not isinstance(result, torch.Tensor) or result.dtype != torch.float64:
            return result
        self.names.append(func.overloadpacket.__name__)
        self.elements += result.numel()
        if len(self.names) - 1 != self._step:
            return result
        return (result * self._factor).to(self._dtype).to(torch.float64)


def _run(made: reference.MaterializedCase, mode: _Rounding) -> _Rounding:
    """The reference under `mode`, which keeps the outputs."""
    wide = {
        name: widened(made.inputs[name].tensor) if name in made.inputs else None for name in made.spec.inputs
    }
    with mode:
        mode.outputs = reference.reference(made.case, made.spec, wide)
    return mode
