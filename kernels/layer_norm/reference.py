"""The meaning of layer_norm and of its gradient, in float64 on the CPU.

Magnitudes are the error scales of the accuracy bound: the terms of each result before they cancel.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _rows(each: Tensor) -> Tensor:
    return each.reshape(-1, each.shape[-1]) if each.numel() else each.new_zeros(0, each.shape[-1])


def _statistics(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The mean and rsqrt(var + eps) of each row; the variance is the biased one."""
    mean = x.mean(-1, keepdim=True)
    return mean, torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + eps)


def _mean_scale(terms: Tensor) -> Tensor:
    """What the error of a computed mean goes with: the mean, and its terms' spread before they cancel."""
    spread = terms.square().sum(-1, keepdim=True).sqrt() / max(terms.shape[-1], 1)
    return terms.mean(-1, keepdim=True).abs() + spread


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5
) -> Tensor:
    """y = (x - mean) * rsqrt(var + eps) * weight + bias over the last dimension."""
    mean, r = _statistics(x, eps)
    y = (x - mean) * r
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def error_scale(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5
) -> dict[str, Tensor]:
    """The scale of layer_norm's error: |weight| * rstd * (|x| + m) + |bias|, m of `_mean_scale`.

    x - mean cancels, and the bias may cancel again.
    The variance sums squares of centred values, so its error is relative and covered by |ref|.
    """
    _, r = _statistics(x, eps)
    scale = r * (x.abs() + _mean_scale(x))
    scale = scale if weight is None else scale * weight.abs()
    return {"y": scale if bias is None else scale + bias.abs()}


def layer_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """dx = r * (g - mean(g) - n * mean(g * n)), dweight = sum over rows of dy * n and dbias = that of
    dy, where r = rsqrt(var + eps), n = (x - mean) * r and g = dy * weight. dweight is empty without a
    weight, dbias without a bias."""
    mean, r = _statistics(x, eps)
    n = (x - mean) * r
    g = dy if weight is None else dy * weight
    dx = r * (g - g.mean(-1, keepdim=True) - n * (g * n).mean(-1, keepdim=True))
    dweight = x.new_empty(0) if weight is None else _rows(dy * n).sum(0)
    dbias = x.new_empty(0) if bias is None else _rows(dy).sum(0)
    return dx, dweight, dbias


def error_scale_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5
) -> dict[str, Tensor]:
    """The scale of its error.

    n is off by q = r * (|x| + m) units (see `error_scale`), so wherever n stands, |n| + q does here.
    dx subtracts three terms: |g|, |mean(g)| and |n| * |mean(g * n)|; a mean's own rounding error goes
    with the root of the sum of squares of its terms over N. An error that all of a row's n share (that
    of the mean) moves mean(g * n) by mean(g) times it. dweight and dbias are sums over rows: the roots
    of the sums of squares of their terms.
    """
    mean, r = _statistics(x, eps)
    n = (x - mean) * r
    g = dy if weight is None else dy * weight
    length = max(x.shape[-1], 1)
    q = r * (x.abs() + _mean_scale(x))
    wide = n.abs() + q
    shared = _mean_scale(g) * r * _mean_scale(x)
    product = _mean_scale(g * n) + (g * q).square().sum(-1, keepdim=True).sqrt() / length + shared
    dx = r * (g.abs() + _mean_scale(g) + wide * product)
    dweight = x.new_empty(0) if weight is None else _rows(dy.abs() * wide).square().sum(0).sqrt()
    dbias = x.new_empty(0) if bias is None else _rows(dy).square().sum(0).sqrt()
    return {"dx": dx, "dweight": dweight, "dbias": dbias}
