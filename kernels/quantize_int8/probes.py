"""Exact answers of the symmetric quantiser of rows.

A probe is a function of a call of the op (its arguments by name, answering its outputs), a dtype and a
device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.kernels.quantize_int8.points import FACTORS, LENGTHS, near_midpoints

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]


def _answers(call: Call, x: Tensor, device: torch.device, **params: Any) -> tuple[Tensor, Tensor]:
    q, scale = call({"x": x.to(device), **params})
    return q.cpu(), scale.cpu()[:, 0]


def nearest_even(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """x over a scale of a power of two becomes the nearest integer, the even one of two (vLLM's kernels
    round so; std::round would not)"""
    points, wanted = near_midpoints(-127)
    inside = points.abs() <= 127
    points, wanted = points[inside], wanted[inside]
    for factor in FACTORS:
        x = torch.cat([points, torch.tensor([127.0])])[None] * factor
        codes, scale = _answers(call, x, device, eps=1e-30)
        if scale.item() != factor or not torch.equal(codes[0, :-1], wanted):
            return False
    return True


def both_ends(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the greatest magnitude becomes 127 or -127 by its sign, never -128 (torchao's symmetric range)"""
    for top in (1.0, 3.0, 127.0, 1e-5, 60000.0, float(torch.finfo(dtype).max)):
        x = torch.tensor([[top, -top, 0.0], [-top, 0.0, 0.0], [top, 0.0, -0.0]], dtype=dtype)
        codes, _ = _answers(call, x, device)
        if codes.tolist() != [[127, -127, 0], [-127, 0, 0], [127, 0, 0]]:
            return False
    return True


def without_numbers(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """NaN makes its row's scale NaN, Inf makes it Inf, and q of the row is 0, where a cast of NaN to int8 has
    no meaning (C, torch); the row beside is as it was"""
    x = torch.full((6, 9), -1.0, dtype=dtype)
    x[:, 4] = 127.0
    x[1, 2], x[2, 8], x[3, 0], x[4, 3], x[4, 5] = torch.nan, torch.inf, -torch.inf, -torch.nan, torch.inf
    if dtype == torch.float32:
        x[1, 2] = torch.tensor(0x7FC000A5, dtype=torch.int32).view(dtype)  # a NaN with more bits
    codes, scale = _answers(call, x, device)
    if not scale[[1, 4]].isnan().all() or not (scale[2:4] == torch.inf).all() or codes[1:5].any():
        return False
    plain = torch.full((9,), -1, dtype=torch.int8)
    plain[4] = 127
    return all(torch.equal(codes[row], plain) and scale[row] == 1.0 for row in (0, 5))


def next_to_nothing(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a row of zeros has the scale eps / 127, not 0 or NaN (ao#4713, ao#4762, kernels-community#681), by
    which what is below eps is divided"""
    x = torch.zeros(2, 7, dtype=dtype)
    x[:, 2] = -0.0
    x[1, 3:5] = torch.tensor([1.5, -3.0]) * 2.0**-20
    codes, scale = _answers(call, x, device, eps=127 * 2.0**-20)
    return bool((scale == 2.0**-20).all()) and codes.tolist() == [[0] * 7, [0, 0, 0, 2, -3, 0, 0]]


def greatest_anywhere(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the greatest magnitude of a row is found wherever it is, in long rows too"""
    for length in LENGTHS:
        places = torch.tensor([0, 63, 64, length // 2, length - 1])
        x = torch.full((len(places), length), 0.5, dtype=dtype)
        x[torch.arange(len(places)), places] = -254.0
        codes, scale = _answers(call, x, device)
        if not (scale == 2.0).all() or not torch.equal(codes, (x / 2).round().to(torch.int8)):
            return False
    return True


PROBES = (greatest_anywhere, nearest_even, both_ends, without_numbers, next_to_nothing)
