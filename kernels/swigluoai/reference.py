"""The meaning of swigluoai and of its gradient, in float64 on the CPU.

Magnitudes are the error scales of the accuracy bound: the terms of each result before they cancel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels.activation.reference import UNDERFLOW
from portable.kernels.linear.reference import activation_backward
from portable.kernels.linear.reference import error_scale_backward as slope_scale


def _limited(x: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    gate, up = x.unbind(-1)
    return gate.clamp(max=limit), up.clamp(-limit, limit)


def swigluoai(x: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """y = (up + 1) * gate * sigmoid(alpha * gate), after gate and up are brought within the limit."""
    gate, up = _limited(x, limit)
    return (up + 1) * (gate * torch.sigmoid(alpha * gate))


def error_scale(x: Tensor, alpha: float = 1.702, limit: float = 7.0) -> dict[str, Tensor]:
    """The scale of its error beyond |ref|: up + 1 is rounded once, so what remains is that of the sigmoid:
    the rounded argument of exp moves it by |v| * (1 - sigmoid(v)) units, v = alpha * gate; and its
    underflow."""
    gate, up = _limited(x, limit)
    return {"y": (up + 1).abs() * _swish_scale(gate, alpha)}


def _swish_scale(gate: Tensor, alpha: float) -> Tensor:
    v = alpha * gate
    return gate.abs() * (torch.sigmoid(v) * v.abs() * torch.sigmoid(-v) + UNDERFLOW)


def swigluoai_backward(dy: Tensor, x: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """dgate = dy * (up + 1) * s * (1 + v * (1 - s)) and dup = dy * gate * s, s = sigmoid(v), v = alpha *
    gate.

    Where gate or up is beyond its limit, or NaN, its gradient is 0: torch's clamp has it so.
    """
    gate, up = _limited(x, limit)
    dgate = activation_backward(dy * (up + 1), alpha * gate, "silu")
    dup = dy * (gate * torch.sigmoid(alpha * gate))
    return torch.stack(_masked(x, limit, dgate, dup), -1)


def _masked(x: Tensor, limit: float, dgate: Tensor, dup: Tensor) -> tuple[Tensor, Tensor]:
    gate, up = x.unbind(-1)
    return torch.where(gate <= limit, dgate, 0.0), torch.where(up.abs() <= limit, dup, 0.0)


def error_scale_backward(
    dy: Tensor, x: Tensor, alpha: float = 1.702, limit: float = 7.0
) -> dict[str, Tensor]:
    """The scale of its error: of dgate that of silu's slope at v, of dup that of gate * s."""
    gate, up = _limited(x, limit)
    dgate = slope_scale(dy * (up + 1), alpha * gate, "silu")["dz"]
    dup = dy.abs() * _swish_scale(gate, alpha)
    return {"dx": torch.stack(_masked(x, limit, dgate, dup), -1)}
