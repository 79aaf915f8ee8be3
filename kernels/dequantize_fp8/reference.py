"""The meaning of the dequantisers: one product in IEEE float32, rounded from float64, and one more rounding.

A product of two float32 numbers that float64 has rounded is rounded to float32 as the exact one is: float64
has more than twice the bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from portable.kernels._lib import minifloat

GROUP, MX_GROUP, NV_GROUP = 128, 32, 16
FP4 = "float4_e2m1fn_x2"
LEAST, MOST = -128, 127
"""The ends of int8."""


def row(q: Tensor, scale: Tensor, types: Mapping[str, str]) -> Tensor:
    """y by a scale per row."""
    return _scaled(q, scale, types)


def groups(q: Tensor, scale: Tensor, types: Mapping[str, str]) -> Tensor:
    """y by a scale per 128 neighbours."""
    return _scaled(q, _across(scale, GROUP, q.shape[-1]), types)


def tiles(q: Tensor, scale: Tensor, types: Mapping[str, str]) -> Tensor:
    """y by a scale per tile of 128 x 128."""
    down = scale.repeat_interleave(GROUP, -2)[..., : q.shape[-2], :]
    return _scaled(q, _across(down, GROUP, q.shape[-1]), types)


def mx(q: Tensor, scale: Tensor, types: Mapping[str, str]) -> Tensor:
    """y by a power of two per 32 neighbours."""
    return _scaled(q, _across(scale, MX_GROUP, q.shape[-1]), types)


def mxfp4(q: Tensor, scale: Tensor, types: Mapping[str, str]) -> Tensor:
    """y from two codes in a byte, by a power of two per 32 neighbours."""
    return mx(minifloat.decode(minifloat.unpack(q), FP4), scale, types)


def nvfp4(q: Tensor, scale: Tensor, global_scale: Tensor, types: Mapping[str, str]) -> Tensor:
    """y from two codes in a byte, by a scale per 16 neighbours, exactly, and one of all of q."""
    found = minifloat.decode(minifloat.unpack(q), FP4)
    exact = found * _across(scale.double(), NV_GROUP, found.shape[-1])
    return _scaled(exact, global_scale, types)


def int8(q: Tensor, scale: Tensor, zero_point: Tensor | None, types: Mapping[str, str]) -> Tensor:
    """y by a scale, and perhaps a zero point, per row."""
    wide = q.double()
    if zero_point is not None:
        wide = wide - zero_point.clamp(LEAST, MOST).double()
    return _scaled(wide, scale, types)


def _across(scale: Tensor, group: int, columns: int) -> Tensor:
    return scale.repeat_interleave(group, -1)[..., :columns]


def _scaled(q: Tensor, scale: Tensor, types: Mapping[str, str]) -> Tensor:
    product = (q.double() * scale.double()).float()
    rounded = product.to(getattr(torch, types["R"]))
    return rounded.to(scale.dtype) if scale.dtype == torch.float64 else rounded
