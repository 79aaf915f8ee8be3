"""The meaning of the quantisers: IEEE float32 in three roundings, each one of a float64 result.

A quotient or product of two float32 numbers that float64 has rounded is rounded to float32 as the exact one
is: float64 has more than twice the bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from portable.kernels._lib import minifloat

GROUP = 128
_EXPONENT, _MANTISSA = 0x7F800000, 0x007FFFFF  # of float32


def scale_of(amax: Tensor, largest: float, power_of_2: bool, eps: float) -> Tensor:
    """The scales, float32, of the greatest |x| of groups."""
    least = ctypes.c_float(eps).value
    scale = (amax.double().clamp(min=least) / largest).float()  # clamp keeps NaN
    if not power_of_2:
        return scale
    bits = scale.view(torch.int32)
    more = ((bits & _MANTISSA) != 0).to(torch.int32)
    up = (bits & _EXPONENT) + more * (_MANTISSA + 1)
    return torch.where(scale.isnan(), scale, up.view(torch.float32))


def quantized(x: Tensor, scale: Tensor, dtype: str) -> Tensor:
    """The numbers of `dtype` that x becomes, float64; `scale`, float32, broadcasts."""
    inverse = (1 / scale.double()).float()
    return minifloat.rounded((x.double() * inverse.double()).float(), dtype)


def _amax(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The greatest |x|, 0 of nothing; NaN where there is one."""
    return pad(x.abs(), (0, 1)).amax(dims, keepdim=True) if 0 in x.shape else x.abs().amax(dims, keepdim=True)


def row(x: Tensor, power_of_2: bool, eps: float, types: Mapping[str, str]) -> tuple[Tensor, Tensor]:
    """q and a scale per row."""
    scale = scale_of(_amax(x, (-1,)), minifloat.largest(types["Q"]), power_of_2, eps)
    return quantized(x, scale, types["Q"]), scale.to(x.dtype)


def columns(x: Tensor, power_of_2: bool, eps: float, types: Mapping[str, str]) -> tuple[Tensor, Tensor]:
    """q and a scale per column, as rows."""
    return row(x.mT, power_of_2, eps, types)


def groups(x: Tensor, power_of_2: bool, eps: float, types: Mapping[str, str]) -> tuple[Tensor, Tensor]:
    """q and a scale per 128 neighbours."""
    q, scale = tiles(x[..., None, :], power_of_2, eps, types, rows=1)
    return q[..., 0, :], scale[..., 0, :]


def tiles(
    x: Tensor, power_of_2: bool, eps: float, types: Mapping[str, str], rows: int = GROUP
) -> tuple[Tensor, Tensor]:
    """q and a scale per tile of `rows` x 128; of a tile at the edge that of what is there."""
    m, k = x.shape[-2:]
    rows, columns = min(rows, max(m, 1)), min(GROUP, max(k, 1))
    down, across = -(-m // rows), -(-k // columns)
    whole = pad(x, (0, across * columns - k, 0, down * rows - m))
    parts = whole.reshape(*x.shape[:-2], down, rows, across, columns)
    scale = scale_of(parts.abs().amax((-3, -1), keepdim=True), minifloat.largest(types["Q"]), power_of_2, eps)
    q = quantized(parts, scale, types["Q"]).reshape(whole.shape)[..., :m, :k]
    return q, scale[..., :, 0, :, 0].to(x.dtype)


def static(x: Tensor, scale: Tensor, types: Mapping[str, str]) -> Tensor:
    """q by a scale that is given."""
    return quantized(x, scale, types["Q"])


def amax_scale(x: Tensor, largest: float, power_of_2: bool, eps: float) -> Tensor:
    """The scale of all of x."""
    amax = _amax(x.reshape(1, -1), (-1,)).reshape(1)
    return scale_of(amax, ctypes.c_float(largest).value, power_of_2, eps).to(x.dtype)


def positive(bits: Any) -> dict[str, Tensor]:
    """For the suite: a scale from 2^-12 to 2^8."""
    fraction = 1 + torch.from_numpy(bits.uniform(1))
    return {"scale": fraction * torch.exp2(torch.from_numpy(bits.below(20, 1)).double() - 12)}
