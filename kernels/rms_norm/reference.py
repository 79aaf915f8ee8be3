"""The meaning of rms_norm and of its gradient, in float64 on the CPU.

Magnitudes are the error scales of the accuracy bound: the terms of each result before they cancel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


def _rows(each: Tensor) -> Tensor:
    return each.reshape(-1, each.shape[-1]) if each.numel() else each.new_zeros(0, each.shape[-1])


def _scale(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def rounded(value: Tensor, types: Mapping[str, str] | None, cast: bool = True) -> Tensor:
    """`value` rounded to the rows' dtype T, in its own; as it is where not `cast`, or without `types`."""
    if types is None or not cast:
        return value
    return value.to(getattr(torch, types["T"])).to(value.dtype)


def _flips(value: Tensor, types: Mapping[str, str], cast: bool) -> Tensor:
    """How far `value` is from its neighbour in T where the arithmetic before that rounding may decide which
    of the two it is, as an error scale: in units of eps(acc), for a tolerance of `_steps` of them."""
    if not cast or types["T"] == types["acc"]:
        return torch.zeros_like(value)
    eps, steps = torch.finfo(getattr(torch, types["acc"])).eps, _steps(value)
    return (rounded(value * (1 + steps * eps), types) - rounded(value * (1 - steps * eps), types)).abs() / (
        steps * eps
    )


def _steps(value: Tensor) -> float:
    """The spec's tolerance of y before its rounding."""
    return 4 + math.sqrt(value.shape[-1])


def _offset_error(offset: float, types: Mapping[str, str]) -> float:
    """What rounding the offset to `acc` changes, in units of eps(acc)."""
    acc = getattr(torch, types["acc"])
    return abs(float(torch.tensor(offset, dtype=acc)) - offset) / torch.finfo(acc).eps


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    cast_before_weight: bool = False,
    types: Mapping[str, str] | None = None,
) -> Tensor:
    """y = x * rsqrt(mean(x^2) + eps) * (weight + weight_offset) over the last dimension. `cast_before_weight`
    rounds what the weight multiplies to x's dtype, T of `types`."""
    y = x * _scale(x, eps)
    return y if weight is None else rounded(y, types, cast_before_weight) * (weight + weight_offset)


def error_scale(
    x: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    cast_before_weight: bool = False,
    types: Mapping[str, str],
) -> dict[str, Tensor]:
    """The scale of rms_norm's error beyond |ref|: none by default. The mean sums squares, so nothing cancels
    and every step's error is relative to the result. An offset that `acc` does not hold has its own error,
    and a value that is rounded before the weight may be rounded the other way."""
    y = x * _scale(x, eps)
    if weight is None:
        return {"y": torch.zeros_like(x)}
    flips = _flips(y, types, cast_before_weight) * (weight + weight_offset).abs()
    return {"y": flips + y.abs() * _offset_error(weight_offset, types)}


def rms_norm_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    cast_before_weight: bool = False,
    types: Mapping[str, str] | None = None,
) -> tuple[Tensor, Tensor]:
    """dx = r * g - x * r^3 * mean(g * x) and dweight = sum over rows of dy * x * r, where
    r = rsqrt(mean(x^2) + eps) and g = dy * (weight + weight_offset); dweight is empty without a weight. With
    `cast_before_weight` it takes x * r as rounded; dx passes through that rounding as if there were none."""
    r = _scale(x, eps)
    g = dy if weight is None else dy * (weight + weight_offset)
    dx = r * g - x * r**3 * (g * x).mean(-1, keepdim=True)
    if weight is None:
        return dx, x.new_empty(0)
    return dx, _rows(dy * rounded(x * r, types, cast_before_weight)).sum(0)


def error_scale_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    cast_before_weight: bool = False,
    types: Mapping[str, str],
) -> dict[str, Tensor]:
    """The scale of its error.

    dx is the difference of two terms: |r * g| and |x| * r^3 times the mean, whose own rounding error
    goes with the root of the sum of squares of its products over N. dweight is a sum over rows: the
    root of the sum of squares of its terms, and what may be rounded the other way.
    """
    r = _scale(x, eps)
    g = dy if weight is None else dy * (weight + weight_offset)
    product = g * x
    mean = product.mean(-1, keepdim=True).abs()
    spread = product.square().sum(-1, keepdim=True).sqrt() / max(x.shape[-1], 1)
    dx = r * g.abs() + x.abs() * r**3 * (mean + spread)
    if weight is None:
        return {"dx": dx, "dweight": x.new_empty(0)}
    off = dy.abs() * _offset_error(weight_offset, types)
    dx = dx + r * off + x.abs() * r**3 * (off * x.abs()).mean(-1, keepdim=True)
    flips = _rows(dy.abs() * _flips(x * r, types, cast_before_weight)).sum(0)
    return {"dx": dx, "dweight": _rows(dy * x * r).square().sum(0).sqrt() + flips}
