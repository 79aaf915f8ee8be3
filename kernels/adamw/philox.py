"""Philox4x32-10 (Salmon et al., 2011) and stochastic rounding in torch's operations."""

from __future__ import annotations

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
ROUNDS = 10


def _product(number: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The upper and the lower word of a 64-bit product of 32-bit numbers."""
    whole = number * (factor - (1 << 32) if factor >> 31 else factor)  # modulo 2^64
    lower = whole & WORD
    upper = (whole >> 32) & WORD
    return ((upper + number) & WORD if factor >> 31 else upper), lower


def philox(counter: list[Tensor], key: tuple[int, int]) -> list[Tensor]:
    """Four words, as int64, of a counter of four."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        (h0, l0), (h1, l1) = _product(c0, 0xD2511F53), _product(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return [c0, c1, c2, c3]


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
