"""The meaning of int_mm and int8_scaled_mm: exact sums, and IEEE float32 in a fixed order.

float64 holds every sum of fewer than 2^39 products of int8 exactly. A product or sum of two float32 numbers
that float64 has rounded is rounded to float32 as the exact one is.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from portable import dtypes


def _sums(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, int64."""
    return (a.double() @ b.double()).to(torch.int64)


def int_mm(a: Tensor, b: Tensor) -> Tensor:
    """c = a @ b, modulo 2^32."""
    return _sums(a, b).to(torch.int32)


def int8_scaled_mm(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    a_zero_point: Tensor | None = None, *, types: Mapping[str, str],
) -> Tensor:  # fmt: skip
    """c = ((mat_a - a_zero_point) @ mat_b) * scale_a * scale_b + bias; scale_a and a_zero_point are [M, 1],
    scale_b is [1, N]."""
    acc = _sums(mat_a, mat_b)
    if a_zero_point is not None:
        acc = acc - a_zero_point.long() * mat_b.long().sum(0)
    c = acc.to(torch.int32).float()
    for scale in (scale_a, scale_b):
        c = (c.double() * scale.double()).float()
    if bias is not None:
        c = (c.double() + bias.double()).float()
    return c.to(dtypes.of(types["R"]).storage).double()
