"""Exact answers of fused_add_rms_norm_quant: rms_norm_quant's, of sums with zeros, and a rounded sum."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from portable.kernels.rms_norm_quant import probes

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
Probe = Callable[[Call, torch.dtype, torch.device], bool]


def _beside_zeros(probe: Probe) -> Probe:
    @wraps(probe)
    def of_sums(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
        return probe(
            lambda given: call({**given, "residual": torch.zeros_like(given["x"])})[:2], dtype, device
        )

    return of_sums


def of_the_rounded_sum(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the norm is of the sum as new_residual has it: of 1 and 1 + eps / 2, which is 1"""
    x = torch.ones(2, 64, dtype=dtype)
    residual = torch.zeros_like(x)
    residual[:, ::2] = torch.finfo(dtype).eps / 2
    given = {"x": x.to(device), "residual": residual.to(device), "eps": 0.0}
    q, scale, total = call({**given, "dtype": torch.float8_e4m3fn})
    exact = torch.full((2, 1), 1 / 448)
    within = 2.0**-21 if dtype == torch.float32 else 0.0
    return (
        torch.equal(total.cpu(), x)
        and bool((q.cpu().float() == 448).all())
        and bool(((scale.cpu() - exact).abs() <= within * exact).all())
    )


PROBES = (of_the_rounded_sum, *map(_beside_zeros, probes.PROBES))
