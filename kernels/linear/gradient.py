"""The gradient formula of linear: the activation's slope, then two matrix products and a sum."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import portable


def save(
    inputs: dict[str, Tensor | None], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Any, ...]:
    """What the backward pass needs: the inputs. What the activation saw is computed again, which costs
    one product and saves a tensor of the output's size between the passes."""
    return inputs["x"], inputs["weight"], inputs["bias"]


def backward(
    saved: tuple[Any, ...], params: dict[str, Any], needs: dict[str, bool], dy: Tensor
) -> dict[str, Tensor | None]:
    """The gradients of x, weight and bias; the last is summed in at least float32, rounded once."""
    x, weight, bias = saved
    dz = dy
    if params["activation"] is not None:
        z = portable.linear(x, weight, bias)
        dz = portable.activation_backward(dy, z, params["activation"])
    rows = math.prod(x.shape[:-1])
    x2d, dz2d = x.reshape(rows, x.shape[-1]), dz.reshape(rows, dz.shape[-1])
    grads: dict[str, Tensor | None] = {"x": None, "weight": None, "bias": None}
    if needs["x"]:
        grads["x"] = portable.matmul(dz2d, weight).reshape(x.shape)
    if needs["weight"]:
        grads["weight"] = portable.matmul(dz2d.mT, x2d)
    if needs["bias"]:
        wide = torch.promote_types(dz.dtype, torch.float32)
        grads["bias"] = dz2d.sum(0, dtype=wide).to(bias.dtype)
    return grads
