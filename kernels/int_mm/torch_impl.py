"""int_mm and int8_scaled_mm through torch: any device, exact.

torch._int_mm takes some sizes and layouts alone on GPUs. On CPUs without VNNI oneDNN may add pairs of
products in 16 bits; with VNNI strides of 0, or those of sizes of 1, make it silently wrong (torch 2.13,
2026-11-27). Elsewhere products in float32 of PART elements along k, whose sums are at most 2^24, are added in
int32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable import dtypes
from portable.kernels._lib.torch_products import float32_products

PART = 1024
"""2^24 / 128^2: float32 holds each sum of so many products of int8."""


def int_mm(a: Tensor, b: Tensor) -> Tensor:
    """c = a @ b, modulo 2^32."""
    if a.device.type == "cpu" and min(*a.shape, b.shape[1]) > 1 and torch.cpu._is_vnni_supported():
        right = b if b.t().is_contiguous() else b.contiguous()
        return torch._int_mm(a.contiguous(), right)  # pyright: ignore[reportPrivateImportUsage]
    c = a.new_zeros(len(a), b.shape[1], dtype=torch.int32)
    with float32_products(a.device):
        for start in range(0, len(b), PART):
            part = torch.matmul(a[:, start : start + PART].float(), b[start : start + PART].float())
            c = c + part.to(torch.int32)
    return c


def int8_scaled_mm(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    a_zero_point: Tensor | None = None, *, output_dtype: Any,
) -> Tensor:  # fmt: skip
    """c = ((int_mm less the zero points' part) * scale_a) * scale_b + bias, rounded once."""
    acc = int_mm(mat_a, mat_b)
    if a_zero_point is not None:
        acc = acc - a_zero_point * mat_b.sum(0, dtype=torch.int32)
    c = acc.float() * scale_a * scale_b
    c = c if bias is None else c + bias.float()
    return c.to(dtypes.of(output_dtype).storage)
