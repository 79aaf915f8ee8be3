"""The meaning of embedding and of its gradient, in float64 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels._lib.segments import inside, segments


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """y[i] = weight[input[i]]; NaN where the index is outside the table. Row padding_idx has no gradient."""
    count = len(weight)
    here = inside(input, count)
    rows = weight[torch.where(here, input, 0)]
    if padding_idx is not None:
        rows = torch.where((input == padding_idx % count)[..., None], rows.detach(), rows)
    return torch.where(here[..., None], rows, torch.nan)


def _kept(index: Tensor, count: int, padding_idx: int) -> Tensor:
    return inside(index, count) & (index != padding_idx)


def embedding_backward(
    dy: Tensor, index: Tensor, order: Tensor, starts: Tensor, ends: Tensor, *, padding_idx: int = -1
) -> Tensor:
    """dweight[r] = the sum of dy[i] over the tokens i with index[i] = r; zeros for r = padding_idx."""
    kept = _kept(index, len(starts), padding_idx)
    return dy.new_zeros(len(starts), dy.shape[1]).index_add(0, index[kept], dy[kept])


def error_scale_backward(
    dy: Tensor, index: Tensor, order: Tensor, starts: Tensor, ends: Tensor, *, padding_idx: int = -1
) -> dict[str, Tensor]:
    """The scale of its error: the rounding of a sum of n terms grows with the root of n, and with the root of
    its sum of squares."""
    kept = _kept(index, len(starts), padding_idx)
    return {"dweight": scale_of_sums(len(starts), index[kept], dy[kept])}


def scale_of_sums(count: int, index: Tensor, rows: Tensor) -> Tensor:
    """The root of the number of rows of each index, times the root of the sum of their squares."""
    squares = rows.new_zeros(count, rows.shape[1]).index_add(0, index, rows.square())
    return (squares * torch.bincount(index, minlength=count)[:, None]).sqrt()


def derived(index: Tensor, axes: dict[str, int]) -> dict[str, Tensor]:
    """What the tokens' indices say of the rows."""
    return dict(zip(("order", "starts", "ends"), segments(index, axes["V"]), strict=True))
