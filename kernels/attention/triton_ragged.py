"""Which tile of which head a program of attention's Triton kernels takes, and the tables that say so of
packed sequences.

Packed sequences lie one behind the other: sequence z has the tokens between its bounds, and a table made on
the card has an entry for every LINES of them. Sequence 0 is what lies before the first offset, the last one
what lies behind the last; they see nothing and nobody sees them.
"""

from __future__ import annotations

import triton
import triton.language as tl

LINES: tl.constexpr = tl.constexpr(128)
FAR: tl.constexpr = tl.constexpr(2**30)


@triton.jit
def place(
    pid, tiles_ptr, bounds_ptr, sequences, tiles, heads, M, N,
    OF_KEYS: tl.constexpr, LAST_FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of program `pid`: its tile of BLOCK rows, its head and its batch; what the batch counts as among the
    queries and among the keys; how many there are; and what its bounds still lack.

    Packed, the batch is a sequence, which counts by its first token, a row's stride each; the heads of a
    tile come one after the other; and a tile may lie outside the sequence.
    """
    if tiles_ptr is None:
        batch = pid // tiles // heads
        tile = pid % tiles
        if LAST_FIRST:
            tile = tiles - 1 - tile
        return tile, pid // tiles % heads, batch, batch, batch, M, N, 0
    else:
        PARTS: tl.constexpr = LINES // BLOCK
        entry = pid // heads // PARTS
        sequence = tl.load(tiles_ptr + 2 * entry)
        tile = tl.load(tiles_ptr + 2 * entry + 1) * PARTS + pid // heads % PARTS
        own = bounds_ptr + 4 * tl.maximum(sequence, 0)
        at_q, at_k = tl.load(own), tl.load(own + 2)
        M, N = tl.load(own + 1) - at_q, tl.load(own + 3) - at_k
        nothing = (sequence < 0) | outside(sequence, sequences)
        if OF_KEYS:
            rows = N
            M = tl.where(nothing, 0, M)
        else:
            rows = M
            N = tl.where(nothing, 0, N)
        if LAST_FIRST:
            tile = tl.cdiv(rows, BLOCK) - 1 - tile
        return tl.where(sequence < 0, -1, tile), pid % heads, sequence, at_q, at_k, M, N, N - M


@triton.jit
def line_of(tiles_ptr, batch, at_q, head, heads, padded):
    """Where a head's lines of lse and delta begin: whole tiles, so that no block reads those of the next."""
    if tiles_ptr is None:
        return (batch * heads + head).to(tl.int64) * padded
    else:
        return head.to(tl.int64) * padded + (at_q // LINES + batch) * LINES


@triton.jit
def outside(sequence, sequences):
    """Whether these are the tokens of no sequence."""
    return (sequence == 0) | (sequence == sequences - 1)


@triton.jit
def offset_of(ptr, z, count, total, BLOCK: tl.constexpr):
    """Where sequence z begins: the largest of the offsets up to its own, all of them within 0..total."""
    most = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, tl.minimum(z, count), BLOCK):
        at = start + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.load(ptr + at, mask=at < tl.minimum(z, count), other=0))
    return tl.where(z > count, total, tl.minimum(tl.max(most, 0), total))


@triton.jit
def ragged_bounds(q_offsets_ptr, k_offsets_ptr, bounds_ptr, count, M, N, BLOCK: tl.constexpr):
    """Where sequence z begins and ends among the queries and among the keys: four numbers."""
    z = tl.program_id(0)
    bounds_ptr += 4 * z
    tl.store(bounds_ptr, offset_of(q_offsets_ptr, z, count, M, BLOCK))
    tl.store(bounds_ptr + 1, offset_of(q_offsets_ptr, z + 1, count, M, BLOCK))
    tl.store(bounds_ptr + 2, offset_of(k_offsets_ptr, z, count, N, BLOCK))
    tl.store(bounds_ptr + 3, offset_of(k_offsets_ptr, z + 1, count, N, BLOCK))


@triton.jit
def ragged_tiles(
    bounds_ptr, q_tiles_ptr, k_tiles_ptr, sequences, q_entries, k_entries, BLOCK: tl.constexpr
):
    """The entries of sequence z in the tables of tiles of queries and of keys."""
    if tl.program_id(1) == 0:
        fill_tiles(q_tiles_ptr, bounds_ptr, sequences, q_entries, 0, BLOCK)
    if k_tiles_ptr is not None and tl.program_id(1) == 1:
        fill_tiles(k_tiles_ptr, bounds_ptr, sequences, k_entries, 2, BLOCK)


@triton.jit
def fill_tiles(tiles_ptr, bounds_ptr, sequences, entries, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """An entry is a sequence and the number of its tile there, or -1. The sequences whose tiles meet most
    tokens of the other side come first, so that the last programs are short ones."""
    z = tl.program_id(0)
    rows, cost = rows_and_cost(bounds_ptr, z, z >= 0, sequences, SIDE)
    before = tl.zeros((BLOCK,), tl.int32)
    all = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, sequences, BLOCK):
        other = start + tl.arange(0, BLOCK)
        its_rows, its_cost = rows_and_cost(bounds_ptr, other, other < sequences, sequences, SIDE)
        its_tiles = tl.cdiv(its_rows, LINES)
        all += its_tiles
        before += tl.where((its_cost > cost) | ((its_cost == cost) & (other < z)), its_tiles, 0)
    tiles, first = tl.cdiv(rows, LINES), tl.sum(before, 0)
    for start in range(0, tiles, BLOCK):
        tile = start + tl.arange(0, BLOCK)
        at = tiles_ptr + 2 * (first + tile)
        tl.store(at, z, mask=tile < tiles)
        tl.store(at + 1, tile, mask=tile < tiles)
    if z == sequences - 1:
        for start in range(tl.sum(all, 0), entries, BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(tiles_ptr + 2 * at, -1, mask=at < entries)
            tl.store(tiles_ptr + 2 * at + 1, 0, mask=at < entries)


@triton.jit
def rows_and_cost(bounds_ptr, z, there, sequences, SIDE: tl.constexpr):
    """How many tokens sequence z has, and how many of the other side each of its tiles meets."""
    own = bounds_ptr + 4 * z
    rows = tl.load(own + SIDE + 1, mask=there, other=0) - tl.load(own + SIDE, mask=there, other=0)
    cost = tl.load(own + 3 - SIDE, mask=there, other=0) - tl.load(own + 2 - SIDE, mask=there, other=0)
    return rows, tl.where(outside(z, sequences), 0, cost)
