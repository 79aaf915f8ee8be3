"""Exact answers of embedding.

A probe is a function of a call of the op (its arguments by name), a dtype and a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]


def outside_the_table(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """an index outside the table gives a row of NaN, those at its ends their rows"""
    count = 37
    far = [count, -1, -count, count + 1, 2**31, 2**32 + 3, -(2**63), 2**63 - 1]
    for size in (64, 13):
        weight = torch.randn(count, size, generator=torch.Generator().manual_seed(0)).to(dtype).to(device)
        for kind in (torch.int64, torch.int32):
            reach = torch.iinfo(kind)
            index = [each for each in [0, *far, count - 1, 5] if reach.min <= each <= reach.max]
            (y,) = call({"input": torch.tensor(index, dtype=kind, device=device), "weight": weight})
            for row, own in zip(y, index, strict=True):
                right = torch.equal(row, weight[own]) if 0 <= own < count else bool(row.isnan().all())
                if not right:
                    return False
    return True


PROBES = (outside_the_table,)
