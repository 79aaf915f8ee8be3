"""layer_norm and its gradient through torch: any device, float32 inside (float64 for float64)."""

from __future__ import annotations

import torch
from torch import Tensor


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5
) -> Tensor:
    """y = (x - mean) * rsqrt(var + eps) * weight + bias, rounded once.

    The mean is taken first and the squares of what is centred after it, so that a large common offset
    costs no more than its own rounding.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    y = x.to(wide)
    y = y - y.mean(-1, keepdim=True)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * weight.to(wide)
    return (y if bias is None else y + bias.to(wide)).to(x.dtype)


def layer_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias, each rounded once; empty for what is absent."""
    wide = torch.promote_types(x.dtype, torch.float32)
    dtype, length = x.dtype, x.shape[-1]
    rows = x.numel() // max(length, 1)
    dy, x = dy.to(wide), x.to(wide)
    centred = x - x.mean(-1, keepdim=True)
    r = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    normed = centred * r
    g = dy if weight is None else dy * weight.to(wide)
    dx = r * (g - g.mean(-1, keepdim=True) - normed * (g * normed).mean(-1, keepdim=True))
    given = next((p for p in (weight, bias) if p is not None), None)
    dweight = dbias = x.new_empty(0, dtype=dtype if given is None else given.dtype)
    if weight is not None:
        dweight = (dy * normed).reshape(rows, length).sum(0).to(weight.dtype)
    if bias is not None:
        dbias = dy.reshape(rows, length).sum(0).to(bias.dtype)
    return dx.to(dtype), dweight, dbias
