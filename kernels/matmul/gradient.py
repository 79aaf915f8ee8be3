"""The gradient formula of matmul: two more matrix products."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import portable


def save(
    inputs: dict[str, Tensor | None], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Any, ...]:
    """What the backward pass needs: a and b."""
    return inputs["a"], inputs["b"]


def backward(
    saved: tuple[Any, ...], params: dict[str, Any], needs: dict[str, bool], dc: Tensor
) -> dict[str, Tensor | None]:
    """The gradients of a and b: dc @ b^T and a^T @ dc, summed over what was broadcast."""
    a, b = saved
    precision = params["precision"]
    da = db = None
    if needs["a"]:
        da = _summed(portable.matmul(dc, b.mT, precision=precision), a.shape)
    if needs["b"]:
        if b.dim() == 2 and a.dim() > 2:
            # One product over batch and rows together: rounded once, where a product per batch and a
            # sum over the batch would round each partial result.
            rows = math.prod(a.shape[:-1])
            a, dc = a.reshape(rows, a.shape[-1]), dc.reshape(rows, dc.shape[-1])
        db = _summed(portable.matmul(a.mT, dc, precision=precision), b.shape)
    return {"a": da, "b": db}


def _summed(grad: Tensor, shape: torch.Size) -> Tensor:
    return grad if grad.shape == shape else grad.sum_to_size(shape)
