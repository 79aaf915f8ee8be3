"""Exact answers of index_add: what keeps its bits, what is left out, and that a row's bits are its own.

A probe is a function of a call of the op (its arguments by name), a dtype and a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.kernels._lib.segments import segments
from portable.kernels.embedding.probes_backward import ROWS, tokens

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]


def _added(call: Call, input: Tensor, index: Tensor, source: Tensor, **settings: Any) -> Tensor:
    names = dict(zip(("order", "starts", "ends"), segments(index, len(input)), strict=True))
    return call({"input": input, "index": index, "source": source, **names, **settings})[0]


def _made(count: int, size: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    source, index = tokens(count, size, dtype, device)
    input = torch.randn(ROWS, size, generator=torch.Generator().manual_seed(0))
    return input.to(dtype).to(device), index, source


def rows_alone(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a row has the same bits whatever is added to others"""
    for count, size in ((331, 64), (331, 33), (100, 64)):
        input, index, source = _made(count, size, dtype, device)
        whole = _added(call, input, index, source, alpha=0.75)
        for row in range(ROWS):
            own = index == row
            alone = _added(call, input, index[own], source[own], alpha=0.75)
            if not torch.equal(alone[row], whole[row]):
                return False
    return True


def kept_bits(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a row that nothing is added to keeps its bits, -0 and infinities too, whatever indices lie outside"""
    input, index, source = _made(331, 64, dtype, device)
    input[2, ::3], input[2, 1] = -0.0, float("inf")
    source[index == 2] = float("nan")
    for elsewhere in (-1, -ROWS, ROWS, 2**31, 2**32 + 3, -(2**63), 2**63 - 1):
        y = _added(call, input, torch.where(index == 2, elsewhere, index), source)
        if y.isnan().any() or not torch.equal(y[2], input[2]):
            return False
        if not torch.equal(y[2].signbit(), input[2].signbit()):
            return False
    return True


PROBES = (rows_alone, kept_bits)
