"""The meaning of softmax and of its gradient, in float64 on the CPU.

Magnitudes are the error scales of the accuracy bound: what one unit of float32 rounding in the
inputs of the last steps can move each element by, before anything cancels.
"""

from __future__ import annotations

import torch
from torch import Tensor

# exp of a very negative number is a subnormal float32, good to one step of 2^-149: that many of the
# bound's units of 2^-23.
_SUBNORMAL_STEP = 2.0**-126


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """y = exp(x - max) / sum(exp(x - max)) along `dim`; a row of -inf is NaN, as is one with +inf."""
    return torch.softmax(x, dim)


def error_scale(x: Tensor, dim: int = -1) -> dict[str, Tensor]:
    """The scale of softmax's error.

    x - max is rounded to a relative u, so the exponent moves by u * |x - max| and exp by that
    relatively. The sum inherits the weighted mean of it. Hence y * (d + sum(y * d)), d = |x - max|.
    """
    y = torch.softmax(x, dim)
    if x.numel() == 0:
        return {"y": y}
    distance = (x - x.amax(dim, keepdim=True)).abs()
    distance = torch.where(y > 0, distance, 0.0)
    return {"y": y * (distance + (y * distance).sum(dim, keepdim=True)) + _SUBNORMAL_STEP}


def softmax_backward(dy: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """dx = y * (dy - sum(dy * y)) along `dim`."""
    return y * (dy - (dy * y).sum(dim, keepdim=True))


def error_scale_backward(dy: Tensor, y: Tensor, dim: int = -1) -> dict[str, Tensor]:
    """The scale of its error: y * (|dy| + |s| + rss), the terms of dy - s before they cancel, where
    s = sum(dy * y) carries a rounding error in proportion to the root of its sum of squares."""
    product = dy * y
    total = product.sum(dim, keepdim=True).abs()
    return {"dx": y.abs() * (dy.abs() + total + product.square().sum(dim, keepdim=True).sqrt())}
