"""Exact answers of dequantize_nvfp4: every code by every scale, by global scales that are no numbers too."""

from __future__ import annotations

import torch

from portable.kernels.dequantize_fp8.probes import SCALES, TO, Call, same
from portable.kernels.dequantize_fp8.probes_mxfp4 import pairs


def every_pair_and_scale(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """each byte of two codes by each of the 256 scales, by each global scale: one rounding to float32"""
    q, scale, exact = pairs("float8_e4m3fn")
    for number in SCALES:
        whole = torch.tensor([number])
        wanted = (exact * whole.double()).float()
        for to in TO:
            given = {"q": q.to(device), "scale": scale.to(device), "global_scale": whole.to(device)}
            (y,) = call({**given, "output_dtype": to})
            if not same(y.cpu(), wanted.to(to)):
                return False
    return True


PROBES = (every_pair_and_scale,)
