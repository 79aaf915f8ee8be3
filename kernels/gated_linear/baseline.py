"""What a user of torch alone would call: the baseline of gated_linear's throughput."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from portable.kernels.activation.baseline import activation as activate


def gated_linear(x: Tensor, w_gate_up: Tensor, activation: str) -> Tensor:
    """One product, [gate | up] stored, and the gated activation of it."""
    gate, up = F.linear(x, w_gate_up.flatten(0, 1)).chunk(2, dim=-1)
    return activate(gate, activation) * up
