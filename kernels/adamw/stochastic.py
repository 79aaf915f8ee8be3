"""Stochastic rounding in torch's operations: random words of the elements, and what they do."""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels._lib.philox import WORD, philox


def random_words(first: int, count: int, number: int | Tensor, step: Tensor, seed: int) -> Tensor:
    """The word of each element from `first` on: word i % 4 of the counter (i / 4, number, step)."""
    begin, end = first // 4, -(-(first + count) // 4)
    group = torch.arange(begin, end, device=step.device)
    t = step.reshape(-1)[:1].long().expand_as(group)
    counter = [group & WORD, group >> 32, torch.zeros_like(group) + number, t]
    words = torch.stack(philox(counter, (seed & WORD, seed >> 32 & WORD)), -1).flatten()
    return words[first - 4 * begin :][:count]


def rounded_by(value: Tensor, sixteen_bits: Tensor) -> Tensor:
    """float32 as the bfloat16 above or below, by bits that are added under its last place; an infinity and a
    NaN as they are."""
    bits = value.view(torch.int32) + sixteen_bits.int()
    return torch.where(value.isfinite(), (bits & -0x10000).view(torch.float32), value).bfloat16()
