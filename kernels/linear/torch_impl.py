"""linear and its internal ops through torch: any device, float32 inside (float64 for float64)."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from portable.kernels._lib.torch_products import wide_sums
from portable.kernels.linear.reference import QUICK

_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715


def activate(z: Tensor, activation: str) -> Tensor:
    """The activation by name."""
    if activation == "relu":
        return torch.relu(z)
    if activation == "silu":
        return F.silu(z)
    if activation == "gelu_tanh":
        return F.gelu(z, approximate="tanh")
    return torch.where(z == math.inf, z, F.gelu(z))  # torch's own is NaN at +Inf on the CPU (2026-11-21)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None) -> Tensor:
    """y = activation(x @ weight.T + bias), rounded once.

    torch's linear rounds its sum to the input's dtype, so with a bias or an activation to follow,
    inputs narrower than float32 are widened first; on the CPU always, where torch's own 16-bit products
    flush subnormal results to zero (seen 2026-11-21).
    """
    if bias is None and activation is None and x.device.type != "cpu":
        with wide_sums(x.dtype) if x.element_size() == 2 else nullcontext():
            return F.linear(x, weight)
    wide = torch.promote_types(x.dtype, torch.float32)
    z = F.linear(x.to(wide), weight.to(wide), None if bias is None else bias.to(wide))
    return (z if activation is None else activate(z, activation)).to(x.dtype)


def linear_with_preactivation(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str
) -> tuple[Tensor, Tensor]:
    """y = activation(z) and z = x @ weight.T + bias, each rounded once."""
    wide = torch.promote_types(x.dtype, torch.float32)
    z = F.linear(x.to(wide), weight.to(wide), None if bias is None else bias.to(wide))
    return activate(z, activation).to(x.dtype), z.to(x.dtype)


def activation_backward(dy: Tensor, z: Tensor, activation: str) -> Tensor:
    """dz = dy * activation'(z), computed in at least float32 and rounded once."""
    return _through(dy, z, activation).to(z.dtype)


def activation_backward_sums(dy: Tensor, z: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """dz, and its sum over all rows before it is rounded."""
    dz = _through(dy, z, activation)
    rows = math.prod(dz.shape[:-1])
    return dz.to(z.dtype), dz.reshape(rows, dz.shape[-1]).sum(0).to(z.dtype)


def _through(dy: Tensor, z: Tensor, activation: str) -> Tensor:
    wide = torch.promote_types(z.dtype, torch.float32)
    dy, z = dy.to(wide), z.to(wide)
    if activation == "relu":
        return torch.where(z <= 0, 0.0, dy)
    if activation == "relu2":
        return torch.where(z <= 0, 0.0, 2 * (dy * z))
    if activation == "quick_gelu":
        z, activation = QUICK * z, "silu"
    if activation == "silu":
        derivative = torch.sigmoid(z) * (1 + z * torch.sigmoid(-z))
    elif activation == "gelu":
        derivative = 0.5 * (1 + torch.erf(z * math.sqrt(0.5)))
        derivative = derivative + z * (0.5 * _TANH_SCALE) * torch.exp(-0.5 * z.square())
    else:
        # The derivative is 0 or 1 long before 16; z**3 and z**2 must not overflow. At infinity the formula is
        # NaN, as it is for torch.
        z = torch.where(z.isinf(), torch.nan, z.clamp(-16, 16))
        f = torch.tanh(_TANH_SCALE * (z + _TANH_CUBIC * z**3))
        inner = _TANH_SCALE * (1 + 3 * _TANH_CUBIC * z.square())
        derivative = 0.5 * (1 + f) + 0.5 * z * inner * (1 - f) * (1 + f)
    return dy * derivative
