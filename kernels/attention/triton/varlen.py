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
ENTRY: tl.constexpr = tl.constexpr(8)
FAR: tl.constexpr = tl.constexpr(2**30)


@triton.jit
def place(
    pid, tiles_ptr, tiles, heads, M, N,
    OF_KEYS: tl.constexpr, LAST_FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of program `pid`: its tile of BLOCK rows and its head; its batch, and what this counts as among the
    queries and among the keys; how many there are; and what the bounds of the diagonal still lack.

    Packed, the batch is a sequence, by the number of its first line. It counts as its first token, a row's
    stride each. The heads of a tile come one after the other, and a tile may lie outside its sequence.
    """
    if tiles_ptr is None:
        batch = pid // tiles // heads
        tile = pid % tiles
        if LAST_FIRST:
            tile = tiles - 1 - tile
        return tile, pid // tiles % heads, batch, batch, batch, M, N, 0
    else:
        PARTS: tl.constexpr = LINES // BLOCK
        entry = tiles_ptr + (pid // heads // PARTS).to(tl.int64) * ENTRY
        number, batch = tl.load(entry), tl.load(entry + 1)
        at_q, M = tl.load(entry + 2), tl.load(entry + 3)
        at_k, N = tl.load(entry + 4), tl.load(entry + 5)
        tile = number * PARTS + pid // heads % PARTS
        if LAST_FIRST:
            tile = tl.cdiv(N if OF_KEYS else M, BLOCK) - 1 - tile
        return tl.where(number < 0, -1, tile), pid % heads, batch, at_q, at_k, M, N, N - M


@triton.jit
def line_of(tiles_ptr, batch, head, heads, padded):
    """Where a head's lines of lse and delta begin: whole tiles, so that no block reads those of the next."""
    if tiles_ptr is None:
        return (batch * heads + head).to(tl.int64) * padded
    else:
        return head.to(tl.int64) * padded + batch * LINES


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
def ragged_tiles(bounds_ptr, q_tiles_ptr, k_tiles_ptr, sequences, q_entries, k_entries, BLOCK: tl.constexpr):
    """The entries of sequence z in the tables of tiles of queries and of keys."""
    if tl.program_id(1) == 0:
        fill_tiles(q_tiles_ptr, bounds_ptr, sequences, q_entries, False, BLOCK)
    if k_tiles_ptr is not None and tl.program_id(1) == 1:
        fill_tiles(k_tiles_ptr, bounds_ptr, sequences, k_entries, True, BLOCK)


@triton.jit
def fill_tiles(tiles_ptr, bounds_ptr, sequences, entries, OF_KEYS: tl.constexpr, BLOCK: tl.constexpr):
    """An entry: a tile's number in its sequence, or -1; the sequence's first line; its first query and how
    many there are; the same of its keys. Tokens of no sequence meet no queries, or -1 keys: no sink either.
    The sequences whose tiles meet most come first, so that the last programs are short ones."""
    z = tl.program_id(0)
    at_q, M, at_k, N = sequence(bounds_ptr, z, z >= 0, sequences, OF_KEYS)
    rows, cost = (N, M) if OF_KEYS else (M, N)
    before = tl.zeros((BLOCK,), tl.int32)
    every = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, sequences, BLOCK):
        other = start + tl.arange(0, BLOCK)
        _, its_M, _, its_N = sequence(bounds_ptr, other, other < sequences, sequences, OF_KEYS)
        its_rows, its_cost = (its_N, its_M) if OF_KEYS else (its_M, its_N)
        its_tiles = tl.cdiv(its_rows, LINES)
        every += its_tiles
        before += tl.where((its_cost > cost) | ((its_cost == cost) & (other < z)), its_tiles, 0)
    tiles, first = tl.cdiv(rows, LINES), tl.sum(before, 0)
    for start in range(0, tiles, BLOCK):
        tile = start + tl.arange(0, BLOCK)
        entry = tiles_ptr + (first + tile).to(tl.int64) * ENTRY
        inside = tile < tiles
        tl.store(entry, tile, mask=inside)
        tl.store(entry + 1, at_q // LINES + z, mask=inside)
        tl.store(entry + 2, at_q, mask=inside)
        tl.store(entry + 3, M, mask=inside)
        tl.store(entry + 4, at_k, mask=inside)
        tl.store(entry + 5, N, mask=inside)
    if z == sequences - 1:
        for start in range(tl.sum(every, 0), entries, BLOCK):
            number = start + tl.arange(0, BLOCK)
            tl.store(tiles_ptr + number.to(tl.int64) * ENTRY, -1, mask=number < entries)


@triton.jit
def sequence(bounds_ptr, z, there, sequences, OF_KEYS: tl.constexpr):
    """The first query of sequence z, how many there are, and the same of its keys, as entries have them."""
    own = bounds_ptr + 4 * z
    at_q = tl.load(own, mask=there, other=0)
    at_k = tl.load(own + 2, mask=there, other=0)
    M = tl.load(own + 1, mask=there, other=0) - at_q
    N = tl.load(own + 3, mask=there, other=0) - at_k
    outside = (z == 0) | (z == sequences - 1)
    if OF_KEYS:
        M = tl.where(outside, 0, M)
    else:
        N = tl.where(outside, -1, N)
    return at_q, M, at_k, N
