"""Exact answers of the quantiser with a given scale.

A probe is a function of a call of the op (its arguments by name, answering q), a dtype and a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.kernels.quantize_fp8.codes import DTYPES, codes_of, near_midpoints

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]


def _codes(call: Call, x: Tensor, scale: float, kind: torch.dtype, device: torch.device) -> Tensor:
    (q,) = call({"x": x.to(device), "scale": torch.tensor([scale], device=device), "dtype": kind})
    return codes_of(q.cpu())


def near_every_midpoint(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """every number, each midpoint of two and what lies beside it have the nearest code, the even one of two;
    what is too large, Inf too, has the largest, and NaN stays"""
    for kind in DTYPES:
        points, wanted = near_midpoints(kind)
        for factor in (1.0, 0.25):
            if not torch.equal(_codes(call, points * factor, factor, kind, device), wanted):
                return False
    return True


def ends_of_float32(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """no subnormal number is taken for 0: of a scale, of its reciprocal, of x"""
    wanted = torch.tensor([1.5, -1.0, 0.5])
    for kind in DTYPES:
        for exponent in (127, 126, -126, -127):
            x = wanted * 2.0**exponent if exponent < 0 else (wanted.double() * 2.0**exponent).float()
            if not torch.equal(_codes(call, x, 2.0**exponent, kind, device), codes_of(wanted.to(kind))):
                return False
    return True


def too_small_a_scale(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a scale whose reciprocal is infinite makes the largest numbers, and NaN of 0"""
    x = torch.tensor([1.0, -1e-30, 0.0])
    for kind in DTYPES:
        found = _codes(call, x, 2.0**-149, kind, device)
        points, codes = near_midpoints(kind)
        most = int(codes[points == torch.inf])
        if found.tolist() != [most, most | 0x80, 256]:
            return False
    return True


PROBES = (near_every_midpoint, ends_of_float32, too_small_a_scale)
