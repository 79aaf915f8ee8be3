"""The meaning of gated_linear, in float64 on the CPU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from portable.kernels.linear.reference import activate
from portable.kernels.linear.reference import error_scale as linear_scale

_BOTH = 2.0**-12
"""The errors of both sums, multiplied: the tolerance's factor of float32's unit is less than this up to K of
25000."""


def gated_linear(x: Tensor, w_gate_up: Tensor, activation: str) -> Tensor:
    """y = activation(x @ gate.T) * (x @ up.T) over the last dimension; gate and up are [N, K]."""
    gate, up = w_gate_up.unbind(0)
    return activate(F.linear(x, gate), activation) * F.linear(x, up)


def error_scale(x: Tensor, w_gate_up: Tensor, activation: str) -> dict[str, Tensor]:
    """The scale of its error: that of linear with the activation, times |up|; and of up as linear's without,
    times the activation. Where both factors cancel, their errors' product is left."""
    gate, up = w_gate_up.unbind(0)
    of_gate = linear_scale(x, gate, activation=activation)["y"]
    of_up = linear_scale(x, up)["y"]
    value = activate(F.linear(x, gate), activation)
    return {"y": of_gate * F.linear(x, up).abs() + value.abs() * of_up + _BOTH * of_gate * of_up}
