"""The gradient formula of gated_linear: gate and up are computed again, as one product, rounded to x's dtype
as torch's are; then gated_activation's gradient and the two products of linear's."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import portable
from portable.kernels.linear.gradient import through_product


def save(
    inputs: dict[str, Tensor | None], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Any, ...]:
    """What the backward pass needs: the inputs. [gate | up], of twice y's size, is not kept."""
    return inputs["x"], inputs["w_gate_up"]


def backward(
    saved: tuple[Any, ...], params: dict[str, Any], needs: dict[str, bool], dy: Tensor
) -> dict[str, Tensor | None]:
    """The gradients of x and w_gate_up."""
    x, w_gate_up = saved
    weight = w_gate_up.flatten(0, 1)
    gate_up = portable.linear(x, weight).unflatten(-1, w_gate_up.shape[:2])
    both = portable.gated_activation_backward(dy, gate_up, params["activation"]).flatten(-2)
    wanted = {"x": needs["x"], "weight": needs["w_gate_up"], "bias": False}
    grads = through_product(x, weight, None, both, None, wanted)
    dweight = grads["weight"]
    return {"x": grads["x"], "w_gate_up": None if dweight is None else dweight.reshape(w_gate_up.shape)}
