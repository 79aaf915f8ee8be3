"""sparse_mm and sparse_scaled_mm through torch: any device, the product of the decompressed weight, float32
inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable import dtypes
from portable.kernels._lib.torch_products import float32_products
from portable.kernels.sparse_mm.reference import dense


def sparse_mm(x: Tensor, values: Tensor, meta: Tensor, bias: Tensor | None = None) -> Tensor:
    with float32_products(x.device):
        y = torch.matmul(x.float(), dense(values, meta).float().T)
    return (y if bias is None else y + bias.float()).to(x.dtype)


def sparse_scaled_mm(
    mat_a: Tensor, values: Tensor, meta: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    *, output_dtype: Any,
) -> Tensor:  # fmt: skip
    """c = ((mat_a @ w.T) * scale_a) * scale_b + bias, rounded once."""
    with float32_products(mat_a.device):
        c = torch.matmul(mat_a.float(), dense(values.float(), meta).T)
    c = c * scale_a * scale_b
    return (c if bias is None else c + bias.float()).to(dtypes.of(output_dtype).storage)
