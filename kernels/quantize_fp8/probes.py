"""Exact answers of the quantisers that find their scales.

A probe is a function of a call of the op (its arguments by name, answering q and the scales), a dtype and a
device. x is (R, 1, N), N at most 128: whatever the op's groups are, a row is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.kernels.quantize_fp8.codes import DTYPES, OF_NAN, codes_of, near_midpoints, numbers

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
WIDTH = 120
EXPONENT = 20


def _answers(call: Call, x: Tensor, device: torch.device, **params: Any) -> tuple[Tensor, Tensor]:
    """The codes, any NaN as OF_NAN, and the scales of rows."""
    q, scale = call({"x": x[:, None].to(device), **params})
    return codes_of(q.cpu())[:, 0], scale.cpu().reshape(len(x))


def _rows(points: Tensor, last: float) -> Tensor:
    """Points in rows of WIDTH, zeros behind them, and one more that ends each row."""
    padded = torch.nn.functional.pad(points, (0, -len(points) % WIDTH)).view(-1, WIDTH)
    return torch.nn.functional.pad(padded, (0, 1), value=last)


def nearest_even(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """where the scale is a power of two, x is rounded to the nearest, of two the one of an even code"""
    for kind in DTYPES:
        points, wanted = near_midpoints(kind)
        most = numbers(kind)[-1]
        inside = points.abs() <= most
        for power_of_2 in (False, True):
            for factor in (1.0, 2.0**-EXPONENT, 2.0**EXPONENT):
                x = _rows(points[inside] * factor, most * factor)
                codes, scale = _answers(call, x, device, dtype=kind, power_of_2=power_of_2, eps=1e-30)
                got = codes[:, :WIDTH].reshape(-1)[: int(inside.sum())]
                if not (scale == factor).all() or not torch.equal(got, wanted[inside]):
                    return False
    return True


def every_number(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """numbers of the type come back as their codes, of both signs"""
    for kind in DTYPES:
        values = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(kind).float()
        values = values[values.isfinite()]
        x = _rows(values, numbers(kind)[-1]).to(torch.float32 if dtype == torch.float16 else dtype)
        codes, scale = _answers(call, x, device, dtype=kind)
        got = codes[:, :WIDTH].reshape(-1)[: len(values)]
        if not (scale == 1).all() or not torch.equal(got, codes_of(values.to(kind))):
            return False
    return True


def without_numbers(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """NaN makes its group NaN; Inf the scale Inf, itself NaN and the others 0; the row beside is as it was"""
    x = torch.full((5, 9), -1.0, dtype=dtype)
    x[:, 4] = 448.0
    x[1, 2], x[2, 8], x[3, 0], x[4, 3], x[4, 5] = torch.nan, torch.inf, -torch.inf, torch.nan, torch.inf
    for kind in DTYPES:
        codes, scale = _answers(call, x, device, dtype=kind)
        alone, own = _answers(call, x[:1], device, dtype=kind)
        nan = codes == OF_NAN
        if not torch.equal(nan[1:4].sum(-1), torch.tensor([9, 1, 1])) or not nan[4].all():
            return False
        if not (nan[2, 8] and nan[3, 0] and scale[[1, 4]].isnan().all() and (scale[2:4] == torch.inf).all()):
            return False
        if (codes[2:4][~nan[2:4]] & 0x7F).any() or not torch.equal(codes[0], alone[0]) or scale[0] != own[0]:
            return False
    return True


def next_to_nothing(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a group of zeros has the scale eps / largest, and what is below eps is divided by that"""
    x = torch.zeros(2, 7, dtype=dtype)
    x[:, 2] = -0.0
    x[1, 3:5] = torch.tensor([1.5, -2.0]) * 2.0**-EXPONENT
    for kind in DTYPES:
        most, negative = numbers(kind)[-1], 0 if "fnuz" in str(kind) else 0x80
        codes, scale = _answers(call, x, device, dtype=kind, eps=most * 2.0**-EXPONENT)
        wanted = torch.tensor([1.5, -2.0]).to(kind).view(torch.uint8).short()
        if not (scale == 2.0**-EXPONENT).all() or not torch.equal(codes[1, 3:5], wanted):
            return False
        if codes[0].tolist() != [0, 0, negative, 0, 0, 0, 0]:
            return False
    return True


def upwards(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """with power_of_2 a scale is the next power of two, itself where it is one"""
    for kind in DTYPES:
        most = numbers(kind)[-1]
        tops = torch.tensor([most, most * 1.0625, most * 0.5, most * 0.53125, most * 2.0**-60]).to(dtype)
        if dtype == torch.float16:
            tops = tops.float()
        x = torch.zeros(5, 3, dtype=tops.dtype)
        x[:, 1] = -tops
        _, scale = _answers(call, x, device, dtype=kind, power_of_2=True, eps=1e-30)
        if scale.tolist() != [1.0, 2.0, 0.5, 1.0, 2.0**-60]:
            return False
    return True


def greatest_anywhere(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the greatest magnitude of a group is found wherever it is, in long rows too"""
    for length in (65, 129, 700, 5000, 66000):
        places = torch.tensor([0, 63, 64, length // 2, length - 1])
        x = torch.full((len(places), 1, length), 0.5, dtype=dtype)
        x[torch.arange(len(places)), 0, places] = -2.0
        _, scale = call({"x": x.to(device), "dtype": torch.float8_e5m2, "power_of_2": True})
        groups = scale.cpu().reshape(len(places), -1)
        wanted = torch.full_like(groups, 2.0**-16)
        wanted[torch.arange(len(places)), places // 128 if groups.shape[1] > 1 else 0] = 2.0**-14
        if not torch.equal(groups, wanted):
            return False
    return True


PROBES = (greatest_anywhere, nearest_even, every_number, without_numbers, next_to_nothing, upwards)
