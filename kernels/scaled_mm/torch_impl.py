"""scaled_mm and scaled_mm_block through torch: any device, float32 inside.

torch's own products in 8 bits take some sizes, layouts and devices alone; here the codes become float32,
whose products are exact.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable import dtypes
from portable.kernels._lib.torch_products import float32_products
from portable.kernels.scaled_mm.reference import BLOCK, MX_GROUP


def scaled_mm(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    *, output_dtype: Any, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """c = ((mat_a @ mat_b) * scale_a) * scale_b + bias, rounded once; scale_a is [M, 1], scale_b [1, N]."""
    with float32_products(mat_a.device):
        c = torch.matmul(mat_a.float(), mat_b.float())
    return _result(c * scale_a * scale_b, bias, output_dtype)


def scaled_mm_block(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    *, output_dtype: Any, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """The sum over blocks of 128 along k, in ascending order, of their products times their two scales."""
    a, b, columns = mat_a.float(), mat_b.float(), mat_b.shape[1]
    c = a.new_zeros(len(a), columns)
    of_columns = scale_b.repeat_interleave(BLOCK, 1)[:, :columns]
    with float32_products(mat_a.device):
        for block, start in enumerate(range(0, len(b), BLOCK)):
            part = torch.matmul(a[:, start : start + BLOCK], b[start : start + BLOCK])
            c = c + part * (scale_a[:, block : block + 1] * of_columns[block : block + 1])
    return _result(c, bias, output_dtype)


def scaled_mm_mx(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    *, output_dtype: Any, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """The product of the numbers times their scales, powers of two: exact in float32."""
    length = mat_a.shape[1]
    of_a, of_b = (each.float().repeat_interleave(MX_GROUP, 1)[:, :length] for each in (scale_a, scale_b))
    with float32_products(mat_a.device):
        c = torch.matmul(mat_a.float() * of_a, mat_b.float() * of_b.T)
    return _result(c, bias, output_dtype)


def _result(c: Tensor, bias: Tensor | None, output_dtype: Any) -> Tensor:
    c = c if bias is None else c + bias.float()
    return c.to(dtypes.of(output_dtype).storage)
