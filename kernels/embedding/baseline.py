"""What a user of torch alone would call: the baselines of embedding's throughput."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.kernels._lib.segments import segments


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    return torch.nn.functional.embedding(input, weight, padding_idx)


def embedding_backward(
    dy: Tensor, index: Tensor, order: Tensor, starts: Tensor, ends: Tensor, *, padding_idx: int
) -> Tensor:
    """torch sorts the indices within its call; ours has them sorted."""
    return torch.ops.aten.embedding_dense_backward(dy, index, len(starts), padding_idx, False)


def derived(given: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Tensor]:
    """What the tokens' indices say of the rows."""
    return dict(zip(("order", "starts", "ends"), segments(given["index"], facts["V"]), strict=True))
