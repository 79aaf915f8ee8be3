"""Exact answers of quantize_mxfp4: those of probes.py, with two numbers in a byte and without NaN."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.kernels.quantize_fp8.codes import FP4, fp4_codes_of, fp4_points
from portable.kernels.quantize_mx.probes import (
    ROUNDINGS,
    Call,
    byte_of,
    rows_of_amax,
    rows_of_greatest,
    rows_without_numbers,
)


def _answers(call: Call, x: Tensor, device: torch.device, **params: Any) -> tuple[Tensor, Tensor]:
    """The codes and the bytes of the scales."""
    q, scale = call({"x": x.to(device), **params})
    return fp4_codes_of(q.cpu()), scale.cpu().view(torch.uint8).int()


def powers_of_two(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the scale is the power of two that the rounding says, beside powers of two, midpoints and the largest
    number, and for the smallest and the largest x"""
    x, amax = rows_of_amax(dtype)
    for rounding in ROUNDINGS:
        _, scale = _answers(call, x, device, rounding=rounding)
        if scale[:, 0].tolist() != [byte_of(each, rounding, FP4[-1], 1) for each in amax]:
            return False
    return True


def nearest_even(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """x over the scale is rounded to the nearest, of two the one of an even code, and saturated, in both
    halves of a byte"""
    points, wanted = fp4_points()
    inside = points.abs() < 8
    points, wanted = points[inside], wanted[inside]
    for factor, byte in ((1.0, 127), (2.0**-20, 107), (2.0**20, 147)):
        for shift in (0, 1):
            x = torch.nn.functional.pad(points, (shift, -(len(points) + shift) % 31)).view(-1, 31)
            x = torch.nn.functional.pad(x, (0, 1), value=4.0) * factor
            codes, scale = _answers(call, x, device, rounding="floor")
            got = codes[:, :31].reshape(-1)[shift : shift + len(points)]
            if not (scale == byte).all() or not torch.equal(got, wanted):
                return False
    return True


def greatest_anywhere(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the greatest magnitude of a group is found wherever it is, and groups do not meet"""
    for x, with_two in rows_of_greatest(dtype):
        codes, scale = _answers(call, x, device)
        if not torch.equal(scale, torch.where(with_two, 127 - 1, 127 - 3).int()):
            return False
        if x.shape[-1] % 2 and codes[:, -1].any():
            return False
    return True


def without_numbers(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """NaN and Inf make their scale NaN and their group 0, nothing else; of zeros the byte is 0 and the signs
    stay"""
    x, nan = rows_without_numbers(dtype)
    for rounding in ROUNDINGS:
        codes, scale = _answers(call, x, device, rounding=rounding)
        zeros = nan.clone()
        zeros[0, 32:64] = True
        if not torch.equal(scale == 255, nan[:, ::32]) or not torch.equal(codes % 8 == 0, zeros):
            return False
        if scale[0, 1] != 0 or codes[nan].any() or codes[0, 32:64].tolist() != [0] * 8 + [8] + [0] * 23:
            return False
    return True


PROBES = (powers_of_two, nearest_even, greatest_anywhere, without_numbers)
