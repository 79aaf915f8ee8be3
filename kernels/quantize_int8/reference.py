"""The meaning of the int8 quantisers: IEEE float32 in few roundings, each one of a float64 result.

A sum, quotient or product of two float32 numbers that float64 has rounded is rounded to float32 as the exact
one is: float64 has more than twice the bits.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

LEAST, MOST = -128, 127
"""The ends of int8. Symmetric codes leave out the lower one."""


def nearest(x: Tensor, scale: Tensor) -> Tensor:
    """The integers nearest to x over the scales, float64; 0 of NaN, and Inf stays."""
    inverse = (1 / scale.double()).float()
    scaled = (x.double() * inverse.double()).float()
    return torch.where(scaled.isnan(), 0.0, scaled.double().round())  # of two, the even one


def scale_of(size: Tensor, steps: float, eps: float) -> Tensor:
    """The scales, float32, of groups whose x are `size` apart at most."""
    return (size.double().clamp(min=ctypes.c_float(eps).value) / steps).float()  # clamp keeps NaN


def symmetric(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """q and a scale per row."""
    scale = scale_of(pad(x.abs(), (0, 1)).amax(-1, keepdim=True), MOST, eps)
    return nearest(x, scale).clamp(-MOST, MOST).to(torch.int8), scale.to(x.dtype)


def half_range(x: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest of each row's x and of 0, float64, and half of what the greatest is above it, float32."""
    with_zero = pad(x.double(), (0, 1))
    least = with_zero.amin(-1, keepdim=True)
    return least, ((with_zero.amax(-1, keepdim=True) - least) / 2).float()


def asymmetric(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """q, a scale and a zero point per row."""
    least, half = half_range(x)
    scale = scale_of(half.double() * 2, MOST - LEAST, eps)
    zero = (LEAST - nearest(least, scale)).clamp(LEAST, MOST)
    q = (nearest(x, scale) + zero).clamp(LEAST, MOST)
    return q.to(torch.int8), scale.to(x.dtype), zero.to(torch.int32)


def static(x: Tensor, scale: Tensor, zero_point: Tensor | None = None) -> Tensor:
    """q by a scale, and perhaps a zero point, that is given."""
    if zero_point is None:
        return nearest(x, scale).clamp(-MOST, MOST).to(torch.int8)
    return (nearest(x, scale) + zero_point.clamp(LEAST, MOST)).clamp(LEAST, MOST).to(torch.int8)


def given(bits: Any) -> dict[str, Tensor]:
    """For the suite: a scale from 2^-12 to 2^8, and a zero point, of int8 or a little beyond."""
    fraction = 1 + torch.from_numpy(bits.uniform(1))
    scale = fraction * torch.exp2(torch.from_numpy(bits.below(20, 1)).double() - 12)
    return {"scale": scale, "zero_point": torch.from_numpy(bits.below(400, 1)) - 200}
