"""Exact answers of int4_mm: sums of small integers, single codes, what has no number.

A probe is a function of a call of the op (its arguments by name), a dtype and a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
ROWS = (1, 3, 16, 17, 33, 130)
WEIGHTS = ((129, 3, 16), (72, 5, 32), (40, 4, 64), (33, 1, 200), (7, 6, 5), (130, 130, 1), (16, 33, 16))
"""N, groups and bytes of each: groups of 32, 64, 128, a whole row, an odd number of bytes; as many columns as
groups, where scales could be read transposed; more steps along k than a program of few rows takes."""


def _drawn(high: int, shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def _packed(codes: Tensor) -> Tensor:
    """Codes [N, G, 2 * P], two in a byte, the even one in the lower half."""
    return (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8)


def _called(call: Call, device: torch.device, **arguments: Any) -> Tensor:
    given = {"zero_point": None, "offset": None, "bias": None} | arguments
    moved = {name: None if each is None else each.to(device) for name, each in given.items()}
    return call(moved)[0].cpu()


def _scales(columns: int, groups: int) -> Tensor:
    """Powers of two of which neighbours differ, along both axes in other ways."""
    n, g = torch.arange(columns)[:, None], torch.arange(groups)[None]
    return torch.exp2(((3 * n + 5 * g) % 7 - 4).float())


def sums_of_integers(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """x from -2 to 2, all codes, zero points of each group from 0 to 16 or none, scales and offsets that are
    distinct powers of two: the sums are exact, and one rounding is left. Few rows and many, ends of groups"""
    for number, (columns, groups, half) in enumerate(WEIGHTS):
        rows, length = ROWS[number % len(ROWS)], 2 * groups * half
        codes = _drawn(16, (columns, groups, 2 * half), number)
        x = (_drawn(5, (rows, length), 10 + number) - 2).to(dtype)
        scale = _scales(columns, groups)
        zero = (3 * torch.arange(columns)[:, None] + torch.arange(groups)) % 17
        bias = (torch.arange(columns) % 9 - 4).to(dtype)
        for zeros in (None, zero):
            for offset in (None, scale.flip(0)):
                w = (codes - (8 if zeros is None else zeros[..., None])) * scale.double()[..., None]
                w = w if offset is None else w + offset.double()[..., None]
                ref = (x.double() @ w.flatten(1).T + bias.double()).to(dtype)
                for storage in (dtype, torch.float32):
                    given: dict[str, Any] = {
                        "scale": scale.to(storage),
                        "bias": bias,
                        "x": x,
                        "weight": _packed(codes),
                    }
                    given["zero_point"] = None if zeros is None else zeros.to(torch.uint8)
                    given["offset"] = None if offset is None else offset.to(storage)
                    if not torch.equal(_called(call, device, **given), ref):
                        return False
    return True


def single_codes(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """one k at a time: w comes out code by code, the even k from the lower half of a byte; scales are not
    rounded with it to 16 bits where they are float32, but once as a result"""
    groups, half, columns = 3, 16, 20
    codes = _drawn(16, (columns, groups, 2 * half), 1)
    scale = 1 + torch.rand(columns, groups, generator=torch.Generator().manual_seed(2)) / 8
    x = torch.eye(2 * groups * half, dtype=dtype)
    w = ((codes - 8).double() * scale.double()[..., None]).flatten(1)
    for part in (x, x[5:14]):  # many rows, and few
        y = _called(call, device, x=part, weight=_packed(codes), scale=scale)
        if not torch.equal(y, (part.double() @ w.T).to(dtype)):
            return False
    return True


def not_rounded_before_the_sum(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """4096 terms of one sign under one scale that 16 bits would round up: a weight rounded to them would move
    the sum by many units of the last place"""
    scale = torch.full((5, 32), 1.00390625 + 2.0**-12)
    codes = torch.full((5, 32, 128), 9)
    for rows in (2, 40):
        x = torch.ones(rows, 4096, dtype=dtype)
        y = _called(call, device, x=x, weight=_packed(codes), scale=scale)
        if not torch.equal(y, (scale[0, 0].double() * 4096).to(dtype).expand(rows, 5)):
            return False
    return True


def without_numbers(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """NaN and Inf in a row of x stay in its row, NaN of a scale or an offset in its column; Inf times a code
    at its zero point is NaN, whatever the offset is, and so is Inf times an offset of 0"""
    codes = torch.full((6, 2, 64), 11)
    codes[4, 0, 3] = 8
    for rows in (5, 40):
        x = torch.ones(rows, 128, dtype=dtype)
        x[1, 70], x[2, 3] = torch.nan, torch.inf
        for offset in (None, torch.ones(6, 2)):
            scale, more = torch.ones(6, 2), 0.0 if offset is None else 1.0
            ref = torch.full((rows, 6), (3.0 + more) * 128)
            ref[:, 4] -= 3.0
            ref[2] = torch.inf
            ref[1], ref[2, 4] = torch.nan, torch.nan
            if offset is None:
                scale[3, 1], ref[:, 3] = torch.nan, torch.nan
            else:
                offset[5, 0], ref[:, 5] = torch.nan, torch.nan
                offset[3, 0], ref[:, 3] = 0.0, ref[:, 3] - 64.0
                ref[2, 3] = torch.nan
            y = _called(call, device, x=x, weight=_packed(codes), scale=scale, offset=offset).float()
            ref = ref.to(dtype).float()
            if not torch.equal(y.nan_to_num(-1.0, -2.0), ref.nan_to_num(-1.0, -2.0)):
                return False
    return True


def empty(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a product over no k is the bias, or 0; one of no rows or columns is empty"""
    for rows, columns, half in ((0, 24, 16), (24, 0, 16), (24, 40, 0), (3, 40, 0), (0, 0, 0)):
        x, codes = torch.ones(rows, 4 * half, dtype=dtype), _drawn(16, (columns, 2, 2 * half), 3)
        for bias in (None, torch.arange(columns).to(dtype)):
            y = _called(call, device, x=x, weight=_packed(codes), scale=torch.ones(columns, 2), bias=bias)
            if y.shape != (rows, columns):
                return False
            ref = torch.zeros(rows, columns) if bias is None else bias.float().expand(rows, columns)
            if half == 0 and not torch.equal(y.float(), ref):
                return False
    return True


PROBES = (sums_of_integers, single_codes, not_rounded_before_the_sum, without_numbers, empty)
