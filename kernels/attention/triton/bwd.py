"""The gradient of attention in Triton, without atomics: `attention_rows` reduces each query's do * o,
`attention_keys` finds dk and dv of a block of keys over all queries that see it, and dq is found either by
computing the scores again (`attention_queries`) or from dS, which `attention_keys` leaves in a workspace
(`attention_products`). `attention_dbias` is dS itself, before the cap: the gradient of the bias."""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.triton.rows import divisible
from portable.kernels.attention.triton.scores import (
    bias_tile,
    capped,
    head_start,
    keep_tile,
    seen,
    sees,
    tile_of,
)
from portable.kernels.attention.triton.varlen import line_of, place


@triton.jit
def attention_rows(
    do_ptr, do_batch, do_head, do_row, o_ptr, o_batch, o_head, o_row, lse_ptr, lse_batch, lse_head, lse_row,
    dlse_ptr, dlse_batch, dlse_head, dlse_row, peak_ptr, delta_ptr,
    H, M, padded, tiles_ptr, tiles,
    E: tl.constexpr, BLOCK_E: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Per query: lse in base 2, and delta = sum(do * o) - dlse. A query without keys and the rows from M to
    the end of the last tile get an infinite lse, with which every probability is 0."""
    tile, head, batch, at_q, _, M, _, _ = place(
        tl.program_id(0), tiles_ptr, tiles, H, M, 0, False, False, BLOCK_M
    )
    if tiles_ptr is not None and tile < 0:
        return
    start = tile * BLOCK_M
    do_ptr = head_start(do_ptr, at_q, head, do_batch, do_head, UNIT)
    o_ptr = head_start(o_ptr, at_q, head, o_batch, o_head, UNIT)
    do = tile_of(None, do_ptr, do_row, at_q, head, start, M, True, E, BLOCK_M, BLOCK_E, UNIT, WIDE)
    o = tile_of(None, o_ptr, o_row, at_q, head, start, M, True, E, BLOCK_M, BLOCK_E, UNIT, WIDE)
    delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
    rows = start + tl.arange(0, BLOCK_M)
    inside = rows < M
    wide = rows.to(tl.int64)
    if dlse_ptr is not None:
        dlse_ptr = head_start(dlse_ptr, at_q, head, dlse_batch, dlse_head, 1)
        delta -= tl.load(dlse_ptr + wide * dlse_row, mask=inside, other=0.0)
    lse_ptr = head_start(lse_ptr, at_q, head, lse_batch, lse_head, 1)
    lse = tl.load(lse_ptr + wide * lse_row, mask=inside, other=float("-inf"))
    lse = tl.where(lse == float("-inf"), float("inf"), lse * 1.4426950408889634)
    to = line_of(tiles_ptr, batch, head, H, padded) + rows
    tl.store(peak_ptr + to, lse)
    tl.store(delta_ptr + to, delta)


@triton.jit
def visit_queries(
    dk, dv, keys, values, q, do, ds, q_ptr, q_row, do_ptr, do_row, bias_ptr, bias_row, peak_ptr, delta_ptr,
    batch, head, slot, start_n, first, stop, M, N, low, high, scale, cap, full_first, full_stop,
    CAP: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    HALVES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dk and dv after the queries from `first` to `stop` of one head. Blocks are transposed: keys by queries.
    Those outside full_first..full_stop are masked. HALVES: dp too, so that the way from both products to the
    next leads through the branch: two warpgroups then share them, of which Triton else has each do all."""
    cols = tl.arange(0, BLOCK_M)
    for start in tl.range(first, stop, BLOCK_M):
        start = tl.multiple_of(start, BLOCK_M)
        queries = tile_of(q, q_ptr, q_row, batch, head, start, M, True, D, BLOCK_M, BLOCK_D, UNIT, WIDE)
        grads = tile_of(do, do_ptr, do_row, batch, head, start, M, True, E, BLOCK_M, BLOCK_E, UNIT, WIDE)
        peak = tl.load(peak_ptr + start + cols)
        s = tl.dot(keys, queries.T, input_precision=PRECISION)
        dp = tl.dot(values, grads.T, input_precision=PRECISION)
        s, slope = capped(s, scale, cap, CAP)
        if bias_ptr is not None:
            s += bias_tile(bias_ptr, bias_row, start, start_n, M, N, BLOCK_M, BLOCK_N).T
        p = tl.exp2(s - peak[None, :])
        if (LOW or HIGH) and (start < full_first) | (start + BLOCK_M > full_stop):
            j = start_n + tl.arange(0, BLOCK_N)[:, None]
            inside = sees((start + cols)[None, :], j, low, high, LOW, HIGH)
            p = tl.where(inside, p, 0.0)
            if HALVES:
                dp = tl.where(inside, dp, 0.0)
        dv = tl.dot(p.to(grads.dtype), grads, dv, input_precision=PRECISION)
        change = p * (dp - tl.load(delta_ptr + start + cols)[None, :])
        if CAP:
            change *= slope
        change = change.to(queries.dtype)
        if ds is not None:
            ds.store([slot, start_n, start], change.reshape(1, BLOCK_N, BLOCK_M))
        dk = tl.dot(change, queries, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def attention_keys(
    do, q, k, v, ds, dk, dv,
    do_ptr, do_batch, do_head, do_row, q_ptr, q_batch, q_head, q_row,
    k_ptr, k_batch, k_head, k_row, v_ptr, v_batch, v_head, v_row, bias_ptr, bias_batch, bias_head, bias_row,
    peak_ptr, delta_ptr, dk_ptr, dk_batch, dk_head, dk_row, dv_ptr, dv_batch, dv_head, dv_row,
    G, share, M, N, low, high, scale, cap, factor, padded, tiles_ptr, tiles, begin,
    CAP: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    HALVES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dk and dv of BLOCK_N keys: the query heads of the group one after the other, float32 sums. The groups
    of all batches are numbered; the launch begins with group `begin`."""
    program = tl.program_id(0) + begin * tiles
    tile, group, batch, at_q, at_k, M, N, diagonal = place(
        program, tiles_ptr, tiles, G, M, N, True, False, BLOCK_N
    )
    if tiles_ptr is not None and (tile < 0) | (tile * BLOCK_N >= N):
        return
    index = batch * G + group - begin
    low, high = low + diagonal, high + diagonal
    start_n = tile * BLOCK_N
    if k_ptr is not None:
        k_ptr = head_start(k_ptr, at_k, group, k_batch, k_head, UNIT)
    if v_ptr is not None:
        v_ptr = head_start(v_ptr, at_k, group, v_batch, v_head, UNIT)
    keys = tile_of(k, k_ptr, k_row, at_k, group, start_n, N, True, D, BLOCK_N, BLOCK_D, UNIT, WIDE)
    values = tile_of(v, v_ptr, v_row, at_k, group, start_n, N, True, E, BLOCK_N, BLOCK_E, UNIT, WIDE)

    # The queries that see some key of the tile, and of these the blocks that see all of it.
    last_n = tl.minimum(start_n + BLOCK_N, N) - 1
    first, stop, full_first, full_stop = 0, M, 0, M
    if LOW:
        stop = tl.maximum(tl.minimum(last_n - low + 1, M), 0)
        full_stop = tl.maximum(start_n - low + 1, 0)
        full_stop = tl.where(full_stop >= M, M, full_stop // BLOCK_M * BLOCK_M)
    if HIGH:
        first = tl.maximum(start_n - high, 0) // BLOCK_M * BLOCK_M
        full_first = tl.cdiv(tl.maximum(last_n - high, 0), BLOCK_M) * BLOCK_M
        full_first = tl.minimum(full_first, tl.cdiv(stop, BLOCK_M) * BLOCK_M)
        full_stop = tl.maximum(full_stop, full_first)

    of_k = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    of_v = tl.zeros((BLOCK_N, BLOCK_E), dtype=tl.float32)
    for member in range(share):
        head = group * share + member
        line = line_of(tiles_ptr, batch, head, G * share, padded)
        q_at, do_at, bias_at = q_ptr, do_ptr, bias_ptr
        if q_ptr is not None:
            q_at = head_start(q_ptr, at_q, head, q_batch, q_head, UNIT)
            do_at = head_start(do_ptr, at_q, head, do_batch, do_head, UNIT)
        if bias_ptr is not None:
            bias_at = head_start(bias_ptr, batch, head, bias_batch, bias_head, 1)
        of_k, of_v = visit_queries(
            of_k, of_v, keys, values, q, do, ds, q_at, q_row, do_at, do_row, bias_at, bias_row,
            peak_ptr + line, delta_ptr + line, at_q, head, index * share + member, start_n, first, stop, M, N,
            low, high, scale, cap, full_first, full_stop, CAP, LOW, HIGH, D, E,
            BLOCK_D, BLOCK_E, UNIT, WIDE, PRECISION, HALVES, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    if dk_ptr is not None:
        dk_ptr = head_start(dk_ptr, at_k, group, dk_batch, dk_head, UNIT)
    if dv_ptr is not None:
        dv_ptr = head_start(dv_ptr, at_k, group, dv_batch, dv_head, UNIT)
    keep_tile(dk, dk_ptr, dk_row, at_k, group, start_n, N, of_k * factor, D, UNIT, WIDE)
    keep_tile(dv, dv_ptr, dv_row, at_k, group, start_n, N, of_v, E, UNIT, WIDE)


@triton.jit
def visit_keys(
    of_q, queries, grads, k, v, k_ptr, k_row, v_ptr, v_row, bias_ptr, bias_row, peak, delta, batch, group,
    start_m, first, stop, M, N, low, high, scale, cap,
    MASKED: tl.constexpr, CAP: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, full_first=0, full_stop=0,
):  # fmt: skip
    """dq after the keys from `first` to `stop`. MASKED: 0: no block is masked; 1: all are; 2: those outside
    full_first..full_stop."""
    rows = start_m + tl.arange(0, BLOCK_M)[:, None]
    for start in tl.range(first, stop, BLOCK_N):
        keys = tile_of(k, k_ptr, k_row, batch, group, start, N, MASKED, D, BLOCK_N, BLOCK_D, UNIT, WIDE)
        values = tile_of(v, v_ptr, v_row, batch, group, start, N, MASKED, E, BLOCK_N, BLOCK_E, UNIT, WIDE)
        s = tl.dot(queries, keys.T, input_precision=PRECISION)
        dp = tl.dot(grads, values.T, input_precision=PRECISION)
        s, slope = capped(s, scale, cap, CAP)
        if bias_ptr is not None:
            s += bias_tile(bias_ptr, bias_row, start_m, start, M, N, BLOCK_M, BLOCK_N)
        p = tl.exp2(s - peak[:, None])
        if MASKED == 2:
            if (start < full_first) | (start + BLOCK_N > full_stop):
                j = start + tl.arange(0, BLOCK_N)[None, :]
                p = tl.where(seen(rows, j, N, low, high, LOW, HIGH), p, 0.0)
        elif MASKED:
            j = start + tl.arange(0, BLOCK_N)[None, :]
            p = tl.where(seen(rows, j, N, low, high, LOW, HIGH), p, 0.0)
        change = p * (dp - delta[:, None])
        if CAP:
            change *= slope
        of_q = tl.dot(change.to(keys.dtype), keys, of_q, input_precision=PRECISION)
    return of_q


@triton.jit
def attention_queries(
    do, q, k, v, dq,
    do_ptr, do_batch, do_head, do_row, q_ptr, q_batch, q_head, q_row,
    k_ptr, k_batch, k_head, k_row, v_ptr, v_batch, v_head, v_row, bias_ptr, bias_batch, bias_head, bias_row,
    peak_ptr, delta_ptr, dq_ptr, dq_batch, dq_head, dq_row,
    H, share, M, N, low, high, scale, cap, factor, padded, tiles_ptr, tiles,
    CAP: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    EDGES: tl.constexpr, HOLD_Q: tl.constexpr, HOLD_DO: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dq of BLOCK_M queries, with the scores computed again. HOLD: the queries, or their grads, stay in
    registers, where Triton leaves what is computed after its load; here rows beyond the end, already 0."""
    tile, head, batch, at_q, at_k, M, N, diagonal = place(
        tl.program_id(0), tiles_ptr, tiles, H, M, N, False, HIGH, BLOCK_M
    )
    if tiles_ptr is not None and (tile < 0) | (tile * BLOCK_M >= M):
        return
    group = head // share
    low, high = low + diagonal, high + diagonal
    start_m = tile * BLOCK_M
    if q_ptr is not None:
        q_ptr = head_start(q_ptr, at_q, head, q_batch, q_head, UNIT)
    if do_ptr is not None:
        do_ptr = head_start(do_ptr, at_q, head, do_batch, do_head, UNIT)
    if k_ptr is not None:
        k_ptr = head_start(k_ptr, at_k, group, k_batch, k_head, UNIT)
    if v_ptr is not None:
        v_ptr = head_start(v_ptr, at_k, group, v_batch, v_head, UNIT)
    if bias_ptr is not None:
        bias_ptr = head_start(bias_ptr, batch, head, bias_batch, bias_head, 1)
    queries = tile_of(q, q_ptr, q_row, at_q, head, start_m, M, True, D, BLOCK_M, BLOCK_D, UNIT, WIDE)
    grads = tile_of(do, do_ptr, do_row, at_q, head, start_m, M, True, E, BLOCK_M, BLOCK_E, UNIT, WIDE)
    rows = start_m + tl.arange(0, BLOCK_M)
    if HOLD_Q:
        queries = tl.where((rows < M)[:, None], queries, 0.0)
    if HOLD_DO:
        grads = tl.where((rows < M)[:, None], grads, 0.0)
    line = line_of(tiles_ptr, batch, head, H, padded)
    peak = tl.load(peak_ptr + line + rows)
    delta = tl.load(delta_ptr + line + rows)

    last_m = tl.minimum(start_m + BLOCK_M, M) - 1
    first, stop, full_first, full_stop = 0, N, 0, N
    if HIGH:
        stop = tl.maximum(tl.minimum(last_m + high + 1, N), 0)
        full_stop = tl.maximum(tl.minimum(start_m + high + 1, N), 0)
    full_stop = full_stop // BLOCK_N * BLOCK_N
    if LOW:
        first = tl.maximum(start_m + low, 0) // BLOCK_N * BLOCK_N
        full_first = tl.cdiv(tl.maximum(last_m + low, 0), BLOCK_N) * BLOCK_N
        full_first = tl.minimum(full_first, tl.cdiv(stop, BLOCK_N) * BLOCK_N)
        full_stop = tl.maximum(full_stop, full_first)
    of_q = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    if EDGES == 3:
        if LOW:
            of_q = visit_keys(
                of_q, queries, grads, k, v, k_ptr, k_row, v_ptr, v_row, bias_ptr, bias_row, peak, delta,
                at_k, group, start_m, first, tl.minimum(full_first, stop), M, N, low, high, scale, cap,
                True, CAP, LOW, HIGH, D, E, BLOCK_D, BLOCK_E, UNIT, WIDE, PRECISION, BLOCK_M, BLOCK_N,
            )  # fmt: skip
        of_q = visit_keys(
            of_q, queries, grads, k, v, k_ptr, k_row, v_ptr, v_row, bias_ptr, bias_row, peak, delta, at_k,
            group, start_m, full_first, full_stop, M, N, low, high, scale, cap,
            False, CAP, LOW, HIGH, D, E, BLOCK_D, BLOCK_E, UNIT, WIDE, PRECISION, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        of_q = visit_keys(
            of_q, queries, grads, k, v, k_ptr, k_row, v_ptr, v_row, bias_ptr, bias_row, peak, delta, at_k,
            group, start_m, full_stop, stop, M, N, low, high, scale, cap,
            True, CAP, LOW, HIGH, D, E, BLOCK_D, BLOCK_E, UNIT, WIDE, PRECISION, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    else:
        of_q = visit_keys(
            of_q, queries, grads, k, v, k_ptr, k_row, v_ptr, v_row, bias_ptr, bias_row, peak, delta, at_k,
            group, start_m, first, stop, M, N, low, high, scale, cap,
            EDGES, CAP, LOW, HIGH, D, E, BLOCK_D, BLOCK_E, UNIT, WIDE, PRECISION,
            BLOCK_M, BLOCK_N, full_first, full_stop,
        )  # fmt: skip
    if dq_ptr is not None:
        dq_ptr = head_start(dq_ptr, at_q, head, dq_batch, dq_head, UNIT)
    keep_tile(dq, dq_ptr, dq_row, at_q, head, start_m, M, of_q * factor, D, UNIT, WIDE)


@triton.jit
def attention_products(
    ds, k, dq, H, share, M, N, high, factor, tiles, begin,
    HIGH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dq of BLOCK_M queries = factor * dS @ k, from the transposed dS of `attention_keys`; its blocks that no
    query sees nobody wrote. The query heads of all batches are numbered; the launch begins with `begin`."""
    tile = tl.program_id(0) % tiles
    slot = tl.program_id(0) // tiles
    batch = (begin + slot) // H
    head = (begin + slot) % H
    if HIGH:
        tile = tiles - 1 - tile
    start_m = tile * BLOCK_M
    group = head // share
    full_stop = N
    if HIGH:
        full_stop = tl.maximum(tl.minimum(start_m + high + 1, N), 0) // BLOCK_N * BLOCK_N
    total = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    total = add_products(
        total, ds, k, batch, group, slot, start_m, 0, full_stop, high, False, BLOCK_D, BLOCK_M, BLOCK_N
    )
    if HIGH:
        stop = tl.minimum(tl.minimum(start_m + BLOCK_M, M) + high, N)
        total = add_products(
            total, ds, k, batch, group, slot, start_m, full_stop, stop, high, True, BLOCK_D, BLOCK_M, BLOCK_N
        )
    keep_tile(dq, None, 0, batch, head, start_m, M, total * factor, BLOCK_D, 1, False)


@triton.jit
def add_products(
    total, ds, k, batch, group, slot, start_m, first, stop, high,
    MASKED: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """total + dS @ k over the keys from `first` to `stop`."""
    for start in tl.range(first, stop, BLOCK_N):
        change = ds.load([slot, start, start_m]).reshape(BLOCK_N, BLOCK_M)
        if MASKED:
            i = start_m + tl.arange(0, BLOCK_M)[None, :]
            j = start + tl.arange(0, BLOCK_N)[:, None]
            change = tl.where(sees(i, j, 0, high, False, True), change, 0.0)
        keys = k.load([batch, group, start, 0]).reshape(BLOCK_N, BLOCK_D)
        total = tl.dot(change.T, keys, total)
    return total


@triton.jit
def attention_dbias(
    do, q, k, v, do_ptr, do_batch, do_head, do_row, q_ptr, q_batch, q_head, q_row,
    k_ptr, k_batch, k_head, k_row, v_ptr, v_batch, v_head, v_row, bias_ptr, bias_batch, bias_head, bias_row,
    peak_ptr, delta_ptr, dbias_ptr, dbias_batch, dbias_head, dbias_row,
    H, share, M, N, low, high, scale, cap, padded, row_tiles, key_tiles,
    CAP: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, BIAS_UNIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A block of dbias: p * (do @ v.T - delta), and 0 where a key is not seen. N and the strides of bias and
    dbias are multiples of BIAS_UNIT."""
    index = tl.program_id(0) // key_tiles
    start_n = tl.program_id(0) % key_tiles * BLOCK_N
    start_m = index % row_tiles * BLOCK_M
    batch = index // row_tiles // H
    head = index // row_tiles % H
    group = head // share
    N = divisible(N, BIAS_UNIT)

    visible = start_n < N
    if HIGH:
        visible = visible & (start_n <= start_m + BLOCK_M - 1 + high)
    if LOW:
        visible = visible & (start_n + BLOCK_N - 1 >= start_m + low)
    rows = start_m + tl.arange(0, BLOCK_M)
    cols = start_n + tl.arange(0, BLOCK_N)
    change = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if visible:
        if q_ptr is not None:
            q_ptr = head_start(q_ptr, batch, head, q_batch, q_head, UNIT)
            do_ptr = head_start(do_ptr, batch, head, do_batch, do_head, UNIT)
            k_ptr = head_start(k_ptr, batch, group, k_batch, k_head, UNIT)
            v_ptr = head_start(v_ptr, batch, group, v_batch, v_head, UNIT)
        bias_ptr = head_start(bias_ptr, batch, head, bias_batch, bias_head, BIAS_UNIT)
        s = row_products(
            q, q_ptr, q_row, k, k_ptr, k_row, batch, head, group, start_m, start_n, M, N,
            D, BLOCK_D, UNIT, WIDE, PRECISION, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        s, _ = capped(s, scale, cap, CAP)
        s += bias_tile(bias_ptr, divisible(bias_row, BIAS_UNIT), start_m, start_n, M, N, BLOCK_M, BLOCK_N)
        line = (batch * H + head).to(tl.int64) * padded
        p = tl.exp2(s - tl.load(peak_ptr + line + rows)[:, None])
        dp = row_products(
            do, do_ptr, do_row, v, v_ptr, v_row, batch, head, group, start_m, start_n, M, N,
            E, BLOCK_E, UNIT, WIDE, PRECISION, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        change = p * (dp - tl.load(delta_ptr + line + rows)[:, None])
        if LOW or HIGH:
            change = tl.where(sees(rows[:, None], cols[None, :], low, high, LOW, HIGH), change, 0.0)
    dbias_ptr = head_start(dbias_ptr, batch, head, dbias_batch, dbias_head, BIAS_UNIT)
    ptrs = dbias_ptr + (rows.to(tl.int64) * divisible(dbias_row, BIAS_UNIT))[:, None] + cols[None, :]
    inside = (rows < M)[:, None] & (cols < N)[None, :]
    tl.store(ptrs, change.to(dbias_ptr.dtype.element_ty), mask=inside)


@triton.jit
def row_products(
    left, left_ptr, left_row, right, right_ptr, right_row, batch, head, group, start_m, start_n, M, N,
    SIZE: tl.constexpr, PIECE: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """left @ right.T of a block's query rows and key rows, PIECE columns of the SIZE at a time."""
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first in tl.static_range(0, SIZE, PIECE):
        rows = tile_of(
            left, left_ptr, left_row, batch, head, start_m, M, True, SIZE, BLOCK_M, PIECE, UNIT, WIDE, first
        )
        keys = tile_of(
            right, right_ptr, right_row, batch, group, start_n, N, True, SIZE, BLOCK_N, PIECE, UNIT, WIDE,
            first,
        )  # fmt: skip
        total = tl.dot(rows, keys.T, total, input_precision=PRECISION)
    return total
