"""The gradient formula of cross_entropy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import portable


def save(
    inputs: dict[str, Tensor], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Tensor, ...]:
    """What the backward pass needs: the inputs and lse."""
    return inputs["logits"], inputs["target"], outputs[1], inputs["weight"]


def backward(
    saved: tuple[Tensor, ...], params: dict[str, Any], needs: dict[str, bool], dloss: Tensor | None,
    dlse: Tensor | None,
) -> dict[str, Tensor | None]:  # fmt: skip
    """The gradient of the logits; the target and the weights have none."""
    logits, target, lse, weight = saved
    dloss = torch.zeros_like(lse) if dloss is None else dloss.contiguous()  # of a sum it is one number
    mean = weight_mean(weight, params["label_smoothing"])
    found = portable.cross_entropy_backward(dloss, logits, target, lse, dlse, weight, mean, **params)
    return {"logits": found, "target": None, "weight": None}


def weight_mean(weight: Tensor | None, label_smoothing: float) -> Tensor | None:
    """The mean of the weights, (1,), where the gradient depends on it."""
    return None if weight is None or label_smoothing == 0.0 else weight.mean().reshape(1)
