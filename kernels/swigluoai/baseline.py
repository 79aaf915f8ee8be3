"""What a user of torch alone would call: the baselines of swigluoai's throughput."""

from __future__ import annotations

import torch
from torch import Tensor


def swigluoai(x: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """As the model's own code has it."""
    gate, up = x[..., 0].clamp(max=limit), x[..., 1].clamp(-limit, limit)
    return (up + 1) * (gate * torch.sigmoid(gate * alpha))


def swigluoai_backward(dy: Tensor, x: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """What autograd runs for it, and the two gradients put into one tensor."""
    gate, up = x[..., 0].clamp(max=limit), x[..., 1].clamp(-limit, limit)
    s = torch.sigmoid(gate * alpha)
    glu = gate * s
    dgate = dy * (up + 1) * (s + alpha * glu * (1 - s))
    dgate, dup = dgate * (x[..., 0] <= limit), dy * glu * (x[..., 1].abs() <= limit)
    return torch.stack([dgate, dup], -1)
