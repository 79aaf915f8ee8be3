"""What a user of torch alone would call: the baselines of swiglu's throughput."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def swiglu_backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """What autograd runs for `F.silu(gate) * up`."""
    return torch.ops.aten.silu_backward(dy * up, gate), dy * F.silu(gate)
