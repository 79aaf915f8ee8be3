"""sparse_mm through torch: any device, the product of the decompressed weight, float32 inside."""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels._lib.torch_products import float32_products
from portable.kernels.sparse_mm.reference import dense


def sparse_mm(x: Tensor, values: Tensor, meta: Tensor, bias: Tensor | None = None) -> Tensor:
    with float32_products(x.device):
        y = torch.matmul(x.float(), dense(values, meta).float().T)
    return (y if bias is None else y + bias.float()).to(x.dtype)
