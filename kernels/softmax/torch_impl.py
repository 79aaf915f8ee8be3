"""softmax and its gradient through torch: any device, any floating dtype, float32 inside."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """softmax along `dim`, rounded once."""
    return torch.softmax(x, dim)


def softmax_backward(dy: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """dx = y * (dy - sum(dy * y)) along `dim`, computed in at least float32 and rounded once."""
    wide = torch.promote_types(y.dtype, torch.float32)
    dy, out = dy.to(wide), y.to(wide)
    return (out * (dy - (dy * out).sum(dim, keepdim=True))).to(y.dtype)
