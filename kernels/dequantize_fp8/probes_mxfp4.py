"""Exact answers of dequantize_mxfp4: every code by every power of two, in both halves of a byte."""

from __future__ import annotations

import torch

from portable.kernels._lib import minifloat
from portable.kernels.dequantize_fp8.probes import TO, Call, same
from portable.kernels.dequantize_fp8.reference import FP4


def pairs(scales: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All bytes of two codes by all bytes of `scales`, 8 bytes a row; both, and their products in float64."""
    each = torch.arange(256).to(torch.uint8)
    q = each.view(1, 32, 8).expand(256, 32, 8).reshape(256 * 32, 8).contiguous()
    scale = each[:, None].expand(256, 32).reshape(256 * 32, 1).contiguous()
    exact = minifloat.decode(minifloat.unpack(q), FP4) * minifloat.decode(scale, scales)
    return q, scale.view(getattr(torch, scales)), exact


def every_pair_and_byte(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """each byte of two codes by each of the 256 powers of two: 0 is 2^-127, 255 is NaN"""
    q, scale, exact = pairs("float8_e8m0fnu")
    for to in TO:
        (y,) = call({"q": q.to(device), "scale": scale.to(device), "output_dtype": to})
        if not same(y.cpu(), exact.float().to(to)):
            return False
    return True


PROBES = (every_pair_and_byte,)
