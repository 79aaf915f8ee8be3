"""The meaning of int4_mm, in float64 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels._lib import minifloat

ZERO_POINT = 8
"""That of codes without one: the middle of 0 to 15."""


def numbers(weight: Tensor, zero_point: Tensor | None = None) -> Tensor:
    """The codes less their zero points, int16: those of weight [..., G, P] are [..., G, 2 * P]."""
    code = minifloat.unpack(weight).to(torch.int16)
    return code - (ZERO_POINT if zero_point is None else zero_point.to(torch.int16).unsqueeze(-1))


def int4_mm(
    x: Tensor, weight: Tensor, scale: Tensor, zero_point: Tensor | None = None, offset: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """y = x @ w.T + bias over the last dimension; weight is [N, G, P]. Group by group: Inf in x meets the
    codes and the offset apart."""
    y = x.new_zeros(*x.shape[:-1], len(weight))
    w = numbers(weight, zero_point).to(x.dtype)
    for group, part in enumerate(x.unflatten(-1, (weight.shape[1], -1)).unbind(-2)):
        y = y + part @ w[:, group].T * scale[:, group]
        if offset is not None:
            y = y + part.sum(-1, keepdim=True) * offset[:, group]
    return y if bias is None else y + bias


def error_scale(
    x: Tensor, weight: Tensor, scale: Tensor, zero_point: Tensor | None = None, offset: Tensor | None = None,
    bias: Tensor | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """The root of the sum of squares of the products with scaled codes, that of x and the offsets, and
    |bias|."""
    square = x.square()
    w = numbers(weight, zero_point).to(x.dtype) * scale.unsqueeze(-1)
    spread = (square @ w.square().flatten(1).T).sqrt()
    if offset is not None:
        of_groups = square.unflatten(-1, (weight.shape[1], -1)).sum(-1)
        spread = spread + (of_groups @ offset.square().T).sqrt()
    return {"y": spread if bias is None else spread + bias.abs()}
