"""The gradient of attention over packed sequences in Triton, on the inner loops of the dense kernels.

Tokens keep their numbers in the packed tensors, as in `triton_ragged`. Each query's lse and delta lie in
lines of whole tiles, PADDING rows for every entry of the table of tiles, so that no block reads the next
sequence's.
"""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._common.triton_rows import divisible
from portable.kernels.attention.triton_backward import visit_keys, visit_queries
from portable.kernels.attention.triton_scores import keep_tile, tile_of


@triton.jit
def bounds_of(bounds_ptr, z):
    """Where sequence z begins and ends among the tokens that have tiles, and among the others."""
    ptr = bounds_ptr + 4 * z
    return tl.load(ptr), tl.load(ptr + 1), tl.load(ptr + 2), tl.load(ptr + 3)


@triton.jit
def ragged_rows(
    do_ptr, do_batch, do_head, do_row, o_ptr, o_batch, o_head, o_row, lse_ptr, lse_batch, lse_head, lse_row,
    dlse_ptr, dlse_batch, dlse_head, dlse_row, peak_ptr, delta_ptr, bounds_ptr, tiles_ptr, entries,
    E: tl.constexpr, BLOCK_E: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr, PADDING: tl.constexpr,
):  # fmt: skip
    """Per query: lse in base 2, and delta = sum(do * o) - dlse. A query without keys and rows beyond a
    sequence get an infinite lse, with which every probability is 0."""
    head = tl.program_id(0) // entries
    entry = tl.program_id(0) % entries
    z = tl.load(tiles_ptr + entry)
    if z < 0:
        return
    begin, last, _, _ = bounds_of(bounds_ptr, z)
    start = begin + (entry - begin // PADDING - z) * PADDING
    do_ptr += head.to(tl.int64) * divisible(do_head, UNIT)
    o_ptr += head.to(tl.int64) * divisible(o_head, UNIT)
    do = tile_of(None, do_ptr, do_row, 0, head, start, last, True, E, PADDING, BLOCK_E, UNIT, WIDE)
    o = tile_of(None, o_ptr, o_row, 0, head, start, last, True, E, PADDING, BLOCK_E, UNIT, WIDE)
    delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
    rows = start + tl.arange(0, PADDING)
    wide = rows.to(tl.int64)
    if dlse_ptr is not None:
        dlse_ptr += head.to(tl.int64) * dlse_head
        delta -= tl.load(dlse_ptr + wide * dlse_row, mask=rows < last, other=0.0)
    lse_ptr += head.to(tl.int64) * lse_head
    lse = tl.load(lse_ptr + wide * lse_row, mask=rows < last, other=float("-inf"))
    lse = tl.where(lse == float("-inf"), float("inf"), lse * 1.4426950408889634)
    to = tl.program_id(0).to(tl.int64) * PADDING + tl.arange(0, PADDING)
    tl.store(peak_ptr + to, lse)
    tl.store(delta_ptr + to, delta)


@triton.jit
def ragged_keys(
    do_ptr, do_batch, do_head, do_row, q_ptr, q_batch, q_head, q_row,
    k_ptr, k_batch, k_head, k_row, v_ptr, v_batch, v_head, v_row, peak_ptr, delta_ptr,
    dk_ptr, dk_batch, dk_head, dk_row, dv_ptr, dv_batch, dv_head, dv_row,
    bounds_ptr, tiles_ptr, entries, lines, share, left, right, scale, cap, factor,
    CAP: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, PADDING: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dk and dv of BLOCK_N keys of one sequence: the query heads of the group one after the other."""
    group = tl.program_id(0) // entries
    entry = tl.program_id(0) % entries
    z = tl.load(tiles_ptr + entry)
    if z < 0:
        return
    begin, until, there, last = bounds_of(bounds_ptr, z)
    start_n = begin + (entry - begin // BLOCK_N - z) * BLOCK_N
    low, high = until - last - left, until - last + right
    k_ptr += group.to(tl.int64) * divisible(k_head, UNIT)
    v_ptr += group.to(tl.int64) * divisible(v_head, UNIT)
    keys = tile_of(None, k_ptr, k_row, 0, group, start_n, until, True, D, BLOCK_N, BLOCK_D, UNIT, WIDE)
    values = tile_of(None, v_ptr, v_row, 0, group, start_n, until, True, E, BLOCK_N, BLOCK_E, UNIT, WIDE)

    # The queries that see some key of the tile, and of these the blocks that see all of it.
    last_n = tl.minimum(start_n + BLOCK_N, until) - 1
    first, stop, full_first, full_stop = there, last, there, last
    if LOW:
        stop = tl.maximum(tl.minimum(last_n - low + 1, last), there)
        full_stop = tl.maximum(start_n - low + 1, there)
        full_stop = tl.where(full_stop >= last, last, there + (full_stop - there) // BLOCK_M * BLOCK_M)
    if HIGH:
        first = there + tl.maximum(start_n - high - there, 0) // BLOCK_M * BLOCK_M
        full_first = there + tl.cdiv(tl.maximum(last_n - high - there, 0), BLOCK_M) * BLOCK_M
        full_first = tl.minimum(full_first, there + tl.cdiv(stop - there, BLOCK_M) * BLOCK_M)
        full_stop = tl.maximum(full_stop, full_first)

    of_k = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    of_v = tl.zeros((BLOCK_N, BLOCK_E), dtype=tl.float32)
    for member in range(share):
        head = group * share + member
        line = head.to(tl.int64) * lines * PADDING + (there // PADDING + z) * PADDING - there
        q_at = q_ptr + head.to(tl.int64) * divisible(q_head, UNIT)
        do_at = do_ptr + head.to(tl.int64) * divisible(do_head, UNIT)
        if HIGH:
            of_k, of_v = visit_queries(
                of_k, of_v, keys, values, None, None, None, q_at, q_row, do_at, do_row, None, 0,
                peak_ptr + line, delta_ptr + line, 0, head, 0, start_n, first, tl.minimum(full_first, stop),
                last, until, low, high, scale, cap, True, CAP, LOW, HIGH, D, E, BLOCK_D, BLOCK_E, UNIT, WIDE,
                PRECISION, BLOCK_M, BLOCK_N,
            )  # fmt: skip
        of_k, of_v = visit_queries(
            of_k, of_v, keys, values, None, None, None, q_at, q_row, do_at, do_row, None, 0,
            peak_ptr + line, delta_ptr + line, 0, head, 0, start_n, full_first, full_stop,
            last, until, low, high, scale, cap, False, CAP, LOW, HIGH, D, E, BLOCK_D, BLOCK_E, UNIT, WIDE,
            PRECISION, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        if LOW:
            of_k, of_v = visit_queries(
                of_k, of_v, keys, values, None, None, None, q_at, q_row, do_at, do_row, None, 0,
                peak_ptr + line, delta_ptr + line, 0, head, 0, start_n, full_stop, stop,
                last, until, low, high, scale, cap, True, CAP, LOW, HIGH, D, E, BLOCK_D, BLOCK_E, UNIT, WIDE,
                PRECISION, BLOCK_M, BLOCK_N,
            )  # fmt: skip
    dk_ptr += group.to(tl.int64) * divisible(dk_head, UNIT)
    dv_ptr += group.to(tl.int64) * divisible(dv_head, UNIT)
    keep_tile(None, dk_ptr, dk_row, 0, group, start_n, until, of_k * factor, D, UNIT, WIDE)
    keep_tile(None, dv_ptr, dv_row, 0, group, start_n, until, of_v, E, UNIT, WIDE)


@triton.jit
def ragged_queries(
    do_ptr, do_batch, do_head, do_row, q_ptr, q_batch, q_head, q_row,
    k_ptr, k_batch, k_head, k_row, v_ptr, v_batch, v_head, v_row, peak_ptr, delta_ptr,
    dq_ptr, dq_batch, dq_head, dq_row,
    bounds_ptr, tiles_ptr, entries, share, left, right, scale, cap, factor,
    CAP: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dq of BLOCK_M queries of one sequence and head, with the scores computed again. Tiles are the lines of
    `ragged_rows`, or halves of them and so on: BLOCK_M rows from program to program."""
    head = tl.program_id(0) // entries
    entry = tl.program_id(0) % entries
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    z = tl.load(tiles_ptr + entry)
    if z < 0:
        return
    begin, last, there, until = bounds_of(bounds_ptr, z)
    start_m = begin + ((entry - begin // (BLOCK_M * parts) - z) * parts + part) * BLOCK_M
    if start_m >= last:
        return
    low, high = until - last - left, until - last + right
    group = head // share
    q_ptr += head.to(tl.int64) * divisible(q_head, UNIT)
    do_ptr += head.to(tl.int64) * divisible(do_head, UNIT)
    k_ptr += group.to(tl.int64) * divisible(k_head, UNIT)
    v_ptr += group.to(tl.int64) * divisible(v_head, UNIT)
    queries = tile_of(None, q_ptr, q_row, 0, head, start_m, last, True, D, BLOCK_M, BLOCK_D, UNIT, WIDE)
    grads = tile_of(None, do_ptr, do_row, 0, head, start_m, last, True, E, BLOCK_M, BLOCK_E, UNIT, WIDE)
    at = (tl.program_id(0).to(tl.int64) * parts + part) * BLOCK_M + tl.arange(0, BLOCK_M)
    peak = tl.load(peak_ptr + at)
    delta = tl.load(delta_ptr + at)

    last_m = tl.minimum(start_m + BLOCK_M, last) - 1
    first, stop, full_first, full_stop = there, until, there, until
    if HIGH:
        stop = tl.maximum(tl.minimum(last_m + high + 1, until), there)
        full_stop = tl.maximum(tl.minimum(start_m + high + 1, until), there)
    full_stop = there + (full_stop - there) // BLOCK_N * BLOCK_N
    if LOW:
        first = tl.minimum(tl.maximum(start_m + low, there), until)
        first = there + (first - there) // BLOCK_N * BLOCK_N
        full_first = there + tl.cdiv(tl.maximum(last_m + low - there, 0), BLOCK_N) * BLOCK_N
        full_first = tl.minimum(full_first, there + tl.cdiv(stop - there, BLOCK_N) * BLOCK_N)
    full_stop = tl.maximum(full_stop, full_first)
    of_q = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    if LOW:
        of_q = visit_keys(
            of_q, queries, grads, None, None, k_ptr, k_row, v_ptr, v_row, None, 0, peak, delta, 0, group,
            start_m, first, tl.minimum(full_first, stop), last, until, low, high, scale, cap,
            True, CAP, LOW, HIGH, D, E, BLOCK_D, BLOCK_E, UNIT, WIDE, PRECISION, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    of_q = visit_keys(
        of_q, queries, grads, None, None, k_ptr, k_row, v_ptr, v_row, None, 0, peak, delta, 0, group,
        start_m, full_first, full_stop, last, until, low, high, scale, cap,
        False, CAP, LOW, HIGH, D, E, BLOCK_D, BLOCK_E, UNIT, WIDE, PRECISION, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    of_q = visit_keys(
        of_q, queries, grads, None, None, k_ptr, k_row, v_ptr, v_row, None, 0, peak, delta, 0, group,
        start_m, full_stop, stop, last, until, low, high, scale, cap,
        True, CAP, LOW, HIGH, D, E, BLOCK_D, BLOCK_E, UNIT, WIDE, PRECISION, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    dq_ptr += head.to(tl.int64) * divisible(dq_head, UNIT)
    keep_tile(None, dq_ptr, dq_row, 0, head, start_m, last, of_q * factor, D, UNIT, WIDE)
