"""gated_linear through torch: any device, float32 inside (float64 for float64)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from portable.kernels.linear.torch_impl import activate


def gated_linear(x: Tensor, w_gate_up: Tensor, activation: str) -> Tensor:
    """y = activation(x @ gate.T) * (x @ up.T), rounded once: narrow inputs are widened first."""
    wide = torch.promote_types(x.dtype, torch.float32)
    gate, up = (F.linear(x.to(wide), each.to(wide)) for each in w_gate_up.unbind(0))
    return (activate(gate, activation) * up).to(x.dtype)
