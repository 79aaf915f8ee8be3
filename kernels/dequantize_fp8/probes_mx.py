"""Exact answers of dequantize_mx: every code by powers of two, as dequantize_fp8's probes."""

from __future__ import annotations

import torch

from portable.kernels._lib import minifloat
from portable.kernels.dequantize_fp8.probes import TO, Call, all_codes, same


def every_code_and_byte(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """each code by each of the 256 bytes: 0 is 2^-127, 255 is NaN"""
    power = minifloat.decode(torch.arange(256), "float8_e8m0fnu")
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        values = minifloat.decode(all_codes(kind).view(torch.uint8), str(kind).removeprefix("torch."))
        q = all_codes(kind).view(1, 8, 32).expand(256, 8, 32).contiguous()
        scale = torch.arange(256).to(torch.uint8).view(torch.float8_e8m0fnu)
        scale = scale.view(torch.uint8)[:, None, None].expand(256, 8, 1).contiguous().view(scale.dtype)
        for to in TO:
            (y,) = call({"q": q.to(device), "scale": scale.to(device), "output_dtype": to})
            if not same(y.cpu().reshape(256, 256), (power[:, None] * values).float().to(to)):
                return False
    return True


PROBES = (every_code_and_byte,)
