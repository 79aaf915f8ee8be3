"""Arithmetic by definition: fractions rounded once, C's division, distances in units of the last place;
and the numbers that it is tried on."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from .harness import Launcher


def ints(
    launch: Launcher, shape: int | tuple[int, ...], low: int = -(2**31), high: int = 2**31
) -> np.ndarray:
    return launch.rng.integers(low, high, shape).astype(np.int32)


def any_floats(launch: Launcher, n: int, kind: type = np.float32) -> np.ndarray:
    """Half random bits (every exponent, infinities, NaN, subnormals), half of everyday size.

    The last is a signalling NaN: NumPy's loops and what they leave over treat it differently.
    """
    bits = launch.rng.integers(0, 256, n * np.dtype(kind).itemsize, dtype=np.uint8).view(kind).copy()
    bits[::2] = (launch.rng.standard_normal(bits[::2].size) * 8).astype(kind)
    bits[1:12:2] = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, np.finfo(kind).smallest_subnormal], kind)
    words = bits.view(np.dtype(f"u{bits.itemsize}"))
    words[-1] = bits[5:6].view(words.dtype)[0] + 1
    return bits


def minimum_number(a: np.ndarray, b: np.ndarray | float) -> np.ndarray:
    """C's fmin of two arrays: the number where one of the two is a NaN, signalling or not.

    `np.fmin` gives NaN for a signalling one in the elements that its vectors leave over.
    """
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.minimum(a, b)))


def maximum_number(a: np.ndarray, b: np.ndarray | float) -> np.ndarray:
    """C's fmax, likewise."""
    return -minimum_number(-a, -np.asarray(b, a.dtype))


def finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, values.dtype.type(1.5))


def rounded(value: Fraction, kind: type) -> float:
    """The nearest number of a binary format, ties to even; the format's subnormals included."""
    info = np.finfo(kind)
    lowest = info.minexp - info.nmant
    if value == 0:
        return 0.0
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length() - 1
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** max(exponent - info.nmant, lowest)
    number = round(value / unit) * unit
    return (
        float(number)
        if abs(number) <= Fraction(float(info.max))
        else np.copysign(np.inf, float(value > 0) - 0.5)
    )


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c with one rounding, for finite numbers."""
    kind = a.dtype.type
    exact = [
        Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)
    ]
    return np.array([rounded(value, kind) for value in exact]).astype(kind)


def ulps(found: np.ndarray, wanted: np.ndarray, bound: float) -> None:
    """Every finite number is within `bound` units in the last place of the wide reference."""
    with np.errstate(over="ignore"):
        near = wanted.astype(found.dtype)
    usual = np.isfinite(near) & (np.abs(near) >= np.finfo(found.dtype).tiny)
    error = np.abs(found[usual].astype(np.longdouble) - wanted[usual]) / np.spacing(np.abs(near[usual]))
    assert error.size == 0 or error.max() <= bound, (
        f"{error.max()} ulp at {np.flatnonzero(usual)[error.argmax()]}"
    )
    rest, want = found[~usual], near[~usual]
    same = (rest == want) | (np.isnan(rest) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        close = np.abs(rest - want) <= bound * np.finfo(found.dtype).smallest_subnormal
    assert (same | close).all()


def truncated(a: np.ndarray, b: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
    """C's quotient and remainder, as Python numbers."""
    pairs = [(int(p), int(q)) for p, q in np.broadcast(a, b)]
    quotients = [abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1) for p, q in pairs]
    return np.array(quotients, object), np.array(
        [p - q * d for (p, q), d in zip(pairs, quotients, strict=True)]
    )
