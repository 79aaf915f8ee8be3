"""Exact answers of the quantiser to 4 bits with zero points, as probes.py has them of the other one."""

from __future__ import annotations

import torch

from portable.kernels.quantize_int4.probes import FACTORS, LENGTHS, Call, unpacked


def every_zero_point(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """rows of integers from -n to 15 - n have the scale 1, the zero point n and come back, for each n"""
    below = torch.arange(16)
    x = (torch.arange(16)[None] - below[:, None]).to(dtype)
    for factor in FACTORS[:2]:
        q, scale, zero = call({"x": (x * factor).to(device), "eps": 1e-30})
        zero = zero.cpu()[:, 0].long()
        if not (scale == factor).all() or not torch.equal(zero, below):
            return False
        if not torch.equal(unpacked(q).double() - zero[:, None], x.double()):
            return False
    return True


def nearest_even(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """x is rounded to the nearest integer, the even one of two, before the zero point is added: an odd one
    would move the ties"""
    for lowest in (0, 5, 8, 15):
        middle = torch.arange(-lowest, 15 - lowest) + 0.5
        x = torch.cat([middle, torch.tensor([-float(lowest), 15.0 - lowest, 0.0])])[None].to(dtype)
        q, scale, zero = call({"x": x.to(device)})
        codes = unpacked(q)[0, : len(middle)]
        if scale.item() != 1.0 or zero.item() != lowest:
            return False
        if not torch.equal(codes.double() - lowest, middle.double().round()):
            return False
    return True


def zero_is_a_code(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """rows that are all above 0 or all below it have their zero point at an end"""
    x = torch.tensor([[10.0, 30.0, 30.0, 20.0], [-10.0, -30.0, -30.0, -20.0]]).to(dtype)
    q, scale, zero = call({"x": x.to(device)})
    if zero.flatten().tolist() != [0, 15] or not (scale == 2).all():
        return False
    return unpacked(q).tolist() == [[5, 15, 15, 10], [10, 0, 0, 5]]


def without_numbers(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """NaN makes its row's scale NaN and Inf makes it Inf, with codes and a zero point of 0; the ends of the
    type do not make it Inf; the row beside is as it was"""
    x = torch.zeros(6, 10, dtype=dtype)
    x[:, 4], x[:, 5] = 7.0, -8.0
    x[1, 2], x[2, 8], x[3, 0], x[4, 3], x[4, 8] = torch.nan, torch.inf, -torch.inf, -torch.nan, torch.inf
    q, scale, zero = (each.cpu() for each in call({"x": x.to(device)}))
    codes, scale = unpacked(q), scale[:, 0]
    if not scale[[1, 4]].isnan().all() or not (scale[2:4] == torch.inf).all():
        return False
    if codes[1:5].any() or zero[1:5].any():
        return False
    wanted = [8] * 4 + [15, 0] + [8] * 4
    if any(codes[row].tolist() != wanted or scale[row] != 1 or zero[row] != 8 for row in (0, 5)):
        return False
    most = torch.finfo(dtype).max
    q, scale, zero = call({"x": torch.tensor([[most, -most, 0.0, 0.0]], dtype=dtype, device=device)})
    half = torch.tensor(most / 7.5, dtype=torch.float64).float()
    codes = unpacked(q)[0]
    return bool(scale.item() == half and codes[0] == 15 and codes[1] == 0 and codes[2] == zero.item())


def ends_anywhere(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the greatest and the smallest x of a row are found wherever they are"""
    for length in LENGTHS:
        places = torch.tensor([0, 63, 64, length // 2, length - 1])
        for sign in (1, -1):
            x = torch.full((len(places), length), sign * 5.0, dtype=dtype)
            x[torch.arange(len(places)), places] = -sign * 10.0
            q, scale, zero = call({"x": x.to(device)})
            numbers = unpacked(q) - zero.cpu().long()
            if not (scale == 1).all() or not torch.equal(numbers.double(), x.double()):
                return False
    return True


PROBES = (ends_anywhere, every_zero_point, nearest_even, zero_is_a_code, without_numbers)
