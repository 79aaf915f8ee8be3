"""Exact answers of int_mm.

A probe is a function of a call of the op (its arguments by name), a dtype and a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
LONGEST = 131071
"""The K up to which no sum reaches 2^31: 128 * 128 * 131072 is that."""


def drawn(rows: int, columns: int, seed: int) -> Tensor:
    """int8 matrices of all numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, (rows, columns), generator=generator, dtype=torch.int8)


def _called(call: Call, a: Tensor, b: Tensor, device: torch.device) -> Tensor:
    return call({"a": a.to(device), "b": b.to(device)})[0].cpu()


def layouts(x: Tensor) -> list[Tensor]:
    """The same matrix row-major, column-major, and as parts of larger ones."""
    rows, columns = x.shape
    wide = torch.full((rows, columns + 7), 77, dtype=x.dtype)
    wide[:, 3 : 3 + columns] = x
    tall = torch.full((columns, rows + 5), -77, dtype=x.dtype)
    tall[:, :rows] = x.t()
    return [x, x.t().contiguous().t(), wide[:, 3 : 3 + columns], tall[:, :rows].t()]


def every_layout(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """each operand row-major or column-major, whole or a part: torchao records that torch._int_mm is silently
    wrong in some; square too, where a transposed one would go unseen by its shape"""
    for rows, columns, length in ((33, 40, 72), (64, 64, 64), (17, 129, 31)):
        a, b = drawn(rows, length, 1), drawn(length, columns, 2)
        ref = (a.double() @ b.double()).to(torch.int32)
        for left in layouts(a):
            for right in layouts(b):
                if not torch.equal(_called(call, left, right, device), ref):
                    return False
    return True


def every_pair(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """all products of two numbers of int8, one of them -128 too, which has no negative"""
    numbers = torch.arange(-128, 128).to(torch.int8)
    ref = numbers.int()[:, None] * numbers.int()
    return torch.equal(_called(call, numbers[:, None], numbers[None], device), ref)


def near_2_to_the_31(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the greatest sums are exact, and one term beyond 2^31 - 1 they go on from -2^31: no saturation (as of
    instructions that have it), no float32"""
    for length in (LONGEST, LONGEST + 1, LONGEST + 2):
        a = torch.full((2, length), -128, dtype=torch.int8)
        b = torch.full((length, 3), -128, dtype=torch.int8)
        a[1], b[:, 1], b[-1, 2] = 127, 127, 1
        ref = (a.double() @ b.double()).to(torch.int64).to(torch.int32)
        if not torch.equal(_called(call, a, b.t().contiguous().t(), device), ref):
            return False
    return True


def ends_of_blocks(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """sums of each length around the blocks along k: a term more or less is one off"""
    a, b = drawn(5, 300, 3), drawn(300, 9, 4)
    a[a == 0], b[b == 0] = 1, 1
    for length in (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 300):
        left, right = a[:, :length], b[:length]
        if not torch.equal(_called(call, left, right, device), (left.double() @ right.double()).int()):
            return False
    return True


def empty(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a product over no k is 0; one of no rows or columns is empty"""
    for rows, columns, length in ((0, 24, 160), (24, 0, 160), (24, 40, 0), (0, 0, 0)):
        c = _called(call, drawn(rows, length, 5), drawn(length, columns, 6), device)
        if c.shape != (rows, columns) or c.dtype != torch.int32 or c.any():
            return False
    return True


PROBES = (every_layout, every_pair, near_2_to_the_31, ends_of_blocks, empty)
