"""Exact answers of quantize_mx, by integers alone.

A probe is a function of a call of the op (its arguments by name, answering q and the scales), a dtype and a
device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from portable.kernels.quantize_fp8.codes import OF_NAN, codes_of, near_midpoints, numbers

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
TYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
ROUNDINGS = ("floor", "rceil", "ceil", "even")
PLACES = (0, 1, 15, 16, 31)


def _answers(call: Call, x: Tensor, device: torch.device, **params: Any) -> tuple[Tensor, Tensor]:
    """The codes, any NaN as OF_NAN, and the bytes of the scales."""
    q, scale = call({"x": x.to(device), **params})
    return codes_of(q.cpu()), scale.cpu().view(torch.uint8).int()


def floor_log2(value: Fraction) -> int:
    power = value.numerator.bit_length() - value.denominator.bit_length()
    return power if value >= Fraction(2) ** power else power - 1


def byte_of(amax: float, rounding: str, most: float, mantissa: int) -> int:
    """The scale of a group, from the words of the summary; of a type, its largest number and the stored bits
    of its fractions."""
    value, top = Fraction(amax), floor_log2(Fraction(most))
    if rounding == "rceil":
        inverse = (torch.ones(()) / torch.tensor(most)).item()
        value, top = Fraction((torch.tensor(amax, dtype=torch.float64) * inverse).float().item()), 0
    if not value:
        return 0
    power = floor_log2(value)
    if rounding == "even":
        step = Fraction(2) ** (power - mantissa)
        power = floor_log2((value / step + Fraction(1, 2)) // 1 * step)
    elif rounding != "floor":
        power += value > Fraction(2) ** power
    return max(power - top + 127, 0)


def rows_of_amax(dtype: torch.dtype) -> tuple[Tensor, list[float]]:
    """A group in each row, and its amax: beside powers of two, midpoints of two numbers and types' largest
    numbers, and the smallest and the largest of x's type."""
    info = torch.finfo(dtype)
    points = [1.0, 1.5, 6.0, 448.0, 57344.0, 1 - 2.0**-4, 1.875, 1.9375, 1.75, info.tiny]
    most = torch.tensor([*points, info.smallest_normal * 3, 2.0**-8, 2.0**12, info.max], dtype=torch.float64)
    most = most.to(dtype)
    most = torch.cat(
        [most, *(torch.nextafter(most, torch.tensor(end, dtype=dtype)) for end in (0.0, info.max))]
    )
    x = torch.zeros(len(most), 32, dtype=dtype)
    x[:, 5] = -most
    return x, most.double().tolist()


def powers_of_two(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the scale is the power of two that the rounding says, beside powers of two, midpoints and the largest
    number, and for the smallest and the largest x"""
    x, amax = rows_of_amax(dtype)
    for kind in TYPES:
        most, mantissa = numbers(kind)[-1], 3 if kind == torch.float8_e4m3fn else 2
        for rounding in ROUNDINGS:
            _, scale = _answers(call, x, device, dtype=kind, rounding=rounding)
            if scale[:, 0].tolist() != [byte_of(each, rounding, most, mantissa) for each in amax]:
                return False
    return True


def nearest_even(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """x over the scale is rounded to the nearest, of two the one of an even code, and saturated"""
    for kind in TYPES:
        points, wanted = near_midpoints(kind)
        top = 2.0 ** floor_log2(Fraction(numbers(kind)[-1]))
        inside = points.abs() < 2 * top
        points, wanted = points[inside], wanted[inside]
        for factor in (1.0, 2.0**-20, 2.0**20):
            padded = torch.nn.functional.pad(points, (0, -len(points) % 31)).view(-1, 31)
            x = torch.nn.functional.pad(padded, (0, 1), value=top) * factor
            codes, scale = _answers(call, x, device, dtype=kind, rounding="floor")
            got = codes[:, :31].reshape(-1)[: len(points)]
            byte = 127 + floor_log2(Fraction(factor))
            if not (scale == byte).all() or not torch.equal(got, wanted):
                return False
    return True


def rows_of_greatest(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of 0.5 but for a 2 at one place, and which groups have it."""
    for length in (32, 33, 96, 1000, 66000):
        starts = {0, (length - 1) // 32 * 32, length // 64 * 32}
        inside = {start + each for start in starts for each in PLACES if start + each < length}
        places = torch.tensor(sorted(inside))
        x = torch.full((len(places), length), 0.5, dtype=dtype)
        x[torch.arange(len(places)), places] = -2.0
        yield x, torch.arange(-(-length // 32)) == (places // 32)[:, None]


def greatest_anywhere(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the greatest magnitude of a group is found wherever it is, and groups do not meet"""
    for x, with_two in rows_of_greatest(dtype):
        _, scale = _answers(call, x, device, dtype=torch.float8_e5m2)
        if not torch.equal(scale, torch.where(with_two, 127 - 14, 127 - 16).int()):
            return False
    return True


def rows_without_numbers(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Four rows of 100 with NaN, Inf and -Inf in the last three, and where their groups are; in the first the
    second group is of zeros, one of them negative."""
    x = torch.full((4, 100), -1.0, dtype=dtype)
    x[1, 40], x[2, 99], x[3, 0] = torch.nan, torch.inf, -torch.inf
    x[0, 32:64] = 0.0
    x[0, 40] = -0.0
    nan = torch.zeros(4, 100, dtype=torch.bool)
    nan[1, 32:64], nan[2, 96:], nan[3, :32] = True, True, True
    return x, nan


def without_numbers(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """NaN and Inf make their scale and group NaN, nothing else; of zeros the byte is 0 and the signs stay"""
    x, nan = rows_without_numbers(dtype)
    for kind in TYPES:
        for rounding in ROUNDINGS:
            codes, scale = _answers(call, x, device, dtype=kind, rounding=rounding)
            if not torch.equal(codes == OF_NAN, nan) or not torch.equal(scale == 255, nan[:, ::32]):
                return False
            zeros = torch.zeros(32, dtype=torch.int16)
            zeros[8] = 0x80
            if scale[0, 1] != 0 or not torch.equal(codes[0, 32:64], zeros):
                return False
    return True


PROBES = (powers_of_two, nearest_even, greatest_anywhere, without_numbers)
