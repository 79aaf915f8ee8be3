"""The tile scheduler of attention's Triton kernels, and its tables for variable-length sequences.

Packed sequences follow each other: sequence z has the tokens between its bounds, and a table made on the GPU
has an entry for every VARLEN_TILE of them. Sequence 0 is what lies before the first offset, the last one what
lies after the last; their tokens see no key, and no query sees them.
"""

from __future__ import annotations

import triton
import triton.language as tl

VARLEN_TILE: tl.constexpr = tl.constexpr(128)
ENTRY_WORDS: tl.constexpr = tl.constexpr(8)
FAR: tl.constexpr = tl.constexpr(2**30)


@triton.jit
def work_tile(
    pid, tiles_ptr, tiles, heads, M, N,
    OF_KEYS: tl.constexpr, LAST_FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(tile, head, batch, q_start, k_start, M, N, diagonal) of program `pid`: its tile of BLOCK rows, its
    head and batch; the index of the batch among queries and among keys; the lengths; what is added to the
    window's bounds.

    With varlen the batch is the sequence's first tile of `statistics_row`, and q_start and k_start are its
    first tokens, where a batch stride is a row stride. The heads of a tile are neighbours, and a tile may
    lie outside its sequence.
    """
    if tiles_ptr is None:
        batch = pid // tiles // heads
        tile = pid % tiles
        if LAST_FIRST:
            tile = tiles - 1 - tile
        return tile, pid // tiles % heads, batch, batch, batch, M, N, 0
    else:
        TILES_PER_ENTRY: tl.constexpr = VARLEN_TILE // BLOCK
        entry = tiles_ptr + (pid // heads // TILES_PER_ENTRY).to(tl.int64) * ENTRY_WORDS
        number, batch = tl.load(entry), tl.load(entry + 1)
        q_start, M = tl.load(entry + 2), tl.load(entry + 3)
        k_start, N = tl.load(entry + 4), tl.load(entry + 5)
        tile = number * TILES_PER_ENTRY + pid // heads % TILES_PER_ENTRY
        if LAST_FIRST:
            tile = tl.cdiv(N if OF_KEYS else M, BLOCK) - 1 - tile
        return tl.where(number < 0, -1, tile), pid % heads, batch, q_start, k_start, M, N, N - M


@triton.jit
def statistics_row(tiles_ptr, batch, head, heads, padded):
    """Where a head's lse_log2 and delta begin: whole tiles, so that no block reads those of the next head."""
    if tiles_ptr is None:
        return (batch * heads + head).to(tl.int64) * padded
    else:
        return head.to(tl.int64) * padded + batch * VARLEN_TILE


@triton.jit
def sequence_start(ptr, z, count, total, BLOCK: tl.constexpr):
    """Where sequence z begins: the largest of the offsets up to its own, each clamped to 0..total."""
    running_max = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, tl.minimum(z, count), BLOCK):
        at = start + tl.arange(0, BLOCK)
        running_max = tl.maximum(running_max, tl.load(ptr + at, mask=at < tl.minimum(z, count), other=0))
    return tl.where(z > count, total, tl.minimum(tl.max(running_max, 0), total))


@triton.jit
def varlen_bounds(q_offsets_ptr, k_offsets_ptr, bounds_ptr, count, M, N, BLOCK: tl.constexpr):
    """Where sequence z begins and ends among the queries and among the keys: four numbers."""
    z = tl.program_id(0)
    bounds_ptr += 4 * z
    tl.store(bounds_ptr, sequence_start(q_offsets_ptr, z, count, M, BLOCK))
    tl.store(bounds_ptr + 1, sequence_start(q_offsets_ptr, z + 1, count, M, BLOCK))
    tl.store(bounds_ptr + 2, sequence_start(k_offsets_ptr, z, count, N, BLOCK))
    tl.store(bounds_ptr + 3, sequence_start(k_offsets_ptr, z + 1, count, N, BLOCK))


@triton.jit
def varlen_tiles(bounds_ptr, q_tiles_ptr, k_tiles_ptr, sequences, q_entries, k_entries, BLOCK: tl.constexpr):
    """Writes the entries of sequence z to the tables of query tiles and of key tiles."""
    if tl.program_id(1) == 0:
        fill_tiles(q_tiles_ptr, bounds_ptr, sequences, q_entries, False, BLOCK)
    if k_tiles_ptr is not None and tl.program_id(1) == 1:
        fill_tiles(k_tiles_ptr, bounds_ptr, sequences, k_entries, True, BLOCK)


@triton.jit
def fill_tiles(tiles_ptr, bounds_ptr, sequences, entries, OF_KEYS: tl.constexpr, BLOCK: tl.constexpr):
    """An entry: the tile's index in its sequence, or -1; the sequence's first tile of `statistics_row`; its
    first query and the number of queries; the same for keys. Tokens of no sequence have no queries, or -1
    keys: no sink either. The sequences whose tiles meet the most come first, so that the last programs are
    short."""
    z = tl.program_id(0)
    q_start, M, k_start, N = sequence(bounds_ptr, z, z >= 0, sequences, OF_KEYS)  # pyright: ignore[reportGeneralTypeIssues]
    rows, cost = (N, M) if OF_KEYS else (M, N)
    before = tl.zeros((BLOCK,), tl.int32)
    every = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, sequences, BLOCK):
        other = start + tl.arange(0, BLOCK)
        _, its_M, _, its_N = sequence(bounds_ptr, other, other < sequences, sequences, OF_KEYS)
        its_rows, its_cost = (its_N, its_M) if OF_KEYS else (its_M, its_N)
        its_tiles = tl.cdiv(its_rows, VARLEN_TILE)
        every += its_tiles
        before += tl.where((its_cost > cost) | ((its_cost == cost) & (other < z)), its_tiles, 0)
    tiles, first = tl.cdiv(rows, VARLEN_TILE), tl.sum(before, 0)
    for start in range(0, tiles, BLOCK):
        tile = start + tl.arange(0, BLOCK)
        entry = tiles_ptr + (first + tile).to(tl.int64) * ENTRY_WORDS
        inside = tile < tiles
        tl.store(entry, tile, mask=inside)
        tl.store(entry + 1, q_start // VARLEN_TILE + z, mask=inside)
        tl.store(entry + 2, q_start, mask=inside)
        tl.store(entry + 3, M, mask=inside)
        tl.store(entry + 4, k_start, mask=inside)
        tl.store(entry + 5, N, mask=inside)
    if z == sequences - 1:
        for start in range(tl.sum(every, 0), entries, BLOCK):
            number = start + tl.arange(0, BLOCK)
            tl.store(tiles_ptr + number.to(tl.int64) * ENTRY_WORDS, -1, mask=number < entries)


@triton.jit
def sequence(bounds_ptr, z, exists, sequences, OF_KEYS: tl.constexpr):
    """(first query, queries, first key, keys) of sequence z, as entries have them; zeros unless `exists`."""
    own = bounds_ptr + 4 * z
    q_start = tl.load(own, mask=exists, other=0)
    k_start = tl.load(own + 2, mask=exists, other=0)
    M = tl.load(own + 1, mask=exists, other=0) - q_start
    N = tl.load(own + 3, mask=exists, other=0) - k_start
    outside = (z == 0) | (z == sequences - 1)
    if OF_KEYS:
        M = tl.where(outside, 0, M)
    else:
        N = tl.where(outside, -1, N)
    return q_start, M, k_start, N
