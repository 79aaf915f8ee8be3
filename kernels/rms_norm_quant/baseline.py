"""What a user of torch alone would write: torch's norm, then the quantiser's baseline."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.kernels.quantize_fp8 import baseline as quantiser
from portable.kernels.rms_norm import baseline as norm


def row(
    x: Tensor,
    weight: Tensor | None = None,
    *,
    dtype: torch.dtype,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    scale_eps: float = 1e-10,
    power_of_2: bool = False,
) -> tuple[Tensor, Tensor]:
    y = norm.rms_norm(x, weight, eps=eps, weight_offset=weight_offset)
    return quantiser.row(y, dtype, power_of_2, scale_eps)


def added(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, **settings: Any
) -> tuple[Tensor, Tensor, Tensor]:
    total = x + residual
    return (*row(total, weight, **settings), total)
