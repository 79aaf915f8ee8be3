"""The meaning of rms_norm and of its gradient, in float64 on the CPU.

Magnitudes are the error scales of the accuracy bound: the terms of each result before they cancel.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _rows(each: Tensor) -> Tensor:
    return each.reshape(-1, each.shape[-1]) if each.numel() else each.new_zeros(0, each.shape[-1])


def _scale(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6) -> Tensor:
    """y = x * rsqrt(mean(x^2) + eps) * weight over the last dimension."""
    y = x * _scale(x, eps)
    return y if weight is None else y * weight


def error_scale(x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6) -> dict[str, Tensor]:
    """The scale of rms_norm's error beyond |ref|: none. The mean sums squares, so nothing cancels and
    every step's error is relative to the result."""
    return {"y": torch.zeros_like(x)}


def rms_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """dx = r * g - x * r^3 * mean(g * x) and dweight = sum over rows of dy * x * r, where
    r = rsqrt(mean(x^2) + eps) and g = dy * weight; dweight is empty without a weight."""
    r = _scale(x, eps)
    g = dy if weight is None else dy * weight
    dx = r * g - x * r**3 * (g * x).mean(-1, keepdim=True)
    dweight = x.new_empty(0) if weight is None else _rows(dy * x * r).sum(0)
    return dx, dweight


def error_scale_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6
) -> dict[str, Tensor]:
    """The scale of its error.

    dx is the difference of two terms: |r * g| and |x| * r^3 times the mean, whose own rounding error
    goes with the root of the sum of squares of its products over N. dweight is a sum over rows: the
    root of the sum of squares of its terms.
    """
    r = _scale(x, eps)
    g = dy if weight is None else dy * weight
    product = g * x
    mean = product.mean(-1, keepdim=True).abs()
    spread = product.square().sum(-1, keepdim=True).sqrt() / max(x.shape[-1], 1)
    dx = r * g.abs() + x.abs() * r**3 * (mean + spread)
    dweight = x.new_empty(0) if weight is None else _rows(dy * x * r).square().sum(0).sqrt()
    return {"dx": dx, "dweight": dweight}
