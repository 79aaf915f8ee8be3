"""The meaning of log_softmax and of its gradient, in float64 on the CPU.

Magnitudes are the error scales of the accuracy bound: the terms of each result before they cancel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """y = x - max - log(sum(exp(x - max))) along `dim`; a row of -inf is NaN, as is one with +inf."""
    # Where x is not contiguous, torch gives the result and its tangent other layouts, and then fails (2.13).
    return torch.log_softmax(x.contiguous(), dim)


def error_scale(x: Tensor, dim: int = -1) -> dict[str, Tensor]:
    """The scale of its error: |x - max|, the logarithm, and the error of the sum of exponentials relative to
    it: one unit, and what the rounding of each exponent moves it by."""
    y = torch.log_softmax(x, dim)
    if x.numel() == 0:
        return {"y": y}
    distance = (x - x.amax(dim, keepdim=True)).abs()
    finite = torch.where(distance.isfinite(), distance, 0.0)
    log_sum = (torch.logsumexp(x, dim, keepdim=True) - x.amax(dim, keepdim=True)).abs()
    moved = (y.exp().nan_to_num() * finite).sum(dim, keepdim=True)
    return {"y": finite + log_sum + 1 + moved}


def derived(dy: Tensor, dim: int = -1, *, bits: Any) -> dict[str, Tensor]:
    """For the suite, a y that is log_softmax's output, of logits of which some are -inf."""
    logits = 4 * torch.from_numpy(bits.normal(dy.numel())).reshape(dy.shape)
    masked = torch.from_numpy(bits.uniform(dy.numel())).reshape(dy.shape) < 0.05
    masked[..., :1] = False
    return {"y": torch.log_softmax(logits.masked_fill(masked, -torch.inf), dim)}


def log_softmax_backward(dy: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """dx = dy - exp(y) * sum(dy) along `dim`."""
    dy = dy.contiguous()
    return dy - y.contiguous().exp() * dy.sum(dim, keepdim=True)


def error_scale_backward(dy: Tensor, y: Tensor, dim: int = -1) -> dict[str, Tensor]:
    """The scale of its error: dy, and exp(y), whose rounded exponent moves it by |y|, times the sum, which
    has a rounding error in proportion to the root of its sum of squares."""
    total = dy.sum(dim, keepdim=True).abs()
    spread = dy.square().sum(dim, keepdim=True).sqrt()
    factor = torch.where(y.isfinite(), y.exp() * (1 + y.abs()), 0.0)
    return {"dx": dy.abs() + factor * (total + spread)}
