"""Exact answers of sparse_mm: sums of small integers, single values at every place, what has no number.

A probe is a function of a call of the op (its arguments by name), a dtype and a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.kernels.sparse_mm.reference import PLACES, dense

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
SIZES = ((1, 7, 3), (33, 72, 6), (130, 129, 12), (17, 40, 32), (200, 256, 48), (300, 200, 16), (3, 136, 130))
"""Rows of x, rows of w, bytes of metadata of a row: rows that are not aligned, one step of k, several of them
and a half, more rows than one tile."""


def drawn(high: int, shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def packed_places(pairs: Tensor) -> Tensor:
    """Metadata of the numbers of pairs in PLACES, [N, 2 * J]."""
    nibbles = torch.tensor([first + 4 * second for first, second in PLACES])[pairs]
    return (nibbles[:, 0::2] + 16 * nibbles[:, 1::2]).to(torch.uint8)


def _called(call: Call, device: torch.device, **arguments: Any) -> Tensor:
    given = {"bias": None} | arguments
    moved = {name: None if each is None else each.to(device) for name, each in given.items()}
    return call(moved)[0].cpu()


def sums_of_integers(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """x and values from -2 to 2, any pairs of places, with a bias and without: the sums are exact, and one
    rounding is left"""
    for number, (rows, columns, width) in enumerate(SIZES):
        x = (drawn(5, (rows, 8 * width), number) - 2).to(dtype)
        values = (drawn(5, (columns, 4 * width), 10 + number) - 2).to(dtype)
        meta = packed_places(drawn(len(PLACES), (columns, 2 * width), 20 + number))
        bias = (torch.arange(columns) % 9 - 4).to(dtype)
        ref = x.double() @ dense(values, meta).double().T
        for added in (None, bias):
            y = _called(call, device, x=x, values=values, meta=meta, bias=added)
            if not torch.equal(y, (ref if added is None else ref + added.double()).to(dtype)):
                return False
    return True


def single_values(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """one k at a time: w comes out element by element, every pair of places in every group of a step; its two
    values differ, and so do those of neighbouring groups and rows"""
    width = 34
    pair = (torch.arange(2 * width)[None] + torch.arange(48)[:, None]) % len(PLACES)
    values = (1 + (torch.arange(4 * width)[None] * 3 + torch.arange(48)[:, None] * 7) % 251).to(dtype)
    meta = packed_places(pair)
    x = torch.eye(8 * width, dtype=dtype)
    w = dense(values, meta)
    for part in (x, x[40:60]):  # many rows, and few
        if not torch.equal(_called(call, device, x=part, values=values, meta=meta), part @ w.T):
            return False
    return True


def not_rounded_before_the_end(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """sums are kept in float32: 2048 ones and one value of 2^-3 beside them, which 16 bits would lose, and
    then -2048 by the bias"""
    width = 2048 // 4 + 16
    values = torch.zeros(9, 4 * width, dtype=dtype)
    values[:, :2048], values[:, 2050] = 1, 0.125
    meta = packed_places(torch.zeros(9, 2 * width, dtype=torch.long))
    bias = torch.full((9,), -2048.0).to(dtype)
    for rows in (2, 140):
        x = torch.ones(rows, 8 * width, dtype=dtype)
        y = _called(call, device, x=x, values=values, meta=meta, bias=bias)
        if not torch.equal(y.float(), torch.full((rows, 9), 0.125)):
            return False
    return True


def without_numbers(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """NaN and Inf of x where w has a value stay in their row, those of a value in its column"""
    width = 32
    for rows in (5, 140):
        x = torch.ones(rows, 8 * width, dtype=dtype)
        values = torch.ones(16, 4 * width, dtype=dtype)
        meta = packed_places(torch.ones(16, 2 * width, dtype=torch.long))  # places 0 and 2
        x[1, 64], x[2, 130] = torch.nan, torch.inf
        values[3, 7], values[12, 100] = torch.nan, -torch.inf
        ref = torch.full((rows, 16), 4.0 * width)
        ref[2], ref[:, 12] = torch.inf, -torch.inf
        ref[2, 12], ref[1], ref[:, 3] = torch.nan, torch.nan, torch.nan
        y = _called(call, device, x=x, values=values, meta=meta).float()
        if not torch.equal(y.nan_to_num(-1.0, -2.0, -3.0), ref.nan_to_num(-1.0, -2.0, -3.0)):
            return False
    return True


def empty(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a product over no k is the bias, or 0; one of no rows or columns is empty"""
    for rows, columns, width in ((0, 24, 16), (24, 0, 16), (24, 40, 0), (3, 40, 0), (0, 0, 0)):
        x, values = torch.ones(rows, 8 * width, dtype=dtype), torch.ones(columns, 4 * width, dtype=dtype)
        meta = packed_places(torch.zeros(columns, 2 * width, dtype=torch.long))
        for bias in (None, torch.arange(columns).to(dtype)):
            y = _called(call, device, x=x, values=values, meta=meta, bias=bias)
            if y.shape != (rows, columns):
                return False
            ref = torch.zeros(rows, columns) if bias is None else bias.float().expand(rows, columns)
            if width == 0 and not torch.equal(y.float(), ref):
                return False
    return True


PROBES = (sums_of_integers, single_values, not_rounded_before_the_end, without_numbers, empty)
