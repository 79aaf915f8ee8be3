"""The meaning of matmul, in float64 on the CPU."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_TF32_UNITS = 2.0**14  # 2^-9, what cutting both factors to TF32 may do to a product, in units of 2^-23


def matmul(a: Tensor, b: Tensor, *, precision: str = "ieee") -> Tensor:
    """c = a @ b over the last two dimensions; leading dimensions broadcast.

    precision="tf32" allows an implementation to round the factors, it does not ask for it; so the
    meaning is the same and the error_scale is wider. "bf16x6" allows split products, within the bound of
    IEEE ones.
    """
    return torch.matmul(a, b)


def error_scale(a: Tensor, b: Tensor, *, precision: str = "ieee") -> dict[str, Tensor]:
    """The scale of matmul's error: the root of the sum of squares of the products.

    K roundings of independent sign, each in proportion to a partial sum of that size, add up to
    sqrt(K) units of it, the tolerance's factor. TF32 adds 2^-9 of |c| (factors cut towards zero move
    every product the same way) and of four standard deviations of what is random about it, which
    does not grow with K: hence the division by the factor 2 * sqrt(K).
    """
    spread = torch.matmul(a.square(), b.square()).sqrt()
    if precision == "tf32":
        units = _TF32_UNITS / (2 * math.sqrt(max(a.shape[-1], 1)))
        return {"c": spread + units * (torch.matmul(a, b).abs() + 4 * spread)}
    return {"c": spread}
