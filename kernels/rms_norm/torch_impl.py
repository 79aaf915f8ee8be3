"""rms_norm and its gradient through torch: any device, float32 inside (float64 for float64)."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6) -> Tensor:
    """y = x * rsqrt(mean(x^2) + eps) * weight, rounded once.

    torch's own rms_norm rounds before the weight where the dtypes differ, so it is not used.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    y = x.to(wide)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.to(wide)).to(x.dtype)


def rms_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """The gradients of x and weight, each rounded once; dweight is empty without a weight."""
    wide = torch.promote_types(x.dtype, torch.float32)
    dtype, length = x.dtype, x.shape[-1]
    dy, x = dy.to(wide), x.to(wide)
    r = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    g = dy if weight is None else dy * weight.to(wide)
    normed = x * r
    dx = r * (g - normed * (g * normed).mean(-1, keepdim=True))
    if weight is None:
        return dx.to(dtype), x.new_empty(0, dtype=dtype)
    rows = x.numel() // max(length, 1)
    return dx.to(dtype), (dy * normed).reshape(rows, length).sum(0).to(weight.dtype)
