"""Philox4x32-10 (Salmon et al., 2011) in torch's operations."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

WORD = 0xFFFFFFFF
ROUNDS = 10


def _product(number: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The upper and the lower word of a 64-bit product of 32-bit numbers."""
    whole = number * (factor - (1 << 32) if factor >> 31 else factor)  # modulo 2^64
    lower = whole & WORD
    upper = (whole >> 32) & WORD
    return ((upper + number) & WORD if factor >> 31 else upper), lower


def philox(counter: list[Tensor], key: Sequence[int | Tensor]) -> list[Tensor]:
    """Four words, as int64, of a counter of four and a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        (h0, l0), (h1, l1) = _product(c0, 0xD2511F53), _product(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return [c0, c1, c2, c3]
