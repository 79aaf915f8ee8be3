"""Exact answers of dequantize_fp8.

A probe is a function of a call of the op (its arguments by name, answering y), a dtype and a device. q is
(R, 1, N), N at most 128: whatever the op's groups are, a row is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.kernels._lib import minifloat
from portable.kernels.quantize_fp8.codes import DTYPES

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
WIDE = torch.float32
SCALES = (1.0, -0.1, 3.0e-39, 1e38, 0.0, torch.inf, torch.nan)
"""Subnormal, too large, and no numbers among them."""
TO = (torch.bfloat16, torch.float16, WIDE)


def same(got: Tensor, wanted: Tensor) -> bool:
    """The same bits, any NaN for any."""
    alike = (got == wanted) & (got.signbit() == wanted.signbit()) | got.isnan() & wanted.isnan()
    return bool(alike.all())


def all_codes(dtype: torch.dtype) -> Tensor:
    return torch.arange(256, dtype=torch.int16).to(torch.uint8).view(dtype)


def every_code(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """each code by each scale is the product in float32, rounded once more: NaN, Inf and subnormal too"""
    for kind in DTYPES:
        values = minifloat.decode(all_codes(kind).view(torch.uint8), str(kind).removeprefix("torch."))
        for number in SCALES:
            scale = torch.full((2, 1, 1), number)
            for to in TO:
                q = all_codes(kind).view(2, 1, 128).to(device)
                (y,) = call({"q": q, "scale": scale.to(device), "output_dtype": to})
                wanted = (values * scale[0, 0, 0].double()).float().to(to)
                if not same(y.cpu().reshape(-1), wanted):
                    return False
    return True


PROBES = (every_code,)
