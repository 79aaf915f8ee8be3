"""What autograd runs for torch's log_softmax: the baseline of the gradient's throughput."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def log_softmax_backward(dy: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    return torch.ops.aten._log_softmax_backward_data(dy, y, dim, y.dtype)


def derived(given: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Tensor]:
    """A forward pass' result."""
    return {"y": torch.log_softmax(torch.randn_like(given["dy"]), facts["dim"])}
