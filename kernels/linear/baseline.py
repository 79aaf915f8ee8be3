"""What a user of torch alone would call: the baselines of linear's throughput."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None) -> Tensor:
    y = F.linear(x, weight, bias)
    if activation is None:
        return y
    if activation in ("gelu", "gelu_tanh"):
        return F.gelu(y, approximate="tanh" if activation == "gelu_tanh" else "none")
    return torch.relu(y) if activation == "relu" else F.silu(y)


def activation_backward(dy: Tensor, z: Tensor, activation: str) -> Tensor:
    if activation in ("gelu", "gelu_tanh"):
        return torch.ops.aten.gelu_backward(
            dy, z, approximate="tanh" if activation == "gelu_tanh" else "none"
        )
    if activation == "relu":
        return torch.ops.aten.threshold_backward(dy, z, 0)
    return torch.ops.aten.silu_backward(dy, z)
