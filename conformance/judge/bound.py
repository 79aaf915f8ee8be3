"""The judge: is this output what the spec says, element by element, to within its own rounding?

The oracle is float64 on the CPU from the same input bits. An element passes when

    |got - ref| <= result_ulp * eps(R) * |ref| + accumulation_ulp * eps(acc) * (|ref| + error_scale) + tiny(R)
                   + UNDERFLOW * accumulation_ulp^2 * tiny(acc)

`result_ulp` pays for one rounding to the output type R, `accumulation_ulp` for the accumulation in `acc`,
`error_scale` is the root of the sum of squares of what was added up (so that cancellation is not punished),
and `tiny` is the smallest subnormal: near zero a rounding is absolute, one in R and one per step in `acc`.
Those steps are about accumulation_ulp^2 / 4, may all fall to one side (equal rows), and later steps may scale
them up (a row's rsqrt). The term is 10^-3 of the smallest normal number at most, so that a flush still shows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from portable import dtypes
from portable.conformance.cases.inputs import same_bits
from portable.conformance.judge.error_pattern import find
from portable.conformance.text import number

UNDERFLOW = 8.0
BIAS_SIGMAS = 6.0
BIAS_ULP = 0.05
"""A mean error beyond this many standard errors and this many ULP is a bias (QualityWarning). Elements
of a row share its scale, so they are less independent than counted: correct row norms reach 0.02 ULP."""
_EXPONENT = 0x7FF0000000000000  # of a float64's bits


@dataclass(frozen=True)
class Tolerance:
    """The spec's tolerance with the axes filled in, and the accumulator's type that it refers to."""

    result_ulp: float
    accumulation_ulp: float
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
    |error| / bound over the finite elements, `max_abs` the largest |error|, and `ulp` the largest signed
    error in units in the last place of the output's type at the reference (the sign is that of the error);
    `wrong` how many of `count` elements are outside, `first` the first of them and `pattern` a phrase that
    describes the pattern of all of them.
    """

    state: str
    count: int = 0
    wrong: int = 0
    worst: float = 0.0
    max_abs: float = 0.0
    first: Wrong | None = None
    note: str = ""
    pattern: str = ""
    ulp: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.state.startswith("Fail")

    def __str__(self) -> str:
        if self.passed:
            return f"{self.state}: worst |error|/bound {number(self.worst)}" + (
                f" ({self.note})" if self.note else ""
            )
        text = f"{self.state}: {self.note}" if self.note else self.state
        if self.wrong:
            text += f"; {self.wrong} of {self.count} elements wrong"
        if self.first is not None:
            text += f"; first wrong {self.first}"
        return text + (f"; wrong: {self.pattern}" if self.pattern else "")


def bound(
    ref: torch.Tensor, error_scale: torch.Tensor | None, tolerance: Tolerance, dtype: torch.dtype
) -> torch.Tensor:
    """The largest |got - ref| that passes, per element, in float64. `ref` and `error_scale` are float64."""
    acc, result = torch.finfo(tolerance.acc), torch.finfo(dtype)
    eps = dtypes.of(dtype).eps
    accumulation = tolerance.accumulation_ulp * acc.eps
    underflow = UNDERFLOW * max(tolerance.accumulation_ulp, 1.0) ** 2 * acc.smallest_normal * acc.eps
    limits = ref.abs().mul_(tolerance.result_ulp * eps + accumulation)
    if error_scale is not None:
        limits.add_(torch.nan_to_num(error_scale.abs(), nan=0.0, posinf=0.0), alpha=accumulation)
    return limits.add_(underflow + result.smallest_normal * eps)


def judge(
    got: torch.Tensor,
    ref: torch.Tensor,
    error_scale: torch.Tensor | None,
    tolerance: Tolerance,
    dtype: torch.dtype,
    *,
    exact: bool = False,
    bias: bool = False,
) -> Verdict:
    """Compare `got` with the float64 oracle `ref`.

    `exact` requires the reference rounded to `dtype`, bit for bit. `bias` adds the signed-bias test,
    which holds where rounding errors are independent: N(0, 1) data and an accumulator wider than R.
    """
    if tuple(got.shape) != tuple(ref.shape):
        return Verdict("Fail.shape", note=f"got shape {tuple(got.shape)}, expected {tuple(ref.shape)}")
    if got.dtype != dtype:
        return Verdict("Fail.dtype", note=f"got {_name(got.dtype)}, expected {_name(dtype)}")
    got, count = got.detach().cpu(), ref.numel()
    if not count:
        return Verdict("Pass")
    value = got.to(torch.float64)
    limits = bound(ref, error_scale, tolerance, dtype)
    error = value - ref
    size = error.abs()
    max_abs = float(size.max())
    bad_nonfinite = None
    if not (math.isfinite(max_abs) and float(ref.abs().max()) < _edge(dtype)):
        bad_nonfinite = _nonfinite_violations(value, ref, limits, dtype)
        both_finite = torch.isfinite(value) & torch.isfinite(ref)
        if not dtypes.of(dtype).has_infinity:  # a saturated element is as far off as the reference is large
            both_finite &= ~_saturated(value, ref, limits, dtype)
        error = torch.where(both_finite, error, 0.0)
        limits = torch.where(both_finite, limits, math.inf)
        size = error.abs()
        max_abs = float(size.max())
    worst = float((size / limits).max())
    units = error.div_(spacing(ref, dtype))
    least, most = (float(each) for each in units.aminmax())
    found = Verdict("Pass", count, 0, worst, max_abs, ulp=most if most >= -least else least)
    missed = bad_nonfinite is not None and bool(bad_nonfinite.any())
    if missed or worst >= 1:  # a quotient may round to 1 on either side
        bad_value = size > limits
        bad = bad_value if bad_nonfinite is None else bad_value | bad_nonfinite
        if bool(bad.any()):
            state, shown = "Fail.value", bad_value
            if missed and bad_nonfinite is not None:
                state, shown = "Fail.nonfinite", bad_nonfinite
            return _failed(found, state, bad, _first(shown, value, ref, limits, dtype))
    if exact:
        expected = ref.to(dtype).to(torch.float64)
        differs = (value != expected) & ~(value.isnan() & expected.isnan())
        if tolerance.result_ulp == 0:  # a copy: a zero keeps its sign
            differs |= (value == 0) & (value.signbit() != expected.signbit())
        if bool(differs.any()):
            first = _first(differs, value, expected, torch.zeros_like(limits), dtype)
            return _failed(found, "Fail.value", differs, first, "the result must come out exactly")
    if bias and dtypes.of(dtype).eps > dtypes.of(tolerance.acc).eps:
        rounding = tolerance.result_ulp * dtypes.of(dtype).eps * ref.abs()
        note = _bias(units[rounding > 0.5 * limits], ref[rounding > 0.5 * limits], dtype)
        if note:
            return replace(found, state="QualityWarning", note=note)
    return found


def judge_equal(got: torch.Tensor, ref: torch.Tensor, dtype: torch.dtype) -> Verdict:
    """Compare an output of integers or bools with the reference: every element must be the same number."""
    if tuple(got.shape) != tuple(ref.shape):
        return Verdict("Fail.shape", note=f"got shape {tuple(got.shape)}, expected {tuple(ref.shape)}")
    if got.dtype != dtype:
        return Verdict("Fail.dtype", note=f"got {_name(got.dtype)}, expected {_name(dtype)}")
    value, wanted = got.detach().cpu().to(torch.int64), ref.to(torch.int64)
    differs = value != wanted
    found = Verdict("Pass", ref.numel())
    if not bool(differs.any()):
        return found
    wide = value.to(torch.float64)
    first = _first(differs, wide, wanted.to(torch.float64), torch.zeros_like(wide), torch.float64)
    return _failed(found, "Fail.value", differs, first, "integers must be equal")


def _failed(found: Verdict, state: str, wrong: torch.Tensor, first: Wrong | None, note: str = "") -> Verdict:
    count = int(wrong.sum())
    return replace(found, state=state, wrong=count, first=first, note=note, pattern=str(find(wrong)))


def deterministic(first: torch.Tensor, second: torch.Tensor) -> Verdict | None:
    """None when two runs gave the same bytes, else Fail.nondeterministic with the first difference."""
    if same_bits(first, second):
        return None
    one, two = first.detach().cpu(), second.detach().cpu()
    if one.shape != two.shape or one.dtype != two.dtype:
        return Verdict("Fail.nondeterministic", note="two runs gave different shapes or dtypes")
    wide, other = one.to(torch.float64), two.to(torch.float64)
    differs = (wide != other) & ~(wide.isnan() & other.isnan())
    if bool(differs.any()):
        found = _first(differs, wide, other, torch.zeros_like(wide), one.dtype)
        values = f"{found.got:.9g} then {found.expected:.9g} at {list(found.index)}"
        note = f"two runs on the same bytes differ: {values}"
    else:
        differs = _bits(one) != _bits(two)
        note = "two runs differ in a NaN's payload or a zero's sign"
    return _failed(Verdict("", one.numel()), "Fail.nondeterministic", differs, None, note)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).view(kinds[tensor.element_size()])


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


def integers(ref: torch.Tensor) -> bool:
    """Whether all elements are integers."""
    return bool((ref == ref.round()).all())


def integers_exact(ref: torch.Tensor, inputs: list[torch.Tensor], acc: torch.dtype) -> bool:
    """Whether integer inputs must give `ref` rounded once, bit for bit.

    So it is where the reference is all integers (no division, root or exponential took part; with
    sixteen elements or more that is no accident) and no partial sum can outgrow `acc`'s mantissa.
    """
    if ref.numel() < 16 or not integers(ref):
        return False
    product, longest = 1.0, 1
    for tensor in inputs:
        if tensor.numel():
            product *= max(1.0, float(tensor.to(torch.float64).abs().max()))
            longest = max(longest, *tensor.shape, math.prod(tensor.shape[:-1]))
    return product * longest < 1.0 / dtypes.of(acc).eps


def spacing(ref: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The unit in the last place of `dtype` at every element of `ref` (float64), in float64.

    As in OpenCL it is the distance between the two numbers of `dtype` nearest to an element: at a power of
    two the step below it, in the subnormal range the smallest subnormal, beyond the largest finite number
    the last step. NaN and Inf have one too, which means nothing.
    """
    info = torch.finfo(dtype)
    size = ref.abs().contiguous().clamp_(min=info.smallest_normal)
    bits = size.view(torch.int64)
    bits.sub_(1).bitwise_and_(_EXPONENT)  # 2^floor(log2 x), one less at a power of two
    return size.clamp_(info.smallest_normal, 2.0 ** (math.frexp(info.max)[1] - 1)).mul_(dtypes.of(dtype).eps)


def ulp(value: float, dtype: torch.dtype) -> float:
    """The unit in the last place of `dtype` at `value`; see `spacing`."""
    return float(spacing(torch.tensor([value], dtype=torch.float64), dtype))


def _edge(dtype: torch.dtype) -> float:
    """Where rounding to nearest goes beyond the largest finite number of `dtype`: half a step past it."""
    info = torch.finfo(dtype)
    step = math.ldexp(dtypes.of(dtype).eps, math.frexp(info.max)[1] - 1)
    return info.max + step / 2 if dtype != torch.float64 else math.inf


def _nonfinite_violations(
    value: torch.Tensor, ref: torch.Tensor, limits: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """NaN where the maths says NaN and nowhere else; Inf of the same sign where the reference is
    infinite or rounds beyond the largest finite number. Within the bound of that edge both pass, and so does
    the other sign's Inf where the bound, of terms that cancel, reaches beyond the other edge.

    A type without Inf (float8_e4m3fn, the fnuz types) has NaN in its place; a conversion that saturates gives
    the largest finite number of that sign, which passes as well.
    """
    if not dtypes.of(dtype).has_infinity:
        return _overflow_violations(value, ref, limits, dtype)
    edge = _edge(dtype)
    must_overflow = torch.isinf(ref) | (ref.abs() - limits >= edge)
    same_sign = torch.signbit(value) == torch.signbit(ref)
    reached = torch.isinf(ref) & same_sign | (torch.where(same_sign, ref.abs(), -ref.abs()) + limits >= edge)
    wrong_nan = torch.isnan(value) != torch.isnan(ref)
    missing_inf = must_overflow & ~(torch.isinf(value) & same_sign)
    stray_inf = torch.isinf(value) & ~reached
    return wrong_nan | (~torch.isnan(ref) & (missing_inf | stray_inf))


def _overflow_violations(
    value: torch.Tensor, ref: torch.Tensor, limits: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """What `_nonfinite_violations` finds, for a type that has no Inf."""
    edge, size = _edge(dtype), ref.abs()
    over = torch.isinf(ref) | (size + limits >= edge)
    must = torch.isinf(ref) | (size - limits >= edge)
    wrong = torch.isnan(value) & ~torch.isnan(ref) & ~over
    missed = must & ~torch.isnan(value) & ~_saturated(value, ref, limits, dtype)
    return wrong | missed | (torch.isnan(ref) & ~torch.isnan(value))


def _saturated(
    value: torch.Tensor, ref: torch.Tensor, limits: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Where the reference rounds beyond the largest finite number of `dtype`, which is then accepted."""
    largest = torch.copysign(torch.full_like(ref, torch.finfo(dtype).max), ref)
    return (value == largest) & (torch.isinf(ref) | (ref.abs() + limits >= _edge(dtype)))


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


def _bias(units: torch.Tensor, ref: torch.Tensor, dtype: torch.dtype) -> str:
    """A sentence when errors lean to one side more than rounding to nearest allows, else "".

    `units` are the errors in ULP of elements whose bound is mostly the rounding of the result: an error of
    the accumulation, where much of it cancels, may lean and is judged by its size alone.
    """
    keep = torch.isfinite(units) & torch.isfinite(ref) & (ref.abs() > torch.finfo(dtype).smallest_normal)
    if int(keep.sum()) < 1024:
        return ""
    error = (units * torch.sign(ref))[keep]
    mean = float(error.mean())
    standard_error = max(float(error.std()), 1e-9) / math.sqrt(error.numel())
    if abs(mean) > BIAS_ULP and abs(mean) > BIAS_SIGMAS * standard_error:
        return f"errors lean {'away from' if mean > 0 else 'towards'} zero by {abs(mean):.3f} ULP on average"
    return ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
