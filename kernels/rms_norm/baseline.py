"""What a user of torch alone would call: the baselines of rms_norm's throughput."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    cast_before_weight: bool = False,
) -> Tensor:
    if weight is not None and weight_offset:
        weight = weight + weight_offset
    if weight is not None and cast_before_weight:
        return F.rms_norm(x, x.shape[-1:], None, eps) * weight
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def rms_norm_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    cast_before_weight: bool = False,
    rstd: Tensor,
) -> tuple[Tensor, Tensor]:
    """torch's fused backward reads the forward's rstd: float32, x's shape with a last dimension of 1. It
    knows no rounding before the weight, which would change dweight alone."""
    mask = [True, weight is not None]
    if weight is not None and weight_offset:
        weight = weight + weight_offset
    return torch.ops.aten._fused_rms_norm_backward(dy, x, x.shape[-1:], rstd, weight, mask)
