"""The meaning of linear and its internal ops, in float64 on the CPU.

Magnitudes are the error scales of the accuracy bound: the terms of each result before they cancel.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715

# In float32, 1 / (1 + exp(-z)) is 0 once exp(-z) overflows, and imprecise a little before: an error of
# at most 2^-126 in the sigmoid, here in the bound's units of 2^-23.
_UNDERFLOW = 2.0**-103

QUICK = 1.702
"""quick_gelu's factor: x * sigmoid(1.702 x)."""

# The largest |activation'|: an error of the sum reaches the result at most so much enlarged.
_STEEPEST = {None: 1.0, "relu": 1.0, "gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1}


def activate(z: Tensor, activation: str | None) -> Tensor:
    """The activation by name: relu, relu2 (its square), gelu (with erf), gelu_tanh (its tanh form), silu,
    quick_gelu, or none.

    gelu is z/2 * (1 + f), written so that 1 + f does not cancel: from -8.3 on torch's is 0 in float64.
    """
    if activation is None:
        return z
    if activation == "relu":
        return torch.relu(z)
    if activation == "relu2":
        return torch.relu(z).square()
    if activation == "silu":
        return F.silu(z)
    if activation == "quick_gelu":
        return z * torch.sigmoid(QUICK * z)
    if activation == "gelu":
        return 0.5 * z * torch.special.erfc(-math.sqrt(0.5) * z)
    return z * torch.sigmoid(2 * _TANH_SCALE * (z + _TANH_CUBIC * z**3))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None) -> Tensor:
    """y = activation(x @ weight.T + bias) over the last dimension; weight is [N, K]."""
    return activate(F.linear(x, weight, bias), activation)


def error_scale(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None
) -> dict[str, Tensor]:
    """The scale of linear's error.

    The sum z is off in proportion to the root of the sum of squares of its products, and |bias|; the
    activation passes that on at most `_STEEPEST` times (a bound that also holds across relu's kink).
    It then adds its own: see `_own_scale`.
    """
    spread = F.linear(x.square(), weight.square()).sqrt()
    spread = spread if bias is None else spread + bias.abs()
    z = F.linear(x, weight, bias)
    return {"y": _STEEPEST[activation] * spread + _own_scale(z, activation)}


def linear_with_preactivation(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str
) -> tuple[Tensor, Tensor]:
    """y as linear's, and z = x @ weight.T + bias."""
    z = F.linear(x, weight, bias)
    return activate(z, activation), z


def error_scale_with_preactivation(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str
) -> dict[str, Tensor]:
    """linear's, with the activation and without."""
    y = error_scale(x, weight, bias, activation=activation)["y"]
    return {"y": y, "z": error_scale(x, weight, bias)["y"]}


def _own_scale(z: Tensor, activation: str | None) -> Tensor:
    """What an activation's own roundings scale with, z being exact.

    gelu = z/2 * (1 + f), f = erf or tanh of an inner value: 1 + f cancels for negative z, so the scale
    is |z|/2 * (1 + |f|). silu = z * s: exp's rounded argument moves s by |z| * (1 - s) units relatively,
    and s underflows.
    """
    if activation in ("gelu", "gelu_tanh"):
        return 0.5 * z.abs() * (1 + _bend(z, activation).abs())
    if activation == "silu":
        return F.silu(z).abs() * z.abs() * torch.sigmoid(-z) + z.abs() * _UNDERFLOW
    return torch.zeros_like(z)


def _bend(z: Tensor, activation: str) -> Tensor:
    """f in gelu(z) = z/2 * (1 + f)."""
    if activation == "gelu":
        return torch.erf(z * math.sqrt(0.5))
    return torch.tanh(_TANH_SCALE * (z + _TANH_CUBIC * z**3))


def _bend_slope(z: Tensor, activation: str) -> Tensor:
    """df/dz of the same f."""
    if activation == "gelu":
        return _TANH_SCALE * torch.exp(-0.5 * z.square())
    return _TANH_SCALE * (1 + 3 * _TANH_CUBIC * z.square()) * (1 - _bend(z, activation).square())


def activation_backward(dy: Tensor, z: Tensor, activation: str) -> Tensor:
    """dz = dy * activation'(z).

    relu' is 0 at 0, and the result is 0 where z <= 0 whatever dy is, as in torch; so for relu2. gelu' =
    (1 + f)/2 + z/2 * f', silu' = s * (1 + z * (1 - s)), s = sigmoid(z), and quick_gelu' is that of 1.702 z.
    """
    if activation == "relu":
        return torch.where(z <= 0, 0.0, dy)
    if activation == "relu2":
        return torch.where(z <= 0, 0.0, 2 * dy * z)
    if activation == "quick_gelu":
        return activation_backward(dy, QUICK * z, "silu")
    if activation == "silu":
        return dy * torch.sigmoid(z) * (1 + z * torch.sigmoid(-z))
    return dy * (0.5 * (1 + _bend(z, activation)) + 0.5 * z * _bend_slope(z, activation))


def error_scale_backward(dy: Tensor, z: Tensor, activation: str) -> dict[str, Tensor]:
    """The scale of its error.

    gelu: the terms (1 + |f|)/2 and |z|/2 * f', the second enlarged by what moves it: the rounded
    argument of exp, z^2/2 (gelu), or 1 - f^2 = (1 - f)(1 + f), which cancels where |f| is near 1
    (gelu_tanh: the slope's factor before 1 - f^2, times f^2, up to where f is 1 and nothing cancels any
    more). silu: as swiglu's gate with up = 1; quick_gelu: as silu of 1.702 z.
    """
    if activation in ("relu", "relu2"):
        return {"dz": torch.zeros_like(z)}
    if activation == "quick_gelu":
        return error_scale_backward(dy, QUICK * z, "silu")
    if activation == "silu":
        s, t = torch.sigmoid(z), z.abs() * torch.sigmoid(-z)
        return {"dz": dy.abs() * (s * ((1 + t) * (1 + t) + t * z.abs() * s) + (1 + z.abs()) * _UNDERFLOW)}
    f, slope = _bend(z, activation).abs(), _bend_slope(z, activation)
    if activation == "gelu":
        second = slope * (1 + 0.5 * z.square())
    else:
        inner = _TANH_SCALE * (1 + 3 * _TANH_CUBIC * z.square())
        second = slope + torch.where(f < 1, inner * f * f, 0.0)
    return {"dz": dy.abs() * (0.5 * (1 + f) + 0.5 * z.abs() * second)}


def activation_backward_sums(dy: Tensor, z: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """dz as activation_backward's, and its sum over all leading dimensions."""
    dz = activation_backward(dy, z, activation)
    return dz, _over_rows(dz)


def error_scale_backward_sums(dy: Tensor, z: Tensor, activation: str) -> dict[str, Tensor]:
    """dz's, and for the sums the root of the sum of squares of what is added and of its errors."""
    dz = activation_backward(dy, z, activation)
    each = error_scale_backward(dy, z, activation)["dz"]
    return {"dz": each, "dbias": _over_rows((each + dz.abs()).square()).sqrt()}


def _over_rows(x: Tensor) -> Tensor:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1]).sum(0)
