"""embedding and its gradient in torch's operations, which wait for no index."""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels._lib.segments import added, inside


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """By torch.embedding: torch.nn.functional.embedding may be this package's own, put in its place."""
    count = len(weight)
    here = inside(input, count)
    padding_idx = -1 if padding_idx is None else padding_idx % count
    rows = torch.embedding(weight, torch.where(here, input, 0), padding_idx)
    return torch.where(here[..., None], rows, float("nan"))


def embedding_backward(
    dy: Tensor, index: Tensor, order: Tensor, starts: Tensor, ends: Tensor, *, padding_idx: int = -1
) -> Tensor:
    wide = dy.to(torch.promote_types(dy.dtype, torch.float32))
    index = torch.where(index == padding_idx, -1, index)
    return added(wide.new_zeros(len(starts), dy.shape[1]), index, wide).to(dy.dtype)
