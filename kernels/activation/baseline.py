"""What a user of torch alone would call: the baseline of activation's throughput."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def activation(x: Tensor, activation: str) -> Tensor:
    if activation in ("gelu", "gelu_tanh"):
        return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")
    if activation == "quick_gelu":
        return x * torch.sigmoid(1.702 * x)
    if activation == "silu":
        return F.silu(x)
    y = torch.relu(x)
    return y if activation == "relu" else y.square()
