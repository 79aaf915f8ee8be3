"""int4_mm through torch: any device, float32 inside, a product for each group."""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels._lib.torch_products import float32_products
from portable.kernels.int4_mm.reference import numbers


def int4_mm(
    x: Tensor, weight: Tensor, scale: Tensor, zero_point: Tensor | None = None, offset: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    wide, w = x.float(), numbers(weight, zero_point).float()
    scale, offset = scale.float(), None if offset is None else offset.float()
    y = wide.new_zeros(*x.shape[:-1], len(weight))
    with float32_products(x.device):
        for group, part in enumerate(wide.unflatten(-1, (weight.shape[1], -1)).unbind(-2)):
            y = y + torch.matmul(part, w[:, group].T) * scale[:, group]
            if offset is not None:
                y = y + part.sum(-1, keepdim=True) * offset[:, group]
    return (y if bias is None else y + bias.float()).to(x.dtype)
