"""Exact answers of dequantize_int8, as dequantize_fp8's probes."""

from __future__ import annotations

import torch

from portable.kernels.dequantize_fp8.probes import SCALES, TO, Call, same


def every_code(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """each code less each zero point, brought to int8's range, by each scale"""
    q = torch.arange(-128, 128).to(torch.int8)
    zeros = torch.tensor([0, 1, -128, 127, 128, -1000, 2**31 - 1, -(2**31)], dtype=torch.int32)
    difference = q.long() - zeros[:, None].long().clamp(-128, 127)
    rows = q.expand(8, 256).contiguous().to(device)
    for number in SCALES:
        scale = torch.full((8, 1), number)
        for to in TO:
            given = {"q": rows, "scale": scale.to(device), "output_dtype": to}
            (y,) = call({**given, "zero_point": zeros[:, None].to(device)})
            if not same(y.cpu(), (difference.double() * scale.double()).float().to(to)):
                return False
            (y,) = call({**given, "zero_point": None})
            if not same(y.cpu()[0], (q.double() * scale[0].double()).float().to(to)):
                return False
    return True


PROBES = (every_code,)
