"""The judge: is this output what the spec says, element by element, to within its own rounding?

The oracle is float64 on the CPU from the same input bits. An element passes when

    |got - ref| <= result * eps(R) * |ref| + sum * eps(acc) * (|ref| + magnitude) + tiny(R)
                   + UNDERFLOW * sum^2 * tiny(acc)

`result` pays for one rounding to the output type R, `sum` for the accumulation in `acc`, `magnitude`
is the root of the sum of squares of what was added up (so that cancellation is not punished), and
`tiny` is the smallest subnormal: near zero a rounding is absolute, one in R and one per step in `acc`.
Those steps are about sum^2 / 4, may all fall to one side (equal rows), and later steps may scale them up
(a row's rsqrt). The term is 10^-3 of the smallest normal number at most, so that a flush still shows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from portable.conformance.inputs import same_bits

UNDERFLOW = 8.0
BIAS_SIGMAS = 6.0
BIAS_ULP = 0.05
"""A mean error beyond this many standard errors and this many ULP is a bias (QualityWarning). Elements
of a row share its scale, so they are less independent than counted: correct row norms reach 0.02 ULP."""


@dataclass(frozen=True)
class Tolerance:
    """`result` and `sum` of the spec with the axes filled in, and the two types they refer to."""

    result: float
    sum: float
    acc: torch.dtype


@dataclass(frozen=True)
class Wrong:
    """The first wrong element: its index, what came, what should have, and how far off it is."""

    index: tuple[int, ...]
    got: float
    expected: float
    bound: float
    ulp: float

    def __str__(self) -> str:
        place = "[" + ", ".join(map(str, self.index)) + "]"
        text = f"element {place}: got {self.got:.9g}, expected {self.expected:.17g}"
        if math.isfinite(self.got) and math.isfinite(self.expected):
            text += (
                f", |error| {abs(self.got - self.expected):.3g} > bound {self.bound:.3g} ({self.ulp:.3g} ULP)"
            )
        return text


@dataclass(frozen=True)
class Verdict:
    """What the judge says of one output tensor.

    `state` is "Pass", "QualityWarning" or "Fail.shape|dtype|value|nonfinite"; `worst` the largest
    |error| / bound over the finite elements, `max_abs` the largest |error|; `wrong` how many of
    `count` elements are outside, and `first` the first of them.
    """

    state: str
    count: int = 0
    wrong: int = 0
    worst: float = 0.0
    max_abs: float = 0.0
    first: Wrong | None = None
    note: str = ""

    @property
    def passed(self) -> bool:
        return not self.state.startswith("Fail")

    def __str__(self) -> str:
        if self.passed:
            return f"{self.state}: worst |error|/bound {self.worst:.3f}" + (
                f" ({self.note})" if self.note else ""
            )
        text = f"{self.state}: {self.note}" if self.note else self.state
        if self.first is not None:
            text += f"; {self.wrong} of {self.count} elements wrong; first wrong {self.first}"
        return text


def bound(
    ref: torch.Tensor, magnitude: torch.Tensor | None, tolerance: Tolerance, dtype: torch.dtype
) -> torch.Tensor:
    """The largest |got - ref| that passes, per element, in float64. `ref` and `magnitude` are float64."""
    size = ref.abs()
    added = size if magnitude is None else size + torch.nan_to_num(magnitude.abs(), nan=0.0, posinf=0.0)
    acc, result = torch.finfo(tolerance.acc), torch.finfo(dtype)
    accumulation = tolerance.sum * acc.eps * added
    underflow = UNDERFLOW * max(tolerance.sum, 1.0) ** 2 * acc.smallest_normal * acc.eps
    return (
        tolerance.result * result.eps * size + accumulation + underflow + result.smallest_normal * result.eps
    )


def judge(
    got: torch.Tensor,
    ref: torch.Tensor,
    magnitude: torch.Tensor | None,
    tolerance: Tolerance,
    dtype: torch.dtype,
    *,
    exact: bool = False,
    bias: bool = False,
) -> Verdict:
    """Compare `got` with the float64 oracle `ref`.

    `exact` asks for the reference rounded to `dtype`, bit for bit. `bias` adds the signed-bias test,
    which holds where rounding errors are independent: N(0, 1) data and an accumulator wider than R.
    """
    if tuple(got.shape) != tuple(ref.shape):
        return Verdict("Fail.shape", note=f"got shape {tuple(got.shape)}, expected {tuple(ref.shape)}")
    if got.dtype != dtype:
        return Verdict("Fail.dtype", note=f"got {_name(got.dtype)}, expected {_name(dtype)}")
    got = got.detach().cpu()
    value = got.to(torch.float64)
    limits = bound(ref, magnitude, tolerance, dtype)
    error = (value - ref).abs()
    bad_nonfinite = _nonfinite_violations(value, ref, limits, dtype)
    both_finite = torch.isfinite(value) & torch.isfinite(ref)
    bad_value = both_finite & (error > limits)
    ratio = torch.where(both_finite, error / limits, torch.zeros_like(error))
    worst = float(ratio.max()) if ratio.numel() else 0.0
    max_abs = float(torch.where(both_finite, error, torch.zeros_like(error)).max()) if error.numel() else 0.0
    bad = bad_nonfinite | bad_value
    if bool(bad.any()):
        state = "Fail.nonfinite" if bool(bad_nonfinite.any()) else "Fail.value"
        shown = bad_nonfinite if state == "Fail.nonfinite" else bad_value
        return Verdict(
            state, ref.numel(), int(bad.sum()), worst, max_abs, _first(shown, value, ref, limits, dtype)
        )
    if exact:
        expected = ref.to(dtype)
        differs = (got != expected) & ~(got.isnan() & expected.isnan())
        if bool(differs.any()):
            first = _first(differs, value, expected.to(torch.float64), torch.zeros_like(limits), dtype)
            note = "integers must come out exactly"
            return Verdict("Fail.value", ref.numel(), int(differs.sum()), worst, max_abs, first, note)
    if bias and torch.finfo(dtype).eps > torch.finfo(tolerance.acc).eps:
        note = _bias(value, ref, dtype)
        if note:
            return Verdict("QualityWarning", ref.numel(), 0, worst, max_abs, None, note)
    return Verdict("Pass", ref.numel(), 0, worst, max_abs)


def deterministic(first: torch.Tensor, second: torch.Tensor) -> Verdict | None:
    """None when two runs gave the same bytes, else Fail.nondeterministic with the first difference."""
    if same_bits(first, second):
        return None
    one, two = first.detach().cpu(), second.detach().cpu()
    if one.shape != two.shape or one.dtype != two.dtype:
        return Verdict("Fail.nondeterministic", note="two runs gave different shapes or dtypes")
    differs = (one != two) & ~(one.isnan() & two.isnan())
    count = int(differs.sum())
    if count == 0:
        return Verdict("Fail.nondeterministic", note="two runs differ in a NaN's payload or a zero's sign")
    wide, other = one.to(torch.float64), two.to(torch.float64)
    found = _first(differs, wide, other, torch.zeros_like(wide), one.dtype)
    note = (
        f"two runs on the same bytes differ: {found.got:.9g} then {found.expected:.9g} at {list(found.index)}"
    )
    return Verdict("Fail.nondeterministic", one.numel(), count, note=note)


def digest(outputs: Mapping[str, torch.Tensor]) -> str:
    """16 hexadecimal digits of the SHA-256 of outputs by name: equal for equal bits, any NaN being one."""
    found = hashlib.sha256()
    for name, tensor in outputs.items():
        tensor = tensor.detach().cpu().contiguous()
        if tensor.is_floating_point():
            tensor = torch.where(tensor.isnan(), torch.full_like(tensor, torch.nan), tensor)
        found.update(f"{name} {_name(tensor.dtype)} {tuple(tensor.shape)}\0".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def integers_exact(ref: torch.Tensor, inputs: list[torch.Tensor], acc: torch.dtype) -> bool:
    """Whether integer inputs must give `ref` rounded once, bit for bit.

    So it is where the reference is all integers (no division, root or exponential took part; with
    sixteen elements or more that is no accident) and no partial sum can outgrow `acc`'s mantissa.
    """
    if ref.numel() < 16 or not bool((ref == ref.round()).all()):
        return False
    product, longest = 1.0, 1
    for tensor in inputs:
        if tensor.numel():
            product *= max(1.0, float(tensor.to(torch.float64).abs().max()))
            longest = max(longest, *tensor.shape, math.prod(tensor.shape[:-1]))
    return product * longest < 1.0 / torch.finfo(acc).eps


def ulp(value: float, dtype: torch.dtype) -> float:
    """The spacing of `dtype` at |value|."""
    info = torch.finfo(dtype)
    size = min(max(abs(value), info.smallest_normal), info.max)
    return 2.0 ** math.floor(math.log2(size)) * info.eps


def _nonfinite_violations(
    value: torch.Tensor, ref: torch.Tensor, limits: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """NaN where the maths says NaN and nowhere else; Inf of the same sign where the reference is
    infinite or rounds beyond the largest finite number. Within the bound of that edge both pass."""
    info = torch.finfo(dtype)
    edge = info.max * (1.0 + info.eps / 4) if dtype != torch.float64 else math.inf
    size = ref.abs()
    must_overflow = torch.isinf(ref) | (size - limits >= edge)
    may_overflow = must_overflow | (size + limits >= edge)
    same_inf = torch.isinf(value) & (torch.signbit(value) == torch.signbit(ref))
    wrong_nan = torch.isnan(value) != torch.isnan(ref)
    missing_inf = must_overflow & ~same_inf
    stray_inf = torch.isinf(value) & ~(may_overflow & same_inf)
    return wrong_nan | (~torch.isnan(ref) & (missing_inf | stray_inf))


def _first(
    mask: torch.Tensor, value: torch.Tensor, ref: torch.Tensor, limits: torch.Tensor, dtype: torch.dtype
) -> Wrong:
    flat = int(mask.reshape(-1).to(torch.uint8).argmax())
    index = []
    for size in reversed(mask.shape):
        index.append(flat % size)
        flat //= size
    where = tuple(reversed(index))
    got, expected = float(value[where]), float(ref[where])
    finite = math.isfinite(got) and math.isfinite(expected)
    distance = abs(got - expected) / ulp(expected, dtype) if finite else math.inf
    return Wrong(where, got, expected, float(limits[where]), distance)


def _bias(value: torch.Tensor, ref: torch.Tensor, dtype: torch.dtype) -> str:
    """A sentence when errors lean to one side more than rounding to nearest allows, else ""."""
    info = torch.finfo(dtype)
    keep = torch.isfinite(value) & torch.isfinite(ref) & (ref.abs() > info.smallest_normal)
    if int(keep.sum()) < 1024:
        return ""
    expected, got = ref[keep], value[keep]
    _, exponent = torch.frexp(expected)
    spacing = torch.ldexp(torch.full_like(expected, info.eps), exponent - 1)
    error = (got - expected) * torch.sign(expected) / spacing
    mean = float(error.mean())
    standard_error = max(float(error.std()), 1e-9) / math.sqrt(error.numel())
    if abs(mean) > BIAS_ULP and abs(mean) > BIAS_SIGMAS * standard_error:
        return f"errors lean {'away from' if mean > 0 else 'towards'} zero by {abs(mean):.3f} ULP on average"
    return ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
