"""Floating-point arithmetic by definition: exact integers, rounded once. Nothing here uses the machine's own
floats except `near`, where an exact value known to f64 accuracy is compared
within units in the last place."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

from instructions import ANY_NAN, Near

NEAREST, UP, DOWN, ZERO = 0, 1, 2, 3  # MODE's two-bit round modes (ISA guides)


@dataclass(frozen=True)
class Format:
    """An IEEE-like type: `man` fraction bits, `exp` exponent bits."""

    man: int
    exp: int
    name: str

    @property
    def bias(self) -> int:
        return (1 << (self.exp - 1)) - 1

    @property
    def top(self) -> int:
        return (1 << self.exp) - 1

    @property
    def sign(self) -> int:
        return 1 << (self.man + self.exp)

    @property
    def inf(self) -> int:
        return self.top << self.man

    @property
    def largest(self) -> int:
        return self.inf - 1


F16, BF16 = Format(10, 5, "f16"), Format(7, 8, "bf16")
F32, F64 = Format(23, 8, "f32"), Format(52, 11, "f64")
BY_NAME = {each.name: each for each in (F16, BF16, F32, F64)}
NAN, INF, FINITE = "nan", "inf", "finite"


@dataclass(frozen=True)
class Num:
    """A value: NaN, an infinity, or (-1)^sign * mag * 2^exp."""

    kind: str
    sign: int = 0
    mag: int = 0
    exp: int = 0
    signalling: bool = False

    @property
    def zero(self) -> bool:
        return self.kind == FINITE and self.mag == 0


QNAN = Num(NAN)


def unpack(value: int, fmt: Format, flush: bool = False) -> Num:
    """The value of a bit pattern; `flush` reads subnormals as zeros of their sign."""
    sign = value >> (fmt.man + fmt.exp) & 1
    biased, fraction = value >> fmt.man & fmt.top, value & ((1 << fmt.man) - 1)
    if biased == fmt.top:
        return Num(NAN, sign, signalling=not fraction >> (fmt.man - 1)) if fraction else Num(INF, sign)
    if biased == 0:
        return Num(FINITE, sign, 0 if flush else fraction, 1 - fmt.bias - fmt.man)
    return Num(FINITE, sign, fraction | 1 << fmt.man, biased - fmt.bias - fmt.man)


def pack(num: Num, fmt: Format, mode: int = NEAREST, flush: bool = False) -> int:
    """The nearest bit pattern in the round mode; NaN is ANY_NAN. `flush` writes subnormals as zeros."""
    if num.kind == NAN:
        return ANY_NAN  # type: ignore[return-value]
    sign = fmt.sign if num.sign else 0
    if num.kind == INF:
        return sign | fmt.inf
    if not num.mag:
        return sign
    least = 1 - fmt.bias - fmt.man
    unit = max(num.mag.bit_length() + num.exp - 1 - fmt.man, least)
    kept = rounded(num.mag, unit - num.exp, mode, num.sign)
    if kept >> (fmt.man + 1):
        kept, unit = kept >> 1, unit + 1
    if not kept >> fmt.man:
        return sign if flush else sign | kept
    biased = unit + fmt.man + fmt.bias
    if biased >= fmt.top:
        towards = mode == NEAREST or mode == (DOWN if num.sign else UP)
        return sign | (fmt.inf if towards else fmt.largest)
    return sign | biased << fmt.man | (kept & ((1 << fmt.man) - 1))


def rounded(mag: int, shift: int, mode: int, sign: int) -> int:
    """mag / 2^shift as an integer, rounded."""
    if shift <= 0:
        return mag << -shift
    kept, rest = mag >> shift, mag & ((1 << shift) - 1)
    if mode == NEAREST:
        half = 1 << (shift - 1)
        return kept + (rest > half or (rest == half and kept & 1))
    return kept + (rest != 0 and mode == (DOWN if sign else UP))


def add(a: Num, b: Num, mode: int = NEAREST) -> Num:
    """The exact sum; `mode` decides the sign of an exact zero."""
    if NAN in (a.kind, b.kind):
        return QNAN
    if INF in (a.kind, b.kind):
        if a.kind == b.kind and a.sign != b.sign:
            return QNAN
        return a if a.kind == INF else b
    exp = min(a.exp, b.exp)
    total = signed(a) << (a.exp - exp)
    total += signed(b) << (b.exp - exp)
    if total == 0:
        both = a.sign if a.sign == b.sign and a.mag == 0 and b.mag == 0 else int(mode == DOWN)
        return Num(FINITE, both, 0, exp)
    return Num(FINITE, int(total < 0), abs(total), exp)


def signed(num: Num) -> int:
    return -num.mag if num.sign else num.mag


def neg(a: Num) -> Num:
    return Num(a.kind, a.sign ^ 1, a.mag, a.exp)


def mul(a: Num, b: Num) -> Num:
    if NAN in (a.kind, b.kind):
        return QNAN
    sign = a.sign ^ b.sign
    if INF in (a.kind, b.kind):
        return QNAN if a.zero or b.zero else Num(INF, sign)
    return Num(FINITE, sign, a.mag * b.mag, a.exp + b.exp)


def fma(a: Num, b: Num, c: Num, mode: int = NEAREST) -> Num:
    return add(mul(a, b), c, mode)


def divide(a: Num, b: Num, fmt: Format) -> Num:
    """a / b with more bits than `fmt` has and a sticky last one, so that packing it rounds correctly."""
    if NAN in (a.kind, b.kind):
        return QNAN
    sign = a.sign ^ b.sign
    if a.kind == INF:
        return QNAN if b.kind == INF else Num(INF, sign)
    if b.kind == INF:
        return Num(FINITE, sign)
    if b.zero:
        return QNAN if a.zero else Num(INF, sign)
    if a.zero:
        return Num(FINITE, sign)
    extra = 2 * fmt.man + 8 + b.mag.bit_length()
    quotient, rest = divmod(a.mag << extra, b.mag)
    return Num(FINITE, sign, quotient << 1 | (rest != 0), a.exp - b.exp - extra - 1)


def compare(a: Num, b: Num) -> int | None:
    """-1, 0, 1, or None where they are unordered."""
    if NAN in (a.kind, b.kind):
        return None
    left, right = key(a), key(b)
    return (left > right) - (left < right)


def key(a: Num) -> tuple[int, int]:
    """Orders numbers: infinities outside, else the value on one fixed scale."""
    if a.kind == INF:
        return (-1 if a.sign else 1, 0)
    return (0, signed(a) << (a.exp + 1200))


def value(num: Num) -> float:
    """As a Python float; exact for every type up to f64."""
    if num.kind == NAN:
        return math.nan
    if num.kind == INF:
        return -math.inf if num.sign else math.inf
    return -math.ldexp(num.mag, num.exp) if num.sign else math.ldexp(num.mag, num.exp)


def of(number: float, fmt: Format = F32) -> int:
    """The bit pattern of a Python float in a type, rounded to nearest."""
    return pack(unpack(struct.unpack("<Q", struct.pack("<d", number))[0], F64), fmt)


def integer(number: int) -> Num:
    return Num(FINITE, int(number < 0), abs(number), 0)


def near(got: int, want: Near, kind: str) -> bool:
    """Whether a bit pattern lies within `want.ulp` units in the last place of the exact value."""
    fmt = BY_NAME[kind]
    num = unpack(got, fmt)
    if math.isnan(want.value):
        return num.kind == NAN
    if num.kind == NAN:
        return False
    if want.value == 0 and want.spread:
        return abs(value(num)) <= want.spread
    if want.value == 0 or math.isinf(want.value):
        return got == of(want.value, fmt)
    magnitude = abs(want.value)
    exponent = max(math.frexp(magnitude)[1] - 1, 1 - fmt.bias)
    unit = math.ldexp(1.0, max(exponent - fmt.man, -1074))
    found = value(num)
    if num.kind == INF:
        beyond = math.ldexp(2.0 - 2.0**-fmt.man, fmt.bias) if fmt is not F64 else math.inf
        return (found > 0) == (want.value > 0) and magnitude + want.ulp * unit >= beyond
    if want.flushed and found == 0 and magnitude < math.ldexp(1.0, 1 - fmt.bias):
        return num.sign == (want.value < 0)
    return abs(found - want.value) <= want.ulp * unit + want.spread


# Rules: functions of bit patterns, for the probes.


def rule_add(
    fmt: Format, mode: int = NEAREST, flush_in: bool = False, flush_out: bool = False
) -> Callable[..., int]:
    def rule(a: int, b: int) -> int:
        return pack(add(unpack(a, fmt, flush_in), unpack(b, fmt, flush_in), mode), fmt, mode, flush_out)

    return rule


def rule_sub(fmt: Format, mode: int = NEAREST) -> Callable[..., int]:
    def rule(a: int, b: int) -> int:
        return pack(add(unpack(a, fmt), neg(unpack(b, fmt)), mode), fmt, mode)

    return rule


def rule_mul(
    fmt: Format, mode: int = NEAREST, flush_in: bool = False, flush_out: bool = False
) -> Callable[..., int]:
    def rule(a: int, b: int) -> int:
        return pack(mul(unpack(a, fmt, flush_in), unpack(b, fmt, flush_in)), fmt, mode, flush_out)

    return rule


def rule_fma(
    fmt: Format, mode: int = NEAREST, flush_in: bool = False, flush_out: bool = False
) -> Callable[..., int]:
    def rule(a: int, b: int, c: int) -> int:
        x, y, z = (unpack(each, fmt, flush_in) for each in (a, b, c))
        return pack(fma(x, y, z, mode), fmt, mode, flush_out)

    return rule


def convert(a: int, source: Format, target: Format, mode: int = NEAREST) -> int:
    return pack(unpack(a, source), target, mode)


def pick(a: int, b: int, fmt: Format, larger: bool) -> int:
    """min or max with a quiet NaN as missing data and -0 < +0; operands hold no signalling NaN."""
    left, right = unpack(a, fmt), unpack(b, fmt)
    if left.kind == NAN and right.kind == NAN:
        return ANY_NAN  # type: ignore[return-value]
    if left.kind == NAN or right.kind == NAN:
        return b if left.kind == NAN else a
    order = compare(left, right)
    if order == 0 and left.zero:
        order = right.sign - left.sign
    if order == 0:
        return a
    return a if (order == 1) == larger else b


def rule_pick(fmt: Format, larger: bool) -> Callable[..., int]:
    return lambda a, b: pick(a, b, fmt, larger)


def rule_pick3(fmt: Format, larger: bool, then: bool | None = None) -> Callable[..., int]:
    """Of two, then of that and the third; `then` where the second choice is another."""

    def rule(a: int, b: int, c: int) -> int:
        first = pick(a, b, fmt, larger)
        if first is ANY_NAN:
            return c if unpack(c, fmt).kind != NAN else first
        return pick(first, c, fmt, larger if then is None else then)

    return rule


def rule_med3(fmt: Format) -> Callable[..., int]:
    """The middle of three; with a NaN among them the least of the others (ISA: V_MED3)."""

    def rule(a: int, b: int, c: int) -> int:
        nums = [unpack(each, fmt) for each in (a, b, c)]
        if any(num.kind == NAN for num in nums):
            return rule_pick3(fmt, False)(a, b, c)
        return sorted((a, b, c), key=lambda each: (key(unpack(each, fmt)), -unpack(each, fmt).sign))[1]

    return rule


def integral(num: Num, mode: int) -> Num:
    """Rounded to an integral value, sign of zero kept."""
    if num.kind != FINITE:
        return num
    return Num(FINITE, num.sign, rounded(num.mag, -num.exp, mode, num.sign), 0)


def rule_integral(fmt: Format, mode: int) -> Callable[..., int]:
    return lambda a: pack(integral(unpack(a, fmt), mode), fmt)


def to_int(num: Num, low: int, high: int, mode: int = ZERO) -> int:
    """Conversion to an integer: NaN is 0, beyond the range the nearest end (ISA: V_CVT_I32_F32)."""
    if num.kind == NAN:
        return 0
    if num.kind == INF:
        return low if num.sign else high
    whole = signed(integral(num, mode))
    return min(max(whole, low), high)
