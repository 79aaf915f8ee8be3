"""The meaning of quantize_mx: a power of two per 32 neighbours, and numbers divided by it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from portable import dtypes
from portable.kernels._lib import minifloat

GROUP, FP4 = 32, "float4_e2m1fn_x2"
LEAST, NAN_SCALE = -127, torch.nan


def top_exponent(dtype: str) -> int:
    """Of the largest number of a type: 8 of float8_e4m3fn."""
    return int(torch.frexp(torch.tensor(minifloat.largest(dtype), dtype=torch.float64))[1]) - 1


def exponents(amax: Tensor, rounding: str, dtype: str) -> Tensor:
    """The exponents of two, from -127 on, for the greatest |x| of groups, float64; those of NaN and Inf mean
    nothing."""
    size = torch.where(amax.isfinite(), amax, 1.0)
    if rounding == "rceil":  # of a product in float32, as the conversion of NVIDIA's GPUs has it
        inverse = ctypes.c_float(1 / minifloat.largest(dtype)).value
        size, top = (size * inverse).float().double(), 0
    else:
        top = top_exponent(dtype)
    fraction, exponent = torch.frexp(size)  # size = fraction * 2^exponent, fraction from 1/2 on
    if rounding in ("ceil", "rceil"):
        above = exponent - (fraction == 0.5).int()
    elif rounding == "even":
        last = 2.0 ** -(dtypes.of(dtype).mantissa + 1)  # of a fraction
        above = exponent - 1 + (fraction + last / 2 >= 1.0).int()
    else:
        above = exponent - 1
    found = (above - top).clamp(min=LEAST)
    return torch.where(size == 0, LEAST, found)


def quantize_mx(x: Tensor, rounding: str, types: Mapping[str, str]) -> tuple[Tensor, Tensor]:
    """q and a scale per 32 neighbours."""
    scaled, scale = _scaled(x, rounding, types["Q"])
    return minifloat.rounded(scaled, types["Q"])[..., : x.shape[-1]].to(x.dtype), scale.to(x.dtype)


def quantize_mxfp4(x: Tensor, rounding: str) -> tuple[Tensor, Tensor]:
    """The same of numbers of 4 bits, two in a byte of q; a row of an odd length as if a 0 followed."""
    scaled, scale = _scaled(x, rounding, FP4)
    codes = minifloat.pack(minifloat.encode(scaled, FP4))
    return codes[..., : -(-x.shape[-1] // 2)].contiguous(), scale.to(x.dtype)


def _scaled(x: Tensor, rounding: str, dtype: str) -> tuple[Tensor, Tensor]:
    """Numbers over their scale, in whole groups, with zeros after the row's end, and the scales, float64."""
    k = x.shape[-1]
    parts = pad(x.double(), (0, -k % GROUP)).unflatten(-1, (-1, GROUP)) if k else x.double()[..., None]
    amax = parts.abs().amax(-1, keepdim=True)
    exponent = exponents(amax, rounding, dtype).double()
    scale = torch.where(amax.isfinite(), torch.exp2(exponent), NAN_SCALE)
    scaled = (parts * torch.exp2(-exponent)).float().double()  # exact but for what is rounded to 0 next
    return torch.where(amax.isfinite(), scaled, torch.nan).flatten(-2), scale[..., 0]
