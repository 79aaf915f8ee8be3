"""Exact answers of embedding_backward: what is left out, and that a row's bits are its own.

A probe is a function of a call of the op (its arguments by name), a dtype and a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.kernels._lib.segments import segments

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
ROWS = 5


def _gradient(call: Call, dy: Tensor, index: Tensor, **settings: Any) -> Tensor:
    names = dict(zip(("order", "starts", "ends"), segments(index, ROWS), strict=True))
    return call({"dy": dy, "index": index, **names, **settings})[0]


def tokens(count: int, size: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Indices in any order, most of them 2, and rows whose sum in another order has other bits, in 16 bits
    too: two thirds of a row's tokens are large and cancel, up to the rounding of float32."""
    generator = torch.Generator().manual_seed(count)
    index = torch.randint(ROWS, (count,), generator=generator)
    index = torch.where(torch.rand(count, generator=generator) < 0.6, 2, index)
    dy = torch.randn(count, size, generator=generator) / 64
    for row in range(ROWS):
        own = (index == row).nonzero()[:, 0]
        own = own[torch.randperm(len(own), generator=generator)]
        third = len(own) // 3
        large = (1 + torch.rand(third, size, generator=generator)) * 2.0**14
        dy[own[:third]], dy[own[third : 2 * third]] = large, -large
    return dy.to(dtype).to(device), index.to(device)


def rows_alone(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a row has the same bits whatever tokens of other rows are among its own"""
    for count, size in ((331, 64), (331, 33), (100, 64)):
        dy, index = tokens(count, size, dtype, device)
        whole = _gradient(call, dy, index)
        for row in range(ROWS):
            own = index == row
            if not torch.equal(_gradient(call, dy[own], index[own])[row], whole[row]):
                return False
            beside = torch.where(own, index, (index + 1) % ROWS)
            beside = torch.where(beside == row, index, beside)  # only other rows' tokens go elsewhere
            if not torch.equal(_gradient(call, dy, beside)[row], whole[row]):
                return False
    return True


def ascending_order(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """tokens of one row are added in ascending order: 2^30, -2^30, 1 leaves 1"""
    if dtype == torch.float16:
        return True  # 2^30 is beyond it
    dy = torch.zeros(130, 16, dtype=dtype, device=device)
    dy[0], dy[40], dy[63], dy[128] = 2.0**30, -(2.0**30), 1.0, 0.5
    index = torch.zeros(130, dtype=torch.int64, device=device)
    return bool((_gradient(call, dy, index)[0] == 1.5).all())


def left_out(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """tokens outside the table add to no row, and padding_idx's to none either, NaN or not"""
    dy, index = tokens(331, 64, dtype, device)
    wanted = _gradient(call, dy[index != 2], index[index != 2])
    dy[index == 2] = float("nan")
    for elsewhere in (-1, -ROWS, ROWS, 2**31, 2**32 + 3, -(2**63), 2**63 - 1):
        if not torch.equal(_gradient(call, dy, torch.where(index == 2, elsewhere, index)), wanted):
            return False
    return torch.equal(_gradient(call, dy, index, padding_idx=2), wanted)


PROBES = (rows_alone, ascending_order, left_out)
