"""The meaning of gated_activation and of its gradient, in float64 on the CPU.

Magnitudes are the error scales of the accuracy bound: the terms of each result before they cancel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels.activation.reference import UNDERFLOW, factor_scale
from portable.kernels.linear.reference import activate, activation_backward
from portable.kernels.linear.reference import error_scale_backward as slope_scale


def gated_activation(x: Tensor, activation: str) -> Tensor:
    """y = f(gate) * up; gate is x[..., 0, :] and up is x[..., 1, :]."""
    gate, up = x.unbind(-2)
    return activate(gate, activation) * up


def error_scale(x: Tensor, activation: str) -> dict[str, Tensor]:
    """The scale of its error beyond |ref|: the activation's, times |up|."""
    gate, up = x.unbind(-2)
    return {"y": factor_scale(gate, activation) * up.abs()}


def gated_activation_backward(dy: Tensor, x: Tensor, activation: str) -> Tensor:
    """dgate = dy * f'(gate) * up and dup = dy * f(gate), side by side as x."""
    gate, up = x.unbind(-2)
    dgate = activation_backward(dy, gate, activation) * up
    return torch.stack([dgate, dy * activate(gate, activation)], -2)


def error_scale_backward(dy: Tensor, x: Tensor, activation: str) -> dict[str, Tensor]:
    """The scale of its error: of dgate that of the slope, and what f' loses below float32's range; of dup
    f's."""
    gate, up = x.unbind(-2)
    dgate = slope_scale(dy, gate, activation)["dz"] + dy.abs() * (1 + gate.abs()) * UNDERFLOW
    return {"dx": torch.stack([dgate * up.abs(), dy.abs() * factor_scale(gate, activation)], -2)}
