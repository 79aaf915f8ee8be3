"""matmul through torch: any device, any floating dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels._lib.torch_products import float32_products, wide_sums


def matmul(a: Tensor, b: Tensor, *, precision: str = "ieee") -> Tensor:
    """c = a @ b over the last two dimensions; leading dimensions broadcast."""
    if a.device.type == "cpu" and a.element_size() == 2:
        # torch's own 16-bit products on the CPU flush subnormal results to zero (seen 2026-11-21)
        return torch.matmul(a.float(), b.float()).to(a.dtype)
    if a.element_size() == 2:
        with wide_sums(a.dtype):
            return torch.matmul(a, b)
    if a.dtype != torch.float32:
        return torch.matmul(a, b)
    with float32_products(a.device, precision):
        return torch.matmul(a, b)
