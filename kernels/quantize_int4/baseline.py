"""What a user of torch alone would write, of even rows: the baselines of the 4-bit quantisers' throughput."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _packed(codes: Tensor) -> Tensor:
    codes = codes.to(torch.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4


def _divided(x: Tensor, by: float) -> Tensor:
    """By a tensor: on GPUs torch multiplies by the reciprocal of a number, and a symmetric row's greatest
    magnitude, which is a tie, would then round to another code."""
    return x / x.new_full((), by)


def symmetric(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    scale = _divided(x.abs().amax(-1, keepdim=True).float().clamp(min=eps), 7.5)
    return _packed(((x.float() * scale.reciprocal()).round() + 8).clamp(0, 15)), scale


def asymmetric(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    least, most = (each.float() for each in x.aminmax(dim=-1, keepdim=True))
    least = least.clamp(max=0)
    scale = _divided((most.clamp(min=0) - least).clamp(min=eps), 15)
    inverse = scale.reciprocal()
    zero = -(least * inverse).round()
    return _packed(((x.float() * inverse).round() + zero).clamp(0, 15)), scale, zero.to(torch.uint8)


def derived(given: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Tensor]:
    """Nothing: scales follow from x."""
    return {}
