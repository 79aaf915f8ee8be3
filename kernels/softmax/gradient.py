"""The gradient formula of softmax; it needs the output alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import portable


def save(
    inputs: dict[str, Tensor | None], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Any, ...]:
    """What the backward pass needs: y."""
    return (outputs[0],)


def backward(
    saved: tuple[Any, ...], params: dict[str, Any], needs: dict[str, bool], dy: Tensor
) -> dict[str, Tensor | None]:
    """The gradient of x."""
    (y,) = saved
    return {"x": portable.softmax_backward(dy, y, params["dim"]) if needs["x"] else None}
