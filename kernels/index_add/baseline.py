"""What a user of torch alone would call: the baselines of index_add's throughput."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.kernels._lib.segments import segments


def index_add(
    input: Tensor, index: Tensor, source: Tensor, order: Tensor, starts: Tensor, ends: Tensor, *, alpha: float
) -> Tensor:
    """torch adds with atomics, in the type of its tensors; ours has the indices sorted."""
    return torch.index_add(input, 0, index, source, alpha=alpha)


def index_add_backward(dy: Tensor, index: Tensor, *, alpha: float) -> Tensor:
    rows = dy.index_select(0, index)
    return rows if alpha == 1.0 else rows * alpha


def derived(given: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Tensor]:
    """What the indices say of the rows."""
    return dict(zip(("order", "starts", "ends"), segments(given["index"], facts["R"]), strict=True))
