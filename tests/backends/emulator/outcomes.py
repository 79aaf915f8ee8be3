"""What a test may expect of a stored result besides plain bits, and the comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SKIP = object()  # a result that the guides leave open


@dataclass(frozen=True)
class Half:
    low: Any
    high: int | None  # None: not compared


@dataclass(frozen=True)
class Upper:
    """A 16-bit result whose rule also says what the upper half of the register holds."""

    low: Any
    high: int | None


NAN = {"f32": (23, 8), "f16": (10, 5), "bf16": (7, 8), "f64": (52, 11)}


def is_nan(value: int, kind: str) -> bool:
    fraction, exponent = NAN[kind]
    return (
        value >> fraction & ((1 << exponent) - 1) == (1 << exponent) - 1
        and value & ((1 << fraction) - 1) != 0
    )


class AnyNaN:
    """An expected NaN, of whatever payload."""

    def __repr__(self) -> str:
        return "any NaN"


ANY_NAN = AnyNaN()


@dataclass(frozen=True)
class OneOf:
    """Several results that the manual allows."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Near:
    """An exact value (a float, f64 accuracy is enough) to be met within `ulp` units of the result's type."""

    value: float
    ulp: float = 1.0
    flushed: bool = False  # a subnormal result may be zero of its sign
    spread: float = 0.0  # absolute error allowed besides


def same(got: int, want: Any, kind: str, ulp: float = 0) -> bool:
    """Whether the stored bits are what was expected."""
    if isinstance(want, OneOf):
        return any(same(got, each, kind, ulp) for each in want.values)
    if isinstance(want, Half):
        if want.high is not None and got >> 16 != want.high:
            return False
        return same(got & 0xFFFF, want.low, kind, ulp)
    if kind in ("pkf16", "pkbf16"):
        low, high = want if isinstance(want, list) else (want & 0xFFFF, want >> 16)
        return same(got & 0xFFFF, low, kind[2:], ulp) and same(got >> 16, high, kind[2:], ulp)
    if kind == "pkf32":
        return same(got & 0xFFFFFFFF, want[0], "f32", ulp) and same(got >> 32, want[1], "f32", ulp)
    if want is ANY_NAN:
        return is_nan(got, kind)
    if isinstance(want, Near):
        from expect_float import near

        return near(got, want, kind)
    return got == want


def show(value: Any, kind: str = "") -> str:
    if isinstance(value, int):
        return f"0x{value:x}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(show(each) for each in value) + "]"
    if isinstance(value, Half):
        return f"(low {show(value.low)}, high {show(value.high)})"
    if isinstance(value, OneOf):
        return " or ".join(show(each) for each in value.values)
    return repr(value)
