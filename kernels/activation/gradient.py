"""The gradient formula of activation: one kernel, that of linear's activations."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import portable


def save(
    inputs: dict[str, Tensor | None], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Any, ...]:
    return (inputs["x"],)


def backward(
    saved: tuple[Any, ...], params: dict[str, Any], needs: dict[str, bool], dy: Tensor
) -> dict[str, Tensor | None]:
    """dx = dy * f'(x)."""
    (x,) = saved
    return {"x": portable.activation_backward(dy, x, params["activation"])}
