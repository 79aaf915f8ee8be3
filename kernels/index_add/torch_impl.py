"""index_add and the gradient of its source in torch's operations, which wait for no index."""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels._lib.segments import added, inside


def index_add(
    input: Tensor, index: Tensor, source: Tensor, order: Tensor, starts: Tensor, ends: Tensor, *,
    alpha: float = 1.0,
) -> Tensor:  # fmt: skip
    wide = torch.promote_types(input.dtype, torch.float32)
    return added(input.to(wide), index, source.to(wide) * alpha).to(input.dtype)


def index_add_backward(dy: Tensor, index: Tensor, *, alpha: float = 1.0) -> Tensor:
    if not len(dy):
        return dy.new_zeros(len(index), dy.shape[1])
    here = inside(index, len(dy))
    rows = dy[torch.where(here, index, 0).long()].to(torch.promote_types(dy.dtype, torch.float32))
    return torch.where(here[:, None], rows * alpha, 0.0).to(dy.dtype)
