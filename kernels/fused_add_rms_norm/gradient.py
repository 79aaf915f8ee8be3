"""The gradient formula of fused_add_rms_norm. Where a caller uses one of the two results alone, the other's
gradient is None."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import portable


def save(
    inputs: dict[str, Tensor | None], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Any, ...]:
    """The sum, which is all that its gradient needs of x and residual, and the weight."""
    return outputs[1], inputs["weight"]


def backward(
    saved: tuple[Any, ...],
    params: dict[str, Any],
    needs: dict[str, bool],
    dy: Tensor | None,
    dnew_residual: Tensor | None,
) -> dict[str, Tensor | None]:
    """The gradients of x, residual, which are one tensor, and weight."""
    new_residual, weight = saved
    if dy is None:
        dx, dweight = dnew_residual, None if weight is None else torch.zeros_like(weight)
    elif dnew_residual is None:
        dx, dweight = portable.rms_norm_backward(dy, new_residual, weight, **params)
    else:
        dx, dweight = portable.fused_add_rms_norm_backward(dy, new_residual, dnew_residual, weight, **params)
    grads = {"x": dx, "residual": dx, "weight": dweight}
    return {name: grad if needs[name] else None for name, grad in grads.items()}
