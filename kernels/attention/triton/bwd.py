"""The gradient of attention in Triton, without atomics: `attention_bwd_preprocess` reduces each query's do
* o, `attention_bwd_dkdv` computes dk and dv of a block of keys over all queries that see it, and dq comes
either from recomputed scores (`attention_bwd_dq`) or from dS, which `attention_bwd_dkdv` leaves in a
workspace (`attention_bwd_dq_from_ds`). `attention_dbias` is dS itself, before the softcap: the gradient of
the bias."""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.triton.rows import divisible
from portable.kernels.attention.triton.tiles import (
    apply_softcap,
    attention_mask,
    head_start,
    load_bias,
    load_tile,
    statistics_row,
    store_tile,
    window_mask,
    work_tile,
)


@triton.jit
def attention_bwd_preprocess(
    do_ptr, do_batch, do_head, do_row, o_ptr, o_batch, o_head, o_row, lse_ptr, lse_batch, lse_head, lse_row,
    dlse_ptr, dlse_batch, dlse_head, dlse_row, lse_log2_ptr, delta_ptr,
    H, M, padded, tiles_ptr, tiles,
    E: tl.constexpr, BLOCK_E: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Per query: lse in base 2, and delta = sum(do * o) - dlse. A query without keys and the rows from M to
    the end of the last tile get an infinite lse, with which P is 0."""
    tile, head, batch, q_start, _, M, _, _ = work_tile(  # pyright: ignore[reportGeneralTypeIssues]
        tl.program_id(0), tiles_ptr, tiles, H, M, 0, False, False, BLOCK_M
    )
    if tiles_ptr is not None and tile < 0:
        return
    start = tile * BLOCK_M
    do_ptr = head_start(do_ptr, q_start, head, do_batch, do_head, UNIT)
    o_ptr = head_start(o_ptr, q_start, head, o_batch, o_head, UNIT)
    do = load_tile(None, do_ptr, do_row, q_start, head, start, M, True, E, BLOCK_M, BLOCK_E, UNIT, WIDE)
    o = load_tile(None, o_ptr, o_row, q_start, head, start, M, True, E, BLOCK_M, BLOCK_E, UNIT, WIDE)
    delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
    rows = start + tl.arange(0, BLOCK_M)
    inside = rows < M
    wide = rows.to(tl.int64)
    if dlse_ptr is not None:
        dlse_ptr = head_start(dlse_ptr, q_start, head, dlse_batch, dlse_head, 1)
        delta -= tl.load(dlse_ptr + wide * dlse_row, mask=inside, other=0.0)
    lse_ptr = head_start(lse_ptr, q_start, head, lse_batch, lse_head, 1)
    lse = tl.load(lse_ptr + wide * lse_row, mask=inside, other=float("-inf"))
    lse = tl.where(lse == float("-inf"), float("inf"), lse * 1.4426950408889634)
    to = statistics_row(tiles_ptr, batch, head, H, padded) + rows
    tl.store(lse_log2_ptr + to, lse)
    tl.store(delta_ptr + to, delta)


@triton.jit
def dkdv_loop(
    dk, dv, keys, values, q, do, ds, q_ptr, q_row, do_ptr, do_row, bias_ptr, bias_row, lse_log2_ptr,
    delta_ptr, batch, head, slot, start_n, first, stop, M, N, low, high, scale, cap, full_first, full_stop,
    SOFTCAP: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, UNIT: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr,
    MASK_DP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dk and dv after the queries from `first` to `stop` of one head. Blocks are transposed: keys by queries.
    Those outside full_first..full_stop are masked. MASK_DP: dP too, so that both products reach the next
    through the branch: Triton then splits them between two warpgroups, and else has each warpgroup compute
    all."""
    cols = tl.arange(0, BLOCK_M)
    for start in tl.range(first, stop, BLOCK_M):  # pyright: ignore[reportGeneralTypeIssues]
        start = tl.multiple_of(start, BLOCK_M)
        queries = load_tile(q, q_ptr, q_row, batch, head, start, M, True, D, BLOCK_M, BLOCK_D, UNIT, WIDE)
        grads = load_tile(do, do_ptr, do_row, batch, head, start, M, True, E, BLOCK_M, BLOCK_E, UNIT, WIDE)
        lse_log2 = tl.load(lse_log2_ptr + start + cols)
        s = tl.dot(keys, queries.T, input_precision=PRECISION)
        dp = tl.dot(values, grads.T, input_precision=PRECISION)
        s, softcap_grad = apply_softcap(s, scale, cap, SOFTCAP)
        if bias_ptr is not None:
            s += load_bias(bias_ptr, bias_row, start, start_n, M, N, BLOCK_M, BLOCK_N).T
        p = tl.exp2(s - lse_log2[None, :])
        if (LOW or HIGH) and (start < full_first) | (start + BLOCK_M > full_stop):
            j = start_n + tl.arange(0, BLOCK_N)[:, None]
            inside = window_mask((start + cols)[None, :], j, low, high, LOW, HIGH)
            p = tl.where(inside, p, 0.0)
            if MASK_DP:
                dp = tl.where(inside, dp, 0.0)
        dv = tl.dot(p.to(grads.dtype), grads, dv, input_precision=PRECISION)
        ds_tile = p * (dp - tl.load(delta_ptr + start + cols)[None, :])
        if SOFTCAP:
            ds_tile *= softcap_grad
        ds_tile = ds_tile.to(queries.dtype)
        if ds is not None:
            ds.store([slot, start_n, start], ds_tile.reshape(1, BLOCK_N, BLOCK_M))
        dk = tl.dot(ds_tile, queries, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def attention_bwd_dkdv(
    do, q, k, v, ds, dk, dv,
    do_ptr, do_batch, do_head, do_row, q_ptr, q_batch, q_head, q_row,
    k_ptr, k_batch, k_head, k_row, v_ptr, v_batch, v_head, v_row, bias_ptr, bias_batch, bias_head, bias_row,
    lse_log2_ptr, delta_ptr, dk_ptr, dk_batch, dk_head, dk_row, dv_ptr, dv_batch, dv_head, dv_row,
    G, qheads_per_kvhead, M, N, low, high, scale, cap, factor, padded, tiles_ptr, tiles, begin,
    SOFTCAP: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    MASK_DP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dk and dv of BLOCK_N keys: the query heads of the KV head one after the other, float32 accumulators.
    The KV heads of all batches are numbered; the launch begins with number `begin`."""
    program = tl.program_id(0) + begin * tiles
    tile, kv_head, batch, q_start, k_start, M, N, diagonal = work_tile(  # pyright: ignore[reportGeneralTypeIssues]
        program, tiles_ptr, tiles, G, M, N, True, False, BLOCK_N
    )
    if tiles_ptr is not None and (tile < 0) | (tile * BLOCK_N >= N):
        return
    index = batch * G + kv_head - begin
    low, high = low + diagonal, high + diagonal
    start_n = tile * BLOCK_N
    if k_ptr is not None:
        k_ptr = head_start(k_ptr, k_start, kv_head, k_batch, k_head, UNIT)
    if v_ptr is not None:
        v_ptr = head_start(v_ptr, k_start, kv_head, v_batch, v_head, UNIT)
    keys = load_tile(k, k_ptr, k_row, k_start, kv_head, start_n, N, True, D, BLOCK_N, BLOCK_D, UNIT, WIDE)
    values = load_tile(v, v_ptr, v_row, k_start, kv_head, start_n, N, True, E, BLOCK_N, BLOCK_E, UNIT, WIDE)

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

    acc_dk = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    acc_dv = tl.zeros((BLOCK_N, BLOCK_E), dtype=tl.float32)
    for member in range(qheads_per_kvhead):
        head = kv_head * qheads_per_kvhead + member
        row = statistics_row(tiles_ptr, batch, head, G * qheads_per_kvhead, padded)
        q_at, do_at, bias_at = q_ptr, do_ptr, bias_ptr
        if q_ptr is not None:
            q_at = head_start(q_ptr, q_start, head, q_batch, q_head, UNIT)
            do_at = head_start(do_ptr, q_start, head, do_batch, do_head, UNIT)
        if bias_ptr is not None:
            bias_at = head_start(bias_ptr, batch, head, bias_batch, bias_head, 1)
        acc_dk, acc_dv = dkdv_loop(
            acc_dk, acc_dv, keys, values, q, do, ds, q_at, q_row, do_at, do_row, bias_at, bias_row,
            lse_log2_ptr + row, delta_ptr + row, q_start, head, index * qheads_per_kvhead + member, start_n,
            first, stop, M, N, low, high, scale, cap, full_first, full_stop, SOFTCAP, LOW, HIGH, D, E,
            BLOCK_D, BLOCK_E, UNIT, WIDE, PRECISION, MASK_DP, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    if dk_ptr is not None:
        dk_ptr = head_start(dk_ptr, k_start, kv_head, dk_batch, dk_head, UNIT)
    if dv_ptr is not None:
        dv_ptr = head_start(dv_ptr, k_start, kv_head, dv_batch, dv_head, UNIT)
    store_tile(dk, dk_ptr, dk_row, k_start, kv_head, start_n, N, acc_dk * factor, D, UNIT, WIDE)
    store_tile(dv, dv_ptr, dv_row, k_start, kv_head, start_n, N, acc_dv, E, UNIT, WIDE)


@triton.jit
def dq_loop(
    acc_dq, queries, grads, k, v, k_ptr, k_row, v_ptr, v_row, bias_ptr, bias_row, lse_log2, delta, batch,
    kv_head, start_m, first, stop, M, N, low, high, scale, cap,
    MASKED: tl.constexpr, SOFTCAP: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, full_first=0, full_stop=0,
):  # fmt: skip
    """dq after the keys from `first` to `stop`. MASKED: 0: no block is masked; 1: all are; 2: those outside
    full_first..full_stop."""
    rows = start_m + tl.arange(0, BLOCK_M)[:, None]
    for start in tl.range(first, stop, BLOCK_N):  # pyright: ignore[reportGeneralTypeIssues]
        keys = load_tile(k, k_ptr, k_row, batch, kv_head, start, N, MASKED, D, BLOCK_N, BLOCK_D, UNIT, WIDE)
        values = load_tile(v, v_ptr, v_row, batch, kv_head, start, N, MASKED, E, BLOCK_N, BLOCK_E, UNIT, WIDE)
        s = tl.dot(queries, keys.T, input_precision=PRECISION)
        dp = tl.dot(grads, values.T, input_precision=PRECISION)
        s, softcap_grad = apply_softcap(s, scale, cap, SOFTCAP)
        if bias_ptr is not None:
            s += load_bias(bias_ptr, bias_row, start_m, start, M, N, BLOCK_M, BLOCK_N)
        p = tl.exp2(s - lse_log2[:, None])
        if MASKED == 2:
            if (start < full_first) | (start + BLOCK_N > full_stop):
                j = start + tl.arange(0, BLOCK_N)[None, :]
                p = tl.where(attention_mask(rows, j, N, low, high, LOW, HIGH), p, 0.0)
        elif MASKED:
            j = start + tl.arange(0, BLOCK_N)[None, :]
            p = tl.where(attention_mask(rows, j, N, low, high, LOW, HIGH), p, 0.0)
        ds_tile = p * (dp - delta[:, None])
        if SOFTCAP:
            ds_tile *= softcap_grad
        acc_dq = tl.dot(ds_tile.to(keys.dtype), keys, acc_dq, input_precision=PRECISION)
    return acc_dq


@triton.jit
def attention_bwd_dq(
    do, q, k, v, dq,
    do_ptr, do_batch, do_head, do_row, q_ptr, q_batch, q_head, q_row,
    k_ptr, k_batch, k_head, k_row, v_ptr, v_batch, v_head, v_row, bias_ptr, bias_batch, bias_head, bias_row,
    lse_log2_ptr, delta_ptr, dq_ptr, dq_batch, dq_head, dq_row,
    H, qheads_per_kvhead, M, N, low, high, scale, cap, factor, padded, tiles_ptr, tiles,
    SOFTCAP: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    MASKING: tl.constexpr, Q_IN_REGISTERS: tl.constexpr, DO_IN_REGISTERS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dq of BLOCK_M queries, with recomputed scores. Q_IN_REGISTERS, DO_IN_REGISTERS: q, or do, stays in
    registers, where Triton keeps what is computed after its load; here a mask of rows beyond the end,
    already 0."""
    tile, head, batch, q_start, k_start, M, N, diagonal = work_tile(  # pyright: ignore[reportGeneralTypeIssues]
        tl.program_id(0), tiles_ptr, tiles, H, M, N, False, HIGH, BLOCK_M
    )
    if tiles_ptr is not None and (tile < 0) | (tile * BLOCK_M >= M):
        return
    kv_head = head // qheads_per_kvhead
    low, high = low + diagonal, high + diagonal
    start_m = tile * BLOCK_M
    if q_ptr is not None:
        q_ptr = head_start(q_ptr, q_start, head, q_batch, q_head, UNIT)
    if do_ptr is not None:
        do_ptr = head_start(do_ptr, q_start, head, do_batch, do_head, UNIT)
    if k_ptr is not None:
        k_ptr = head_start(k_ptr, k_start, kv_head, k_batch, k_head, UNIT)
    if v_ptr is not None:
        v_ptr = head_start(v_ptr, k_start, kv_head, v_batch, v_head, UNIT)
    if bias_ptr is not None:
        bias_ptr = head_start(bias_ptr, batch, head, bias_batch, bias_head, 1)
    queries = load_tile(q, q_ptr, q_row, q_start, head, start_m, M, True, D, BLOCK_M, BLOCK_D, UNIT, WIDE)
    grads = load_tile(do, do_ptr, do_row, q_start, head, start_m, M, True, E, BLOCK_M, BLOCK_E, UNIT, WIDE)
    rows = start_m + tl.arange(0, BLOCK_M)
    if Q_IN_REGISTERS:
        queries = tl.where((rows < M)[:, None], queries, 0.0)
    if DO_IN_REGISTERS:
        grads = tl.where((rows < M)[:, None], grads, 0.0)
    row = statistics_row(tiles_ptr, batch, head, H, padded)
    lse_log2 = tl.load(lse_log2_ptr + row + rows)
    delta = tl.load(delta_ptr + row + rows)

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
    acc_dq = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    if MASKING == 3:
        if LOW:
            acc_dq = dq_loop(
                acc_dq, queries, grads, k, v, k_ptr, k_row, v_ptr, v_row, bias_ptr, bias_row, lse_log2, delta,
                k_start, kv_head, start_m, first, tl.minimum(full_first, stop), M, N, low, high, scale, cap,
                True, SOFTCAP, LOW, HIGH, D, E, BLOCK_D, BLOCK_E, UNIT, WIDE, PRECISION, BLOCK_M, BLOCK_N,
            )  # fmt: skip
        acc_dq = dq_loop(
            acc_dq, queries, grads, k, v, k_ptr, k_row, v_ptr, v_row, bias_ptr, bias_row, lse_log2, delta,
            k_start, kv_head, start_m, full_first, full_stop, M, N, low, high, scale, cap, False, SOFTCAP,
            LOW, HIGH, D, E, BLOCK_D, BLOCK_E, UNIT, WIDE, PRECISION, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        acc_dq = dq_loop(
            acc_dq, queries, grads, k, v, k_ptr, k_row, v_ptr, v_row, bias_ptr, bias_row, lse_log2, delta,
            k_start, kv_head, start_m, full_stop, stop, M, N, low, high, scale, cap,
            True, SOFTCAP, LOW, HIGH, D, E, BLOCK_D, BLOCK_E, UNIT, WIDE, PRECISION, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    else:
        acc_dq = dq_loop(
            acc_dq, queries, grads, k, v, k_ptr, k_row, v_ptr, v_row, bias_ptr, bias_row, lse_log2, delta,
            k_start, kv_head, start_m, first, stop, M, N, low, high, scale, cap,
            MASKING, SOFTCAP, LOW, HIGH, D, E, BLOCK_D, BLOCK_E, UNIT, WIDE, PRECISION, BLOCK_M, BLOCK_N,
            full_first, full_stop,
        )  # fmt: skip
    if dq_ptr is not None:
        dq_ptr = head_start(dq_ptr, q_start, head, dq_batch, dq_head, UNIT)
    store_tile(dq, dq_ptr, dq_row, q_start, head, start_m, M, acc_dq * factor, D, UNIT, WIDE)


@triton.jit
def attention_bwd_dq_from_ds(
    ds, k, dq, H, qheads_per_kvhead, M, N, high, factor, tiles, begin,
    HIGH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dq of BLOCK_M queries = factor * dS @ k, from the transposed dS of `attention_bwd_dkdv`; blocks that no
    query sees are not written. The query heads of all batches are numbered; the launch begins with
    `begin`."""
    tile = tl.program_id(0) % tiles
    slot = tl.program_id(0) // tiles
    batch = (begin + slot) // H
    head = (begin + slot) % H
    if HIGH:
        tile = tiles - 1 - tile
    start_m = tile * BLOCK_M
    kv_head = head // qheads_per_kvhead
    full_stop = N
    if HIGH:
        full_stop = tl.maximum(tl.minimum(start_m + high + 1, N), 0) // BLOCK_N * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    acc = dq_from_ds_loop(
        acc, ds, k, batch, kv_head, slot, start_m, 0, full_stop, high, False, BLOCK_D, BLOCK_M, BLOCK_N
    )
    if HIGH:
        stop = tl.minimum(tl.minimum(start_m + BLOCK_M, M) + high, N)
        acc = dq_from_ds_loop(
            acc, ds, k, batch, kv_head, slot, start_m, full_stop, stop, high, True, BLOCK_D, BLOCK_M, BLOCK_N
        )
    store_tile(dq, None, 0, batch, head, start_m, M, acc * factor, BLOCK_D, 1, False)


@triton.jit
def dq_from_ds_loop(
    acc, ds, k, batch, kv_head, slot, start_m, first, stop, high,
    MASKED: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """acc + dS @ k over the keys from `first` to `stop`."""
    for start in tl.range(first, stop, BLOCK_N):  # pyright: ignore[reportGeneralTypeIssues]
        ds_tile = ds.load([slot, start, start_m]).reshape(BLOCK_N, BLOCK_M)
        if MASKED:
            i = start_m + tl.arange(0, BLOCK_M)[None, :]
            j = start + tl.arange(0, BLOCK_N)[:, None]
            ds_tile = tl.where(window_mask(i, j, 0, high, False, True), ds_tile, 0.0)
        keys = k.load([batch, kv_head, start, 0]).reshape(BLOCK_N, BLOCK_D)
        acc = tl.dot(ds_tile.T, keys, acc)
    return acc


@triton.jit
def attention_dbias(
    do, q, k, v, do_ptr, do_batch, do_head, do_row, q_ptr, q_batch, q_head, q_row,
    k_ptr, k_batch, k_head, k_row, v_ptr, v_batch, v_head, v_row, bias_ptr, bias_batch, bias_head, bias_row,
    lse_log2_ptr, delta_ptr, dbias_ptr, dbias_batch, dbias_head, dbias_row,
    H, qheads_per_kvhead, M, N, low, high, scale, cap, padded, row_tiles, key_tiles,
    SOFTCAP: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
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
    kv_head = head // qheads_per_kvhead
    N = divisible(N, BIAS_UNIT)

    visible = start_n < N
    if HIGH:
        visible = visible & (start_n <= start_m + BLOCK_M - 1 + high)
    if LOW:
        visible = visible & (start_n + BLOCK_N - 1 >= start_m + low)
    rows = start_m + tl.arange(0, BLOCK_M)
    cols = start_n + tl.arange(0, BLOCK_N)
    ds_tile = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if visible:
        if q_ptr is not None:
            q_ptr = head_start(q_ptr, batch, head, q_batch, q_head, UNIT)
            do_ptr = head_start(do_ptr, batch, head, do_batch, do_head, UNIT)
            k_ptr = head_start(k_ptr, batch, kv_head, k_batch, k_head, UNIT)
            v_ptr = head_start(v_ptr, batch, kv_head, v_batch, v_head, UNIT)
        bias_ptr = head_start(bias_ptr, batch, head, bias_batch, bias_head, BIAS_UNIT)
        s = gemm_nt(
            q, q_ptr, q_row, k, k_ptr, k_row, batch, head, kv_head, start_m, start_n, M, N,
            D, BLOCK_D, UNIT, WIDE, PRECISION, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        s, _ = apply_softcap(s, scale, cap, SOFTCAP)
        s += load_bias(bias_ptr, divisible(bias_row, BIAS_UNIT), start_m, start_n, M, N, BLOCK_M, BLOCK_N)
        row = (batch * H + head).to(tl.int64) * padded
        p = tl.exp2(s - tl.load(lse_log2_ptr + row + rows)[:, None])
        dp = gemm_nt(
            do, do_ptr, do_row, v, v_ptr, v_row, batch, head, kv_head, start_m, start_n, M, N,
            E, BLOCK_E, UNIT, WIDE, PRECISION, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        ds_tile = p * (dp - tl.load(delta_ptr + row + rows)[:, None])
        if LOW or HIGH:
            ds_tile = tl.where(window_mask(rows[:, None], cols[None, :], low, high, LOW, HIGH), ds_tile, 0.0)
    dbias_ptr = head_start(dbias_ptr, batch, head, dbias_batch, dbias_head, BIAS_UNIT)
    ptrs = dbias_ptr + (rows.to(tl.int64) * divisible(dbias_row, BIAS_UNIT))[:, None] + cols[None, :]
    inside = (rows < M)[:, None] & (cols < N)[None, :]
    tl.store(ptrs, ds_tile.to(dbias_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gemm_nt(
    left, left_ptr, left_row, right, right_ptr, right_row, batch, head, kv_head, start_m, start_n, M, N,
    SIZE: tl.constexpr, BLOCK_K: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """left @ right.T of a block's query rows and key rows, BLOCK_K columns of the SIZE at a time."""
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first in tl.static_range(0, SIZE, BLOCK_K):
        rows = load_tile(
            left, left_ptr, left_row, batch, head, start_m, M, True, SIZE, BLOCK_M, BLOCK_K, UNIT, WIDE, first
        )
        keys = load_tile(
            right, right_ptr, right_row, batch, kv_head, start_n, N, True, SIZE, BLOCK_N, BLOCK_K, UNIT, WIDE,
            first,
        )  # fmt: skip
        acc = tl.dot(rows, keys.T, acc, input_precision=PRECISION)
    return acc
