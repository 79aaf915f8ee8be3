"""The meaning of activation, in float64 on the CPU: linear's activations, alone.

Magnitudes are the error scales of the accuracy bound: the terms of each result before they cancel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from portable.kernels.linear.reference import QUICK, activate

# In float32, 1 / (1 + exp(-x)) and Phi(x) are 0 or imprecise below 2^-126: an error of at most that in the
# factor of x, here in the bound's units of 2^-23.
UNDERFLOW = 2.0**-103


def activation(x: Tensor, activation: str) -> Tensor:
    """y = f(x), f by name."""
    return activate(x, activation)


def error_scale(x: Tensor, activation: str) -> dict[str, Tensor]:
    """The scale of its error beyond |ref|."""
    return {"y": factor_scale(x, activation)}


def factor_scale(x: Tensor, activation: str) -> Tensor:
    """|f(x)| times the units that one unit of an exponential's argument moves it by, and the underflow.

    f = x * s: for s = sigmoid(v) these are |v| * (1 - s); for s = Phi(x) they are |x| * phi(x) / Phi(x),
    about x^2 in the lower tail. relu and relu2 have no exponential.
    """
    if activation in ("relu", "relu2"):
        return torch.zeros_like(x)
    if activation == "gelu":
        units = x.abs() * math.sqrt(2 / math.pi) / torch.special.erfcx(-math.sqrt(0.5) * x)
    else:
        v = _argument(x, activation)
        units = v.abs() * torch.sigmoid(-v)
    return activate(x, activation).abs() * units + x.abs() * UNDERFLOW


def _argument(x: Tensor, activation: str) -> Tensor:
    """v where f(x) = x * sigmoid(v)."""
    if activation == "gelu_tanh":
        return 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return QUICK * x if activation == "quick_gelu" else x
