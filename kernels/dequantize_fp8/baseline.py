"""What a user of torch alone would write."""

from __future__ import annotations

import torch
from torch import Tensor

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The numbers of float4_e2m1fn, of which torch has no conversion."""


def row(q: Tensor, scale: Tensor, *, output_dtype: torch.dtype) -> Tensor:
    return (q.float() * scale).to(output_dtype)


def _groups(q: Tensor, scale: Tensor, group: int, output_dtype: torch.dtype) -> Tensor:
    return row(q, scale.repeat_interleave(group, -1)[..., : q.shape[-1]], output_dtype=output_dtype)


def groups(q: Tensor, scale: Tensor, *, output_dtype: torch.dtype) -> Tensor:
    return _groups(q, scale, 128, output_dtype)


def tiles(q: Tensor, scale: Tensor, *, output_dtype: torch.dtype) -> Tensor:
    return _groups(q, scale.repeat_interleave(128, -2)[..., : q.shape[-2], :], 128, output_dtype)


def mx(q: Tensor, scale: Tensor, *, output_dtype: torch.dtype) -> Tensor:
    return _groups(q, scale.float(), 32, output_dtype)


def numbers(q: Tensor) -> Tensor:
    """float32 of bytes of two codes of float4_e2m1fn."""
    table = torch.tensor([*FP4, *(-each for each in FP4)], device=q.device)
    return table[torch.stack((q & 15, q >> 4), -1).flatten(-2).int()]


def mxfp4(q: Tensor, scale: Tensor, *, output_dtype: torch.dtype) -> Tensor:
    return _groups(numbers(q), scale.float(), 32, output_dtype)


def nvfp4(q: Tensor, scale: Tensor, global_scale: Tensor, *, output_dtype: torch.dtype) -> Tensor:
    found = numbers(q)
    scaled = found * scale.float().repeat_interleave(16, -1)[..., : found.shape[-1]]
    return row(scaled, global_scale, output_dtype=output_dtype)


def int8(q: Tensor, scale: Tensor, zero_point: Tensor | None, *, output_dtype: torch.dtype) -> Tensor:
    if zero_point is None:
        return row(q, scale, output_dtype=output_dtype)
    return row(q.to(torch.int32) - zero_point.clamp(-128, 127), scale, output_dtype=output_dtype)
