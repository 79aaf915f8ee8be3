"""The meaning of quantize_nvfp4: IEEE float32, each number rounded once from float64.

A quotient or product of two float32 numbers that float64 has rounded is rounded to float32 as the exact one
is: float64 has more than twice the bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from portable.kernels._lib import minifloat

GROUP = 16
FP4, OF_SCALES = "float4_e2m1fn_x2", "float8_e4m3fn"
LEAST = 2.0**-6
"""The least scale, float8_e4m3fn's smallest normal number."""


def quantize_nvfp4(x: Tensor, global_scale: Tensor) -> tuple[Tensor, Tensor]:
    """q, two numbers in a byte, and a scale per 16 neighbours; a row of an odd length as if a 0 followed."""
    k, whole = x.shape[-1], global_scale.double()
    parts = pad(x.double(), (0, -k % GROUP)).unflatten(-1, (-1, GROUP)) if k else x.double()[..., None]
    amax = parts.abs().amax(-1, keepdim=True)
    wanted = _rounded(_rounded(amax / minifloat.largest(FP4)) / whole)
    scale = minifloat.rounded(wanted.clamp(LEAST, minifloat.largest(OF_SCALES)), OF_SCALES)  # NaN stays
    inverse = _rounded(_rounded(1 / whole) / scale)
    codes = minifloat.encode(_rounded(parts * inverse), FP4).flatten(-2)
    return minifloat.pack(codes)[..., : -(-k // 2)].contiguous(), scale[..., 0].to(x.dtype)


def _rounded(value: Tensor) -> Tensor:
    """float64 numbers as float32 has them."""
    return value.float().double()


def positive(bits: Any) -> dict[str, Tensor]:
    """For the suite: a scale from 2^-12 to 2^8."""
    fraction = 1 + torch.from_numpy(bits.uniform(1))
    return {"global_scale": fraction * torch.exp2(torch.from_numpy(bits.below(20, 1)).double() - 12)}
