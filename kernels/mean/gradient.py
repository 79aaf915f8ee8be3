"""The gradient formula of mean: dy / N for every element of a row, as a view of stride 0."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def save(
    inputs: dict[str, Tensor], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Tensor, ...]:
    """What the backward pass needs: how long the rows are. A tensor of no elements has that, and keeps no
    memory, as x itself would."""
    x = inputs["x"]
    return (x.new_empty((0, x.shape[-1])),)


def backward(
    saved: tuple[Tensor, ...], params: dict[str, Any], needs: dict[str, bool], dy: Tensor
) -> dict[str, Tensor | None]:
    length = saved[0].shape[-1]
    return {"x": (dy / length).unsqueeze(-1).expand(*dy.shape, length)}
