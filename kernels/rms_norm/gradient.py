"""The gradient formula of rms_norm; the row statistics are computed again from x."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import portable


def save(
    inputs: dict[str, Tensor | None], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Any, ...]:
    """What the backward pass needs: x and weight."""
    return inputs["x"], inputs["weight"]


def backward(
    saved: tuple[Any, ...], params: dict[str, Any], needs: dict[str, bool], dy: Tensor
) -> dict[str, Tensor | None]:
    """The gradients of x and weight."""
    x, weight = saved
    dx, dweight = portable.rms_norm_backward(dy, x, weight, eps=params["eps"])
    return {
        "x": dx if needs["x"] else None,
        "weight": dweight if needs["weight"] else None,
    }
