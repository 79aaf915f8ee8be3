"""The gradients of index_add: dy itself for input, its rows by the index for source."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import portable


def save(
    inputs: dict[str, Tensor], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Tensor, ...]:
    """What the backward pass needs: the index."""
    return (inputs["index"],)


def backward(
    saved: tuple[Tensor, ...], params: dict[str, Any], needs: dict[str, bool], dy: Tensor
) -> dict[str, Tensor | None]:
    found: dict[str, Tensor | None] = dict.fromkeys(needs)
    if needs["source"]:
        found["source"] = portable.index_add_backward(dy, saved[0], alpha=params["alpha"])
    if needs["input"]:
        found["input"] = dy
    return found
