"""Exact answers of index_add_backward.

A probe is a function of a call of the op (its arguments by name), a dtype and a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]


def outside_the_rows(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """an index outside the rows gives zeros, the others copies where alpha is 1"""
    count = 37
    index = [0, count, -1, -count, 2**31, 2**32 + 3, -(2**63), 2**63 - 1, count - 1, 5]
    at = torch.tensor(index, device=device)
    for size in (64, 13):
        dy = torch.randn(count, size, generator=torch.Generator().manual_seed(0)).to(dtype).to(device)
        for alpha in (1.0, -0.5):
            (got,) = call({"dy": dy, "index": at, "alpha": alpha})
            for row, own in zip(got, index, strict=True):
                if not torch.equal(row, alpha * dy[own] if 0 <= own < count else torch.zeros_like(row)):
                    return False
    return True


PROBES = (outside_the_rows,)
