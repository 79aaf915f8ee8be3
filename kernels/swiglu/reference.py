"""The meaning of swiglu and of its gradient, in float64 on the CPU.

Magnitudes are the error scales of the accuracy bound: the terms of each result before they cancel.
"""

from __future__ import annotations

import torch
from torch import Tensor

# In float32, 1 / (1 + exp(-g)) is 0 once exp(-g) overflows, and imprecise a little before: an error of
# at most 2^-126 in the sigmoid, here in the bound's units of 2^-23.
_UNDERFLOW = 2.0**-103


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """y = silu(gate) * up, silu(g) = g / (1 + exp(-g))."""
    return gate * torch.sigmoid(gate) * up


def _exponent(gate: Tensor) -> Tensor:
    """How many units the rounding of exp's argument moves the sigmoid by: |g| * (1 - sigmoid(g))."""
    return gate.abs() * torch.sigmoid(-gate)


def error_scale(gate: Tensor, up: Tensor) -> dict[str, Tensor]:
    """The scale of swiglu's error beyond |ref|: |y| * |g| * (1 - sigmoid(g)), what a rounded argument
    of exp does where exp is reached through exp2(g * log2(e)); and the sigmoid's underflow."""
    return {"y": swiglu(gate, up).abs() * _exponent(gate) + (gate * up).abs() * _UNDERFLOW}


def swiglu_backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """dgate = dy * up * s * (1 + g * (1 - s)) and dup = dy * g * s, where s = sigmoid(g)."""
    s = torch.sigmoid(gate)
    return dy * up * s * (1 + gate * torch.sigmoid(-gate)), dy * gate * s


def error_scale_backward(dy: Tensor, gate: Tensor, up: Tensor) -> dict[str, Tensor]:
    """The scale of its error.

    In dgate, 1 + g * (1 - s) cancels near g = -1.28: its terms are 1 + t, t = |g| * (1 - s). s itself
    moves by t units relatively and 1 - s by |g| * s, both from exp's rounded argument. And s underflows.
    """
    s = torch.sigmoid(gate)
    t = _exponent(gate)
    slope = s * ((1 + t) * (1 + t) + t * gate.abs() * s) + (1 + gate.abs()) * _UNDERFLOW
    return {"dgate": (dy * up).abs() * slope, "dup": (dy * gate).abs() * (s * t + _UNDERFLOW)}
