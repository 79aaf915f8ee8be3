"""What a user of torch alone would call: the baselines of fused_add_rms_norm's throughput."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from portable.kernels.rms_norm import baseline as norm


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, **settings: Any
) -> tuple[Tensor, Tensor]:
    total = x + residual
    return norm.rms_norm(total, weight, **settings), total


def fused_add_rms_norm_backward(
    dy: Tensor,
    x: Tensor,
    dnew_residual: Tensor,
    weight: Tensor | None = None,
    *,
    rstd: Tensor,
    **settings: Any,
) -> object:
    """What autograd runs; torch's fused backward reads the forward's rstd."""
    dx, dweight = norm.rms_norm_backward(dy, x, weight, rstd=rstd, **settings)
    return dx + dnew_residual, dweight
