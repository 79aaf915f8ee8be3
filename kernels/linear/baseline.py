"""What a user of torch alone would call: the baselines of linear's throughput."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None) -> Tensor:
    z = F.linear(x, weight, bias)
    return z if activation is None else _activate(z, activation)


def _activate(z: Tensor, activation: str) -> Tensor:
    if activation in ("gelu", "gelu_tanh"):
        return F.gelu(z, approximate="tanh" if activation == "gelu_tanh" else "none")
    return torch.relu(z) if activation == "relu" else F.silu(z)


def linear_with_preactivation(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str
) -> tuple[Tensor, Tensor]:
    z = linear(x, weight, bias)
    return _activate(z, activation), z


def activation_backward(dy: Tensor, z: Tensor, activation: str) -> Tensor:
    if activation in ("gelu", "gelu_tanh"):
        return torch.ops.aten.gelu_backward(
            dy, z, approximate="tanh" if activation == "gelu_tanh" else "none"
        )
    if activation == "relu":
        return torch.ops.aten.threshold_backward(dy, z, 0)
    if activation == "relu2":
        return torch.ops.aten.threshold_backward(2 * dy * z, z, 0)
    if activation == "quick_gelu":
        s = torch.sigmoid(1.702 * z)
        return dy * (s + 1.702 * z * s * (1 - s))
    return torch.ops.aten.silu_backward(dy, z)


def activation_backward_sums(dy: Tensor, z: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    dz = activation_backward(dy, z, activation)
    return dz, dz.reshape(math.prod(dz.shape[:-1]), dz.shape[-1]).sum(0)
