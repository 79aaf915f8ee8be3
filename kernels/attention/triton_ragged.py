"""attention over packed sequences in Triton, on the inner loops of the dense kernels.

Tokens keep their numbers in the packed tensors: query i of a sequence that ends at `last` sees key j of one
that ends at `until` where j - i lies between (until - last) - left and (until - last) + right. Sequence 0 is
what lies before the first offset, the last one what lies behind the last; they have no keys.
"""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._common.triton_rows import divisible
from portable.kernels.attention.triton_forward import attend
from portable.kernels.attention.triton_scores import keep_tile, tile_of


@triton.jit
def offset_of(ptr, z, count, total, BLOCK: tl.constexpr):
    """Where sequence z begins: the largest of the offsets up to its own, all of them within 0..total."""
    most = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, tl.minimum(z, count), BLOCK):
        at = start + tl.arange(0, BLOCK)
        most = tl.maximum(most, tl.load(ptr + at, mask=at < tl.minimum(z, count), other=0))
    return tl.where(z > count, total, tl.minimum(tl.max(most, 0), total))


@triton.jit
def ragged_tiles(
    offsets_ptr, others_ptr, bounds_ptr, tiles_ptr, count, total, others, entries,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of sequence z: its tokens' and its others' bounds, as four numbers, and its tiles' entries in `tiles`.

    A sequence's tiles begin at entry begin // TILE + z, which leaves room for all of those before it. An
    entry says which sequence it is of, or -1. The `others` are keys where the tiles are of queries, and the
    reverse.
    """
    z = tl.program_id(0)
    begin = offset_of(offsets_ptr, z, count, total, BLOCK)
    end = offset_of(offsets_ptr, z + 1, count, total, BLOCK)
    there = offset_of(others_ptr, z, count, others, BLOCK)
    until = offset_of(others_ptr, z + 1, count, others, BLOCK)
    outside = (z == 0) | (z == count)
    until = tl.where(outside, there, until)
    tl.store(bounds_ptr + 4 * z, begin)
    tl.store(bounds_ptr + 4 * z + 1, end)
    tl.store(bounds_ptr + 4 * z + 2, there)
    tl.store(bounds_ptr + 4 * z + 3, until)
    first = begin // TILE + z
    used = first + tl.cdiv(end - begin, TILE)
    stop = tl.where(z == count, entries, end // TILE + z + 1)
    for start in range(first, stop, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(tiles_ptr + at, tl.where(at < used, z, -1), mask=at < stop)


@triton.jit
def ragged_forward(
    q, k, v, q_rest, k_rest,
    q_ptr, q_batch, q_head, q_row, k_ptr, k_batch, k_head, k_row, v_ptr, v_batch, v_head, v_row,
    sinks_ptr, o_ptr, o_batch, o_head, o_row, lse_ptr, lse_batch, lse_head, lse_row,
    bounds_ptr, tiles_ptr, entries, count, share, left, right, scale, cap,
    LAZY: tl.constexpr, CAP: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, REST_D: tl.constexpr, BLOCK_E: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """o and lse of BLOCK_M queries of one sequence and head.

    A descriptor knows no sequences: what it reads beyond one is of the next, and a NaN among those
    values would get across. So blocks that need a mask, TAIL keys each, come through pointers.
    """
    head = tl.program_id(0) // entries
    entry = tl.program_id(0) % entries
    z = tl.load(tiles_ptr + entry)
    if z < 0:
        return
    begin, last = tl.load(bounds_ptr + 4 * z), tl.load(bounds_ptr + 4 * z + 1)
    there, until = tl.load(bounds_ptr + 4 * z + 2), tl.load(bounds_ptr + 4 * z + 3)
    tile = entry - begin // BLOCK_M - z
    if HIGH:
        tile = tl.cdiv(last - begin, BLOCK_M) - 1 - tile  # those with most keys first
    start_m = begin + tile * BLOCK_M
    low, high = until - last - left, until - last + right
    group = head // share
    if q_ptr is not None:
        q_ptr += head.to(tl.int64) * divisible(q_head, UNIT)
    if k_ptr is not None:
        k_ptr += group.to(tl.int64) * divisible(k_head, UNIT)
    v_ptr += group.to(tl.int64) * divisible(v_head, UNIT)
    o_ptr += head.to(tl.int64) * divisible(o_head, UNIT)
    queries = tile_of(q, q_ptr, q_row, 0, head, start_m, last, True, D, BLOCK_M, BLOCK_D, UNIT, WIDE)
    rest = None
    if REST_D > 0:
        rest = tile_of(
            q_rest, q_ptr, q_row, 0, head, start_m, last, True, D, BLOCK_M, REST_D, UNIT, WIDE, BLOCK_D
        )

    # The keys that some query of the tile sees, and of these the blocks that all of them see whole.
    last_m = tl.minimum(start_m + BLOCK_M, last) - 1
    first, stop, full_first, full_stop = there, until, there, until
    if LOW:
        first = tl.minimum(tl.maximum(start_m + low, there), until)
        first = there + (first - there) // BLOCK_N * BLOCK_N
        full_first = tl.maximum(last_m + low, there)
        full_first = there + tl.cdiv(full_first - there, BLOCK_N) * BLOCK_N
    if HIGH:
        stop = tl.maximum(tl.minimum(last_m + high + 1, until), there)
        full_stop = tl.maximum(tl.minimum(start_m + high + 1, until), there)
    full_stop = there + (full_stop - there) // BLOCK_N * BLOCK_N

    total = tl.zeros((BLOCK_M, BLOCK_E), dtype=tl.float32)
    sums = tl.zeros((BLOCK_M,), dtype=tl.float32)
    peak = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    if LOW:
        full_first = tl.minimum(full_first, there + tl.cdiv(stop - there, BLOCK_N) * BLOCK_N)
        total, sums, peak = attend(
            total, sums, peak, queries, rest, None, None, None, k_ptr, k_row, v_ptr, v_row, None, 0, 0, group,
            start_m, first, tl.minimum(full_first, stop), last, until, low, high, scale, cap, 0, 0,
            True, LAZY, CAP, LOW, HIGH, D, E, BLOCK_D, REST_D, BLOCK_E, UNIT, WIDE, PRECISION,
            BLOCK_M, TAIL,
        )  # fmt: skip
    full_stop = tl.maximum(full_stop, full_first)
    total, sums, peak = attend(
        total, sums, peak, queries, rest, k, k_rest, v, k_ptr, k_row, v_ptr, v_row, None, 0, 0, group,
        start_m, full_first, full_stop, last, until, low, high, scale, cap, 0, 0,
        False, LAZY, CAP, LOW, HIGH, D, E, BLOCK_D, REST_D, BLOCK_E, UNIT, WIDE, PRECISION,
        BLOCK_M, BLOCK_N,
    )  # fmt: skip
    total, sums, peak = attend(
        total, sums, peak, queries, rest, None, None, None, k_ptr, k_row, v_ptr, v_row, None, 0, 0, group,
        start_m, full_stop, stop, last, until, low, high, scale, cap, 0, 0,
        True, LAZY, CAP, LOW, HIGH, D, E, BLOCK_D, REST_D, BLOCK_E, UNIT, WIDE, PRECISION,
        BLOCK_M, TAIL,
    )  # fmt: skip

    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + head) * 1.4426950408889634
        sink = tl.where((z == 0) | (z == count), float("-inf"), sink)
        highest = tl.maximum(peak, sink)
        base = tl.where(highest == float("-inf"), 0.0, highest)
        shrink = tl.exp2(peak - base)
        sums = sums * shrink + tl.exp2(sink - base)
        total = total * shrink[:, None]
        peak = highest
    base = tl.where(peak == float("-inf"), 0.0, peak)
    rows = start_m + tl.arange(0, BLOCK_M)
    lse_ptr += head.to(tl.int64) * lse_head
    tl.store(
        lse_ptr + rows.to(tl.int64) * lse_row, (base + tl.log2(sums)) * 0.6931471805599453, mask=rows < last
    )
    total = total * (1.0 / tl.where(sums == 0.0, 1.0, sums))[:, None]
    keep_tile(None, o_ptr, o_row, 0, head, start_m, last, total, E, UNIT, WIDE)
