"""The meaning of scaled_mm_mxfp4 and scaled_mm_nvfp4, in float64 on the CPU."""

from __future__ import annotations

from torch import Tensor

from portable.kernels._lib import minifloat

FP4 = "float4_e2m1fn_x2"
MX_BYTES, NV_BYTES = 16, 8
"""Bytes along k that share a scale: 32 and 16 numbers."""


def scaled_mm_mxfp4(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None
) -> Tensor:
    """c = a @ b + bias, of numbers times the scales of their groups."""
    c = numbers(mat_a, scale_a, MX_BYTES) @ numbers(mat_b.T, scale_b, MX_BYTES).T
    return c if bias is None else c + bias


def error_scale_mxfp4(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None
) -> dict[str, Tensor]:
    """The root of the sum of squares of the products, each times its scales, and |bias|."""
    a, b = numbers(mat_a, scale_a, MX_BYTES), numbers(mat_b.T, scale_b, MX_BYTES).T
    spread = (a.square() @ b.square()).sqrt()
    return {"c": spread if bias is None else spread + bias.abs()}


def scaled_mm_nvfp4(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, global_a: Tensor, global_b: Tensor,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """c = (a @ b) * global_a * global_b + bias, of numbers times the scales of their groups."""
    c = numbers(mat_a, scale_a, NV_BYTES) @ numbers(mat_b.T, scale_b, NV_BYTES).T * global_a * global_b
    return c if bias is None else c + bias


def error_scale_nvfp4(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, global_a: Tensor, global_b: Tensor,
    bias: Tensor | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """The root of the sum of squares of the products, each times its scales, and |bias|."""
    a, b = numbers(mat_a, scale_a, NV_BYTES), numbers(mat_b.T, scale_b, NV_BYTES).T
    spread = (a.square() @ b.square()).sqrt() * (global_a * global_b).abs()
    return {"c": spread if bias is None else spread + bias.abs()}


def numbers(rows: Tensor, scale: Tensor, size: int) -> Tensor:
    """Rows of bytes as numbers times their scales, one for each `size` bytes; in the scale's dtype."""
    found = minifloat.decode(minifloat.unpack(rows), FP4).to(scale.dtype)
    return found * scale.repeat_interleave(2 * size, 1)[:, : found.shape[1]]
