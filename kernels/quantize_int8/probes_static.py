"""Exact answers of the int8 quantiser with a given scale.

A probe is a function of a call of the op (its arguments by name, answering q), a dtype and a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.kernels.quantize_int8.points import near_midpoints

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]


def _codes(call: Call, x: Tensor, scale: float, zero: int | None, device: torch.device) -> Tensor:
    point = None if zero is None else torch.tensor([zero], dtype=torch.int32, device=device)
    given = {"scale": torch.tensor([scale], device=device), "zero_point": point}
    (q,) = call({"x": x.to(device), **given})
    return q.cpu()


def near_every_midpoint(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """every integer, each midpoint of two and what lies beside it have the nearest code, the even one of two;
    what is too large, Inf too, has an end: -127 without a zero point, -128 with one of 0"""
    for least, zero in ((-127, None), (-128, 0)):
        points, wanted = near_midpoints(least)
        for factor in (1.0, 0.25):
            if not torch.equal(_codes(call, points * factor, factor, zero, device), wanted):
                return False
    return True


def zero_points(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a zero point is added after the rounding and before saturation; one beyond int8 counts as its end; NaN
    has the code of 0"""
    x = torch.tensor([0.0, -0.0, torch.nan, -torch.nan, 0.5, 1.5, -2.5, 300.0, -300.0, torch.inf, -torch.inf])
    nearest = torch.tensor([0, 0, 0, 0, 0, 2, -2, 300, -300, 1000, -1000])
    for zero in (-128, -127, -1, 0, 1, 126, 127, -(2**31), 2**31 - 1, 300):
        wanted = (nearest + max(-128, min(zero, 127))).clamp(-128, 127).to(torch.int8)
        if not torch.equal(_codes(call, x, 1.0, zero, device), wanted):
            return False
    return _codes(call, x, 1.0, None, device).tolist() == [0, 0, 0, 0, 0, 2, -2, 127, -127, 127, -127]


def ends_of_float32(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """no subnormal number is taken for 0: of a scale, of its reciprocal, of x"""
    wanted = torch.tensor([2.0, -1.0, 3.0])
    for exponent in (126, 125, -126, -127):
        x = (wanted.double() * 2.0**exponent).float()
        if not torch.equal(_codes(call, x, 2.0**exponent, None, device), wanted.to(torch.int8)):
            return False
    return True


def no_scale(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a scale whose reciprocal is infinite, 0 too, makes the ends, and the code of 0 of 0; one of Inf or NaN
    the code of 0 of all that is finite"""
    x = torch.tensor([1.0, -1e-30, 0.0])
    for scale in (2.0**-149, 0.0):
        if _codes(call, x, scale, None, device).tolist() != [127, -127, 0]:
            return False
        if _codes(call, x, scale, 5, device).tolist() != [127, -128, 5]:
            return False
    return all(
        _codes(call, x, scale, zero, device).tolist() == [zero or 0] * 3
        for scale in (torch.inf, torch.nan)
        for zero in (None, 5)
    )


PROBES = (near_every_midpoint, zero_points, ends_of_float32, no_scale)
