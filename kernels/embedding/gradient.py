"""The gradient of embedding's weight: the rows of dy, sorted by their token, added in segments."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import portable
from portable.kernels._lib.segments import segments


def save(
    inputs: dict[str, Tensor], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Tensor, ...]:
    """What the backward pass needs: the indices, and how many rows there are. A tensor of no elements has
    that, and is not the weight, which may be updated before the backward pass."""
    weight = inputs["weight"]
    return inputs["input"], weight.new_empty((len(weight), 0))


def backward(
    saved: tuple[Tensor, ...], params: dict[str, Any], needs: dict[str, bool], dy: Tensor
) -> dict[str, Tensor | None]:
    input, rows = saved
    return {"input": None, "weight": of_weight(dy, input, len(rows), params["padding_idx"])}


def of_weight(dy: Tensor, input: Tensor, count: int, padding_idx: int | None) -> Tensor:
    """The gradient of `count` rows from that of the rows that `input` took of them."""
    index = input.reshape(-1)
    padding_idx = -1 if padding_idx is None else padding_idx % count
    dy = dy.reshape(index.shape[0], dy.shape[-1])
    return portable.embedding_backward(dy, index, *segments(index, count), padding_idx=padding_idx)
