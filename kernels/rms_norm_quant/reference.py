"""The meaning of rms_norm_quant: rms_norm, rounded to x's dtype, then quantize_fp8.

y, the rounded norm, is a step function of x, and so are the scale and q. An implementation that is within
rms_norm's tolerance before the rounding has a |y| between two numbers that the tolerance gives; from these
two the quantiser's rule, which rises with |y| and falls with the scale, gives the ends of scale and q.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from portable.kernels.quantize_fp8 import reference as quantiser
from portable.kernels.rms_norm import reference as norm

ACCUMULATION = 0.001
"""accumulation_ulp of the spec: the error scales are in these units of acc."""
UNDERFLOW = 8.0
"""Of y in units of the smallest subnormal number of acc and of its tolerance squared, as the
suite has it."""


def row(
    x: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    scale_eps: float = 1e-10,
    power_of_2: bool = False,
    types: Mapping[str, str],
) -> tuple[Tensor, Tensor]:
    """q and a scale per row."""
    y = norm.rms_norm(x, weight, eps=eps, weight_offset=weight_offset)
    return quantiser.row(norm.rounded(y, types), power_of_2, scale_eps, types)


def error_scale(
    x: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    scale_eps: float = 1e-10,
    power_of_2: bool = False,
    types: Mapping[str, str],
) -> dict[str, Tensor]:
    """How far the ends of q and scale are from the reference's, in ACCUMULATION units of acc."""
    size = norm.rms_norm(x, weight, eps=eps, weight_offset=weight_offset).abs()
    terms = norm.error_scale(x, weight, eps=eps, weight_offset=weight_offset, types=types)["y"]
    off = before_rounding(size, terms, 4 + math.sqrt(size.shape[-1]), types)
    return moved(size, off, types, lambda y: quantiser.row(y, power_of_2, scale_eps, types))


def moved(
    size: Tensor,
    off: Tensor,
    types: Mapping[str, str],
    quantise: Callable[[Tensor], tuple[Tensor, Tensor]],
    spread: Callable[[Tensor], Tensor] = lambda scale: scale,
) -> dict[str, Tensor]:
    """How far the ends of q and scale are from the reference's, in ACCUMULATION units of acc, where |y| is
    `size`, at most `off` away, before it is rounded. `quantise` is the quantiser's rule; `spread` gives each
    element its scale."""
    least, most = norm.rounded((size - off).clamp(min=0), types), norm.rounded(size + off, types)
    (_, low), (_, high) = quantise(least), quantise(most)
    q, scale = quantise(norm.rounded(size, types))
    above = quantiser.quantized(most, spread(low.float()), types["Q"])
    below = quantiser.quantized(least, spread(high.float()), types["Q"])
    unit = ACCUMULATION * torch.finfo(getattr(torch, types["acc"])).eps
    return {
        "q": torch.maximum(above - q, q - below) / unit,
        "scale": torch.maximum(high - scale, scale - low) / unit,
    }


def before_rounding(size: Tensor, terms: Tensor, steps: float, types: Mapping[str, str]) -> Tensor:
    """How far y, of |y| = `size`, may be from its reference before it is rounded to a narrower type than acc;
    where T is acc, after that rounding. `steps` is the accumulation_ulp of the op that makes y, `terms` its
    error scale."""
    acc = torch.finfo(getattr(torch, types["acc"]))
    rounding = 0.51 if types["T"] == types["acc"] else 0.0  # its result_ulp
    underflow = UNDERFLOW * steps**2 * acc.smallest_normal * acc.eps
    return acc.eps * (steps * (size + terms) + rounding * size) + underflow


def added(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    scale_eps: float = 1e-10,
    power_of_2: bool = False,
    types: Mapping[str, str],
) -> tuple[Tensor, Tensor, Tensor]:
    """q and a scale per row of the rounded sum, and that sum."""
    total = norm.rounded(x + residual, types)
    q, scale = row(
        *(total, weight),
        eps=eps,
        weight_offset=weight_offset,
        scale_eps=scale_eps,
        power_of_2=power_of_2,
        types=types,
    )
    return q, scale, total


def error_scale_added(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    scale_eps: float = 1e-10,
    power_of_2: bool = False,
    types: Mapping[str, str],
) -> dict[str, Tensor]:
    """Those of the rounded sum, which has every bit of the reference."""
    total = norm.rounded(x + residual, types)
    found = error_scale(
        *(total, weight),
        eps=eps,
        weight_offset=weight_offset,
        scale_eps=scale_eps,
        power_of_2=power_of_2,
        types=types,
    )
    return {**found, "new_residual": torch.zeros_like(total)}
