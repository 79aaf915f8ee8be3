"""What a user of torch alone would call: the baselines of gated_activation's throughput."""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels.activation.baseline import activation as activate
from portable.kernels.linear.baseline import activation_backward


def gated_activation(x: Tensor, activation: str) -> Tensor:
    return activate(x[..., 0, :], activation) * x[..., 1, :]


def gated_activation_backward(dy: Tensor, x: Tensor, activation: str) -> Tensor:
    """What autograd runs for it, and the two gradients put into one tensor."""
    gate, up = x.unbind(-2)
    dgate = activation_backward(dy * up, gate, activation)
    return torch.stack([dgate, dy * activate(gate, activation)], -2)
