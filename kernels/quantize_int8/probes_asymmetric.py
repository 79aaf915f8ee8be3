"""Exact answers of the asymmetric quantiser of rows, as probes.py has them of the symmetric one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.kernels.quantize_int8.points import FACTORS, LENGTHS

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]


def _answers(call: Call, x: Tensor, device: torch.device, **params: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, scale, zero = call({"x": x.to(device), **params})
    return q.cpu(), scale.cpu()[:, 0], zero.cpu()[:, 0]


def every_zero_point(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """rows of integers from -n to 255 - n have the scale 1, the zero point n - 128 and come back, for each n:
    both ends of the zero point too"""
    below = torch.arange(256)
    x = (torch.arange(256)[None] - below[:, None]).to(dtype)
    for factor in FACTORS if dtype != torch.float16 else FACTORS[:1]:
        codes, scale, zero = _answers(call, x * factor, device, eps=1e-30)
        if not (scale == factor).all() or not torch.equal(zero, (below - 128).int()):
            return False
        if not torch.equal(codes.double() - zero[:, None], x.double()):
            return False
    return True


def nearest_even(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """x is rounded to the nearest integer, the even one of two, before the zero point is added: an odd one
    would move the ties (vLLM adds it after the rounding, torchao too)"""
    for lowest in (0, 77, 128, 255):
        middle = torch.arange(-lowest, 255 - lowest) + 0.5
        x = torch.cat([middle, torch.tensor([-float(lowest), 255.0 - lowest])])[None]
        codes, scale, zero = _answers(call, x, device)
        if scale.item() != 1.0 or zero.item() != lowest - 128:
            return False
        if not torch.equal(codes[0, :-2].double() - zero.item(), middle.double().round()):
            return False
    return True


def zero_is_a_code(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """rows that are all above 0 or all below it have their zero point at an end, and a 0 in them is exactly
    that (vLLM's kernel takes the smallest x without 0, and so an azp beyond int8)"""
    x = torch.tensor([[100.0, 355.0, 355.0], [-100.0, -355.0, -355.0], [51.0, 255.0, 255.0]]).to(dtype)
    codes, scale, zero = _answers(call, x, device)
    most = x.double().abs().amax(-1)
    if zero.tolist() != [-128, 127, -128] or not torch.equal(scale, (most / 255).float()):
        return False
    return codes[:, 1].tolist() == [127, -128, 127] and codes[2, 0].item() == 51 - 128


def without_numbers(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """NaN makes its row's scale NaN, Inf makes it Inf; the zero point and all of q are -128 there; the ends
    of the type do not make it Inf; the row beside is as it was"""
    x = torch.zeros(6, 9, dtype=dtype)
    x[:, 4], x[:, 5] = 127.0, -128.0
    x[1, 2], x[2, 8], x[3, 0], x[4, 3], x[4, 8] = torch.nan, torch.inf, -torch.inf, -torch.nan, torch.inf
    codes, scale, zero = _answers(call, x, device)
    if not scale[[1, 4]].isnan().all() or not (scale[2:4] == torch.inf).all():
        return False
    if not (zero[1:5] == -128).all() or not (codes[1:5] == -128).all():
        return False
    if any(codes[row].tolist() != [0] * 4 + [127, -128] + [0] * 3 or scale[row] != 1 for row in (0, 5)):
        return False
    most = torch.finfo(dtype).max
    codes, scale, zero = _answers(call, torch.tensor([[most, -most, 0.0]], dtype=dtype), device)
    wanted = torch.tensor(most / 127.5, dtype=torch.float64).float()
    return bool(scale[0] == wanted and codes[0, 0] - zero[0] >= 127 and codes[0, 2] == zero[0])


def next_to_nothing(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a row of zeros has the scale eps / 255 and the code -128 of 0"""
    x = torch.zeros(2, 7, dtype=dtype)
    x[:, 2] = -0.0
    x[1, 3:5] = torch.tensor([1.5, -3.0]) * 2.0**-20
    codes, scale, zero = _answers(call, x, device, eps=255 * 2.0**-20)
    if not (scale == 2.0**-20).all() or zero.tolist() != [-128, -125]:
        return False
    return codes.tolist() == [[-128] * 7, [-125, -125, -125, -123, -128, -125, -125]]


def ends_anywhere(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the greatest and the smallest x of a row are found wherever they are, in long rows too"""
    for length in LENGTHS:
        places = torch.tensor([0, 63, 64, length // 2, length - 1])
        row = torch.arange(len(places))
        for sign in (1, -1):
            x = torch.full((len(places), length), sign * 10.0, dtype=dtype)
            x[row, places] = -sign * 245.0
            codes, scale, zero = _answers(call, x, device)
            if not (scale == 1).all() or not torch.equal(codes.double() - zero[:, None], x.double()):
                return False
    return True


PROBES = (ends_anywhere, every_zero_point, nearest_even, zero_is_a_code, without_numbers, next_to_nothing)
