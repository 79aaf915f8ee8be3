"""Exact answers of the symmetric quantiser to 4 bits.

A probe is a function of a call of the op (its arguments by name, answering q and the scales), a dtype and a
device. Rows that have 7.5 as their greatest magnitude have the scale 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.kernels._lib import minifloat

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
FACTORS = (1.0, 2.0**-20, 2.0**12)
LENGTHS = (66, 130, 700, 5000)


def unpacked(q: Tensor) -> Tensor:
    """The codes of bytes, that of the even column first."""
    return minifloat.unpack(q).cpu().to(torch.int64)


def near_midpoints() -> tuple[Tensor, Tensor]:
    """float32 points from -7.5 to 7.5 and the integers, from -8 to 7, nearest to them: each integer, each
    midpoint, and what lies beside it."""
    middle = torch.arange(-7, 7) + 0.5
    beside = [torch.nextafter(middle, torch.tensor(end)) for end in (torch.inf, -torch.inf)]
    points = torch.cat([torch.arange(-7.0, 8.0), middle, *beside, torch.tensor([-7.5, 7.5])])
    return points, points.double().round().clamp(-8, 7)


def nearest_even(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """x is rounded to the nearest integer, of two the even one; 7.5 becomes 7 and -7.5 becomes -8"""
    points, wanted = near_midpoints()
    kind = torch.float32 if dtype == torch.bfloat16 else dtype
    points, wanted = points[points.to(kind) == points], wanted[points.to(kind) == points]
    pad = (0, len(points) % 2)
    for factor in FACTORS[:2] if kind == torch.float16 else FACTORS:
        x = torch.nn.functional.pad(points * factor, pad)[None].to(kind)
        if not torch.equal(x.double()[0, : len(points)], points.double() * factor):
            continue  # beyond float16's numbers
        q, scale = call({"x": x.to(device), "eps": 1e-30})
        codes = unpacked(q)[0, : len(points)]
        if scale.item() != factor or not torch.equal(codes - 8, wanted.long()):
            return False
    return True


def halves_of_a_byte(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the even column is in the lower half, for each of the codes in either"""
    numbers = torch.arange(-8.0, 8.0).clamp(-7.5, 7.5)
    low, high = numbers.repeat_interleave(16), numbers.repeat(16)
    x = torch.stack([low, high], -1).reshape(1, -1).to(dtype)
    q, scale = call({"x": x.to(device)})
    codes = torch.arange(16)
    wanted = codes.repeat_interleave(16) | codes.repeat(16) << 4
    return scale.item() == 1.0 and torch.equal(q.cpu()[0].long(), wanted)


def greatest_anywhere(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the greatest magnitude of a row is found wherever it is, of either sign"""
    for length in LENGTHS:
        places = torch.tensor([0, 63, 64, length // 2, length - 1])
        for sign in (1, -1):
            x = torch.full((len(places), length), 2.0, dtype=dtype)
            x[torch.arange(len(places)), places] = 15.0 * sign
            q, scale = call({"x": x.to(device)})
            wanted = torch.full(x.shape, 9)
            wanted[torch.arange(len(places)), places] = 15 if sign > 0 else 0
            if not (scale == 2).all() or not torch.equal(unpacked(q), wanted):
                return False
    return True


def without_numbers(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """NaN makes its row's scale NaN and Inf makes it Inf, with codes of 8; the row beside is as it was"""
    x = torch.zeros(6, 10, dtype=dtype)
    x[:, 4] = -7.5
    x[1, 2], x[2, 8], x[3, 0], x[4, 3], x[4, 5] = torch.nan, torch.inf, -torch.inf, torch.nan, torch.inf
    q, scale = call({"x": x.to(device)})
    codes, scale = unpacked(q), scale.cpu()[:, 0]
    if not scale[[1, 4]].isnan().all() or not (scale[2:4] == torch.inf).all() or not (codes[1:5] == 8).all():
        return False
    return all(codes[row].tolist() == [8] * 4 + [0] + [8] * 5 and scale[row] == 1 for row in (0, 5))


def next_to_nothing(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a row of zeros has the scale eps / 7.5, and what is below eps is divided by that"""
    x = torch.zeros(2, 8, dtype=dtype)
    x[1, 3:5] = torch.tensor([1.5, -3.0]) * 2.0**-20
    q, scale = call({"x": x.to(device), "eps": 7.5 * 2.0**-20})
    wanted = [[8] * 8, [8, 8, 8, 10, 5, 8, 8, 8]]
    return bool((scale == 2.0**-20).all()) and unpacked(q).tolist() == wanted


PROBES = (greatest_anywhere, nearest_even, halves_of_a_byte, without_numbers, next_to_nothing)
