"""The gradient formula of layer_norm; the row statistics are computed again from x."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import portable


def save(
    inputs: dict[str, Tensor | None], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Any, ...]:
    """What the backward pass needs: x, weight and bias (of which only its presence and dtype count)."""
    return inputs["x"], inputs["weight"], inputs["bias"]


def backward(
    saved: tuple[Any, ...], params: dict[str, Any], needs: dict[str, bool], dy: Tensor
) -> dict[str, Tensor | None]:
    """The gradients of x, weight and bias."""
    x, weight, bias = saved
    dx, dweight, dbias = portable.layer_norm_backward(dy, x, weight, bias, eps=params["eps"])
    return {
        "x": dx if needs["x"] else None,
        "weight": dweight if needs["weight"] else None,
        "bias": dbias if needs["bias"] else None,
    }
