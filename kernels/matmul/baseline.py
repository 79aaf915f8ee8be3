"""What a user of torch alone would call: the baseline of matmul's throughput."""

from __future__ import annotations

import torch
from torch import Tensor


def matmul(a: Tensor, b: Tensor, *, precision: str = "ieee") -> Tensor:
    """float32 at torch's default precision, which is IEEE."""
    return torch.matmul(a, b)
