"""The meaning of the quantisers to 4 bits: that of quantize_int8's steps, with 16 codes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from portable.kernels._lib import minifloat
from portable.kernels.int4_mm.reference import ZERO_POINT
from portable.kernels.quantize_int8.reference import half_range, nearest, scale_of

MOST = 15
"""The largest code."""


def _even(x: Tensor) -> Tensor:
    """With a 0 behind the last column of an odd row."""
    return pad(x, (0, x.shape[-1] % 2))


def symmetric(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """q and a scale per row; 7.5 is half the distance from the least to the largest code."""
    scale = scale_of(pad(x.abs(), (0, 1)).amax(-1, keepdim=True), MOST / 2, eps)
    codes = (nearest(_even(x), scale) + ZERO_POINT).clamp(0, MOST)
    return minifloat.pack(codes.to(torch.uint8)), scale.to(x.dtype)


def asymmetric(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """q, a scale and a zero point per row."""
    least, half = half_range(x)
    scale = scale_of(half.double() * 2, MOST, eps)
    zero = (-nearest(least, scale)).clamp(0, MOST)
    codes = (nearest(_even(x), scale) + zero).clamp(0, MOST)
    return minifloat.pack(codes.to(torch.uint8)), scale.to(x.dtype), zero.to(torch.uint8)
