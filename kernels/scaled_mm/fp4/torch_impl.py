"""scaled_mm_mxfp4 and scaled_mm_nvfp4 through torch: any device, float32 inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable import dtypes
from portable.kernels._lib.torch_products import float32_products
from portable.kernels.scaled_mm.fp4.reference import MX_BYTES, NV_BYTES, numbers


def scaled_mm_mxfp4(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    *, output_dtype: Any,
) -> Tensor:  # fmt: skip
    """The product of the numbers times their scales, powers of two: exact in float32."""
    c = _product(mat_a, mat_b, scale_a, scale_b, MX_BYTES)
    return _result(c, bias, output_dtype)


def scaled_mm_nvfp4(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, global_a: Tensor, global_b: Tensor,
    bias: Tensor | None = None, *, output_dtype: Any,
) -> Tensor:  # fmt: skip
    """That of the numbers times their groups' scales, 6 bits, and then the scales of the whole."""
    c = _product(mat_a, mat_b, scale_a, scale_b, NV_BYTES)
    return _result(c * global_a * global_b, bias, output_dtype)


def _product(mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, size: int) -> Tensor:
    a, b = numbers(mat_a, scale_a.float(), size), numbers(mat_b.T, scale_b.float(), size)
    with float32_products(mat_a.device):
        return torch.matmul(a, b.T)


def _result(c: Tensor, bias: Tensor | None, output_dtype: Any) -> Tensor:
    c = c if bias is None else c + bias.float()
    return c.to(dtypes.of(output_dtype).storage)
