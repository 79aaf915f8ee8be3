"""The gradient formula of linear: the activation's derivative, then two matrix products and a sum."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import portable


def forward(params: dict[str, Any]) -> str | None:
    """The op that computes instead where a gradient is recorded: it takes the same and answers y first.

    Keeping what the activation saw, rounded to y's dtype as torch does, saves the backward pass one product.
    relu's derivative follows from y.
    """
    return None if params["activation"] in (None, "relu") else "linear_with_preactivation"


def save(
    inputs: dict[str, Tensor | None], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Any, ...]:
    """What the backward pass needs where this op computed: the inputs, and relu's result."""
    y = () if params["activation"] is None else outputs
    return inputs["x"], inputs["weight"], inputs["bias"], *y


def backward(
    saved: tuple[Any, ...], params: dict[str, Any], needs: dict[str, bool], dy: Tensor
) -> dict[str, Tensor | None]:
    """The gradients of x, weight and bias."""
    x, weight, bias, *y = saved
    dz, dbias = through_activation(dy, y[0], params["activation"], needs["bias"]) if y else (dy, None)
    return through_product(x, weight, bias, dz, dbias, needs)


def through_activation(dy: Tensor, z: Tensor, activation: str, sums: bool) -> tuple[Tensor, Tensor | None]:
    """The gradient of the activation's input and, optionally, its sum over the rows."""
    if sums:
        return portable.activation_backward_sums(dy, z, activation)
    return portable.activation_backward(dy, z, activation), None


def through_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dz: Tensor,
    dbias: Tensor | None,
    needs: dict[str, bool],
) -> dict[str, Tensor | None]:
    """The gradients of x, weight and bias from z's, z = x @ weight.T + bias; the bias', where it is not there
    yet, is summed in at least float32 and rounded once."""
    x2d, dz2d = _matrix(x), _matrix(dz)
    grads: dict[str, Tensor | None] = {"x": None, "weight": None, "bias": None}
    if needs["x"]:
        dx = portable.matmul(dz2d, weight)
        grads["x"] = dx if x2d is x else dx.reshape(x.shape)
    if needs["weight"]:
        grads["weight"] = portable.matmul(dz2d.mT, x2d)
    if needs["bias"] and dbias is not None:
        grads["bias"] = dbias
    elif needs["bias"] and bias is not None:
        grads["bias"] = sum_of_rows(dz2d)
    return grads


def sum_of_rows(rows: Tensor) -> Tensor:
    """In at least float32, rounded once. On a GPU torch adds 16-bit numbers so by itself."""
    if rows.is_cuda:
        return rows.sum(0)
    return rows.sum(0, dtype=torch.promote_types(rows.dtype, torch.float32)).to(rows.dtype)


def _matrix(rows: Tensor) -> Tensor:
    """The rows in one dimension."""
    return rows if rows.dim() == 2 else rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1])
