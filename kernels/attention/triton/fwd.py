"""The forward pass of attention in Triton: one program per BLOCK_M queries of a head, an online softmax over
blocks of BLOCK_N keys. Statistics are float32, in base 2; probabilities are rounded to the input type."""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels.attention.triton.scores import (
    bias_tile,
    capped,
    head_start,
    keep_tile,
    seen,
    tile_of,
)
from portable.kernels.attention.triton.varlen import place


@triton.jit
def attend(
    total, sums, peak, queries, rest, k, k_rest, v, k_ptr, k_row, v_ptr, v_row, bias_ptr, bias_row,
    batch, group, start_m, first, stop, M, N, low, high, scale, cap, full_first, full_stop,
    MASKED: tl.constexpr, LAZY: tl.constexpr, CAP: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, REST_D: tl.constexpr, BLOCK_E: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The sums after the keys from `first` to `stop`. `rest`: the queries' columns from BLOCK_D on, where
    there are more. MASKED: 0: no block is masked; 1: all are; 2: those outside full_first..full_stop."""
    rows = start_m + tl.arange(0, BLOCK_M)[:, None]
    cols = tl.arange(0, BLOCK_N)[None, :]
    for start in tl.range(first, stop, BLOCK_N):
        keys = tile_of(k, k_ptr, k_row, batch, group, start, N, MASKED, D, BLOCK_N, BLOCK_D, UNIT, WIDE)
        if REST_D > 0:
            more = tile_of(
                k_rest, k_ptr, k_row, batch, group, start, N, MASKED, D, BLOCK_N, REST_D, UNIT, WIDE, BLOCK_D
            )
            s = tl.dot(queries, keys.T, input_precision=PRECISION)
            s = tl.dot(rest, more.T, s, input_precision=PRECISION)
        else:
            s = tl.dot(queries, keys.T, input_precision=PRECISION)
        if not LAZY:
            s, _ = capped(s, scale, cap, CAP)
            if bias_ptr is not None:
                s += bias_tile(bias_ptr, bias_row, start_m, start, M, N, BLOCK_M, BLOCK_N)
        if MASKED == 2:
            if (start < full_first) | (start + BLOCK_N > full_stop):
                s = tl.where(seen(rows, start + cols, N, low, high, LOW, HIGH), s, float("-inf"))
        elif MASKED:
            s = tl.where(seen(rows, start + cols, N, low, high, LOW, HIGH), s, float("-inf"))
        highest = tl.max(s, 1)
        if LAZY:
            highest *= scale
        highest = tl.maximum(peak, highest)
        base = tl.where(highest == float("-inf"), 0.0, highest)
        if LAZY:
            s *= scale
        p = tl.exp2(s - base[:, None])
        shrink = tl.exp2(peak - base)
        sums = sums * shrink + tl.sum(p, 1)
        total = total * shrink[:, None]
        values = tile_of(v, v_ptr, v_row, batch, group, start, N, MASKED, E, BLOCK_N, BLOCK_E, UNIT, WIDE)
        total = tl.dot(p.to(values.dtype), values, total, input_precision=PRECISION)
        peak = highest
    return total, sums, peak


@triton.jit
def attention_forward(
    q, k, v, o, q_rest, k_rest,
    q_ptr, q_batch, q_head, q_row, k_ptr, k_batch, k_head, k_row, v_ptr, v_batch, v_head, v_row,
    bias_ptr, bias_batch, bias_head, bias_row, sinks_ptr, o_ptr, o_batch, o_head, o_row,
    lse_ptr, lse_batch, lse_head, lse_row,
    H, share, M, N, low, high, scale, cap, tiles_ptr, tiles,
    LAZY: tl.constexpr, CAP: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, REST_D: tl.constexpr, BLOCK_E: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    EDGES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """o and lse of BLOCK_M queries. q, k, v, o and the rests are descriptors, or None where pointers serve.
    EDGES: 3: blocks that need a mask have loops of their own; less: one loop, as MASKED of `attend`."""
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
    if k_ptr is not None:
        k_ptr = head_start(k_ptr, at_k, group, k_batch, k_head, UNIT)
    if v_ptr is not None:
        v_ptr = head_start(v_ptr, at_k, group, v_batch, v_head, UNIT)
    if o_ptr is not None:
        o_ptr = head_start(o_ptr, at_q, head, o_batch, o_head, UNIT)
    if bias_ptr is not None:
        bias_ptr = head_start(bias_ptr, batch, head, bias_batch, bias_head, 1)
    queries = tile_of(q, q_ptr, q_row, at_q, head, start_m, M, True, D, BLOCK_M, BLOCK_D, UNIT, WIDE)
    rest = None
    if REST_D > 0:
        rest = tile_of(
            q_rest, q_ptr, q_row, at_q, head, start_m, M, True, D, BLOCK_M, REST_D, UNIT, WIDE, BLOCK_D
        )

    # The keys that some query of the tile sees, and of these the blocks that all of them see whole.
    last_m = tl.minimum(start_m + BLOCK_M, M) - 1
    first, stop, full_first, full_stop = 0, N, 0, N
    if LOW:
        first = tl.maximum(start_m + low, 0) // BLOCK_N * BLOCK_N
        full_first = tl.cdiv(tl.maximum(last_m + low, 0), BLOCK_N) * BLOCK_N
    if HIGH:
        stop = tl.maximum(tl.minimum(last_m + high + 1, N), 0)
        full_stop = tl.maximum(tl.minimum(start_m + high + 1, N), 0)
    full_stop = full_stop // BLOCK_N * BLOCK_N

    total = tl.zeros((BLOCK_M, BLOCK_E), dtype=tl.float32)
    sums = tl.zeros((BLOCK_M,), dtype=tl.float32)
    peak = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    if EDGES == 3:
        if LOW:
            full_first = tl.minimum(full_first, tl.cdiv(stop, BLOCK_N) * BLOCK_N)
            total, sums, peak = attend(
                total, sums, peak, queries, rest, k, k_rest, v, k_ptr, k_row, v_ptr, v_row, bias_ptr,
                bias_row, at_k, group, start_m, first, tl.minimum(full_first, stop), M, N, low, high, scale,
                cap, 0, 0, True, LAZY, CAP, LOW, HIGH, D, E, BLOCK_D, REST_D, BLOCK_E, UNIT, WIDE, PRECISION,
                BLOCK_M, BLOCK_N,
            )  # fmt: skip
        full_stop = tl.maximum(full_stop, full_first)
        total, sums, peak = attend(
            total, sums, peak, queries, rest, k, k_rest, v, k_ptr, k_row, v_ptr, v_row, bias_ptr, bias_row,
            at_k, group, start_m, full_stop, stop, M, N, low, high, scale, cap, 0, 0,
            True, LAZY, CAP, LOW, HIGH, D, E, BLOCK_D, REST_D, BLOCK_E, UNIT, WIDE, PRECISION,
            BLOCK_M, BLOCK_N,
        )  # fmt: skip
        total, sums, peak = attend(
            total, sums, peak, queries, rest, k, k_rest, v, k_ptr, k_row, v_ptr, v_row, bias_ptr, bias_row,
            at_k, group, start_m, full_first, full_stop, M, N, low, high, scale, cap, 0, 0,
            False, LAZY, CAP, LOW, HIGH, D, E, BLOCK_D, REST_D, BLOCK_E, UNIT, WIDE, PRECISION,
            BLOCK_M, BLOCK_N,
        )  # fmt: skip
    else:
        total, sums, peak = attend(
            total, sums, peak, queries, rest, k, k_rest, v, k_ptr, k_row, v_ptr, v_row, bias_ptr, bias_row,
            at_k, group, start_m, first, stop, M, N, low, high, scale, cap, full_first, full_stop,
            EDGES, LAZY, CAP, LOW, HIGH, D, E, BLOCK_D, REST_D, BLOCK_E, UNIT, WIDE, PRECISION,
            BLOCK_M, BLOCK_N,
        )  # fmt: skip

    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + head) * 1.4426950408889634
        if tiles_ptr is not None:
            sink = tl.where(N < 0, float("-inf"), sink)  # a token of no sequence
        highest = tl.maximum(peak, sink)
        base = tl.where(highest == float("-inf"), 0.0, highest)
        shrink = tl.exp2(peak - base)
        sums = sums * shrink + tl.exp2(sink - base)
        total = total * shrink[:, None]
        peak = highest
    base = tl.where(peak == float("-inf"), 0.0, peak)
    rows = start_m + tl.arange(0, BLOCK_M)
    lse_ptr = head_start(lse_ptr, at_q, head, lse_batch, lse_head, 1)
    lse = (base + tl.log2(sums)) * 0.6931471805599453
    tl.store(lse_ptr + rows.to(tl.int64) * lse_row, lse, mask=rows < M)
    total = total * (1.0 / tl.where(sums == 0.0, 1.0, sums))[:, None]
    keep_tile(o, o_ptr, o_row, at_q, head, start_m, M, total, E, UNIT, WIDE)
