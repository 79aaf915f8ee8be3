"""The meaning of index_add and of the gradient of its source, in float64 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels._lib.segments import inside, segments
from portable.kernels.embedding.reference import scale_of_sums


def index_add(
    input: Tensor, index: Tensor, source: Tensor, order: Tensor, starts: Tensor, ends: Tensor, *,
    alpha: float = 1.0,
) -> Tensor:  # fmt: skip
    """y[r] = input[r] + alpha * the sum of source[i] over all i with index[i] = r."""
    kept = inside(index, len(input))
    return input.index_add(0, index[kept], alpha * source[kept])


def error_scale(
    input: Tensor, index: Tensor, source: Tensor, order: Tensor, starts: Tensor, ends: Tensor, *,
    alpha: float = 1.0,
) -> dict[str, Tensor]:  # fmt: skip
    """The scale of its error: that of the sum, and input where there is one."""
    kept = inside(index, len(input))
    terms = scale_of_sums(len(input), index[kept], alpha * source[kept])
    return {"y": torch.where((ends > starts)[:, None], input.abs(), 0.0) + terms}


def derived(index: Tensor, axes: dict[str, int]) -> dict[str, Tensor]:
    """What the indices say of the rows."""
    return dict(zip(("order", "starts", "ends"), segments(index, axes["R"]), strict=True))


def index_add_backward(dy: Tensor, index: Tensor, *, alpha: float = 1.0) -> Tensor:
    """dsource[i] = alpha * dy[index[i]]; zeros where the index is outside the rows."""
    kept = inside(index, len(dy))
    return torch.where(kept[:, None], alpha * dy[torch.where(kept, index, 0)], 0.0)
