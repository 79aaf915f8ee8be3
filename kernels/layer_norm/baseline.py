"""What a user of torch alone would call: the baselines of layer_norm's throughput."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5
) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def layer_norm_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    mean: Tensor,
    rstd: Tensor,
) -> object:
    """torch's fused backward reads the forward's statistics: float32, x's shape but for a last 1."""
    mask = [True, weight is not None, bias is not None]
    return torch.ops.aten.native_layer_norm_backward(dy, x, x.shape[-1:], mean, rstd, weight, bias, mask)
