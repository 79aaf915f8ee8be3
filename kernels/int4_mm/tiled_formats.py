"""The layouts of tinygemm and Marlin: codes in the order in which a warp's tensor cores take them.

Both hold the fragments of mma.m16n8k16's operand of 16 k and 8 columns: a lane's column is lane / 4, its four
k are 2 * (lane % 4) and the next one, and both plus 8. A word has two fragments, its nibbles from the lowest
`INTERLEAVED`. `formats.py` checks the sizes.
"""

from __future__ import annotations

from torch import Tensor

IN_ORDER, INTERLEAVED = (0, 1, 2, 3, 4, 5, 6, 7), (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of 8 neighbours the nibbles of an int32 hold, from the lowest: AWQ's are interleaved."""
INNER_K_TILES = (2, 4, 8)
"""Of tinygemm: tiles of 16 k whose words of a lane are neighbours."""


def to_tinygemm(code: Tensor, inner_k_tiles: int) -> Tensor:
    """Codes (N, K) as the eights of words (N / 8, K / (16 * inner), 32, inner / 2), in its last axis."""
    n, k = code.shape
    # n: tile, column; k: super-tile, word, tile of the word, upper half, pair, which of it
    split = code.reshape(n // 8, 8, k // (16 * inner_k_tiles), inner_k_tiles // 2, 2, 2, 4, 2)
    return split.permute(0, 2, 1, 6, 3, 4, 5, 7).reshape(
        n // 8, k // (16 * inner_k_tiles), 32, 4 * inner_k_tiles
    )


def from_tinygemm(eights: Tensor) -> Tensor:
    """Codes (N, K) of what `to_tinygemm` gives."""
    tiles, supers, lanes, wide = eights.shape
    split = eights.reshape(tiles, supers, 8, lanes // 8, wide // 8, 2, 2, 2)
    return split.permute(0, 2, 1, 4, 5, 6, 3, 7).reshape(8 * tiles, 4 * supers * wide)


def to_marlin(code: Tensor) -> Tensor:
    """Codes (N, K) as the eights of words (K / 16, 2 * N), in its last axis: tiles of 16 k and 64 columns."""
    n, k = code.shape
    # k: tile, upper half, pair, which of it; n: 64 columns, word, fragment, column
    split = code.t().reshape(k // 16, 2, 4, 2, n // 64, 4, 2, 8)
    return split.permute(0, 4, 7, 2, 5, 6, 1, 3).reshape(k // 16, 16 * n)


def from_marlin(eights: Tensor) -> Tensor:
    """Codes (N, K) of what `to_marlin` gives."""
    tiles, wide = eights.shape
    split = eights.reshape(tiles, wide // 1024, 8, 4, 4, 2, 2, 2)
    return split.permute(0, 6, 3, 7, 1, 4, 5, 2).reshape(16 * tiles, wide // 16).t()


def to_marlin_columns(scale: Tensor) -> Tensor:
    """A number for each column, (groups, N), in Marlin's order: of 64 columns a lane's 8 are neighbours."""
    groups, n = scale.shape
    return scale.reshape(groups, n // 64, 8, 8).transpose(2, 3).reshape(groups, n)


from_marlin_columns = to_marlin_columns  # a transposition of 8 x 8


def to_marlin_row(scale: Tensor) -> Tensor:
    """A number for each column of one group, (1, N): of 32 columns a lane's pairs are neighbours."""
    return scale.reshape(1, scale.shape[1] // 32, 4, 4, 2).transpose(2, 3).reshape(scale.shape)


from_marlin_row = to_marlin_row
