"""The forward pass of attention in Triton: one program per BLOCK_M queries of a head, an online softmax over
blocks of BLOCK_N keys. row_max and row_sum are float32, in base 2; P is rounded to the input type. With a
FORMAT q, k and v are codes of 8 bits (_lib/triton/minifloat.py), which become 16 bits as they are loaded: no
code is rounded."""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.triton.minifloat import decode_halves, decode_written_out
from portable.kernels.attention.triton.tiles import (
    apply_softcap,
    attention_mask,
    head_start,
    load_bias,
    load_tile,
    store_tile,
    work_tile,
)


@triton.jit
def operand(x, FORMAT: tl.constexpr, CONVERT: tl.constexpr):
    """A tile as products take it: of codes float16 with CONVERT, by the GPU's instruction, else bfloat16."""
    if FORMAT is None:
        return x
    elif CONVERT:
        return decode_halves(x, FORMAT)
    else:
        return decode_written_out(x, FORMAT).to(tl.bfloat16)


@triton.jit
def scale_of(ptr, batch, head, batch_stride, head_stride):
    """The scale of a key head's codes."""
    return tl.load(ptr + batch.to(tl.int64) * batch_stride + head.to(tl.int64) * head_stride)


@triton.jit
def softmax_loop(
    acc_o, row_sum, row_max, queries, rest, k, k_rest, v, k_ptr, k_row, v_ptr, v_row, bias_ptr, bias_row,
    batch, kv_head, start_m, first, stop, M, N, low, high, scale, cap, full_first, full_stop,
    MASKED: tl.constexpr, SCALE_IN_EXPONENT: tl.constexpr, SOFTCAP: tl.constexpr, LOW: tl.constexpr,
    HIGH: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, REST_D: tl.constexpr,
    BLOCK_E: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr,
):  # fmt: skip
    """acc_o, row_sum and row_max after the keys from `first` to `stop`. `rest`: the queries' columns from
    BLOCK_D on, where there are more. MASKED: 0: no block is masked; 1: all are; 2: those outside
    full_first..full_stop. SCALE_IN_EXPONENT: scores are products times a positive scale, which the
    exponent's FMA applies."""
    rows = start_m + tl.arange(0, BLOCK_M)[:, None]
    cols = tl.arange(0, BLOCK_N)[None, :]
    for start in tl.range(first, stop, BLOCK_N):  # pyright: ignore[reportGeneralTypeIssues]
        keys = load_tile(k, k_ptr, k_row, batch, kv_head, start, N, MASKED, D, BLOCK_N, BLOCK_D, UNIT, WIDE)
        keys = operand(keys, FORMAT, CONVERT)
        if REST_D > 0:
            keys_rest = load_tile(
                k_rest, k_ptr, k_row, batch, kv_head, start, N, MASKED, D, BLOCK_N, REST_D, UNIT, WIDE,
                BLOCK_D,
            )  # fmt: skip
            keys_rest = operand(keys_rest, FORMAT, CONVERT)
            s = tl.dot(queries, keys.T, input_precision=PRECISION)
            s = tl.dot(rest, keys_rest.T, s, input_precision=PRECISION)
        else:
            s = tl.dot(queries, keys.T, input_precision=PRECISION)
        if not SCALE_IN_EXPONENT:
            s, _ = apply_softcap(s, scale, cap, SOFTCAP)
            if bias_ptr is not None:
                s += load_bias(bias_ptr, bias_row, start_m, start, M, N, BLOCK_M, BLOCK_N)
        if MASKED == 2:
            if (start < full_first) | (start + BLOCK_N > full_stop):
                s = tl.where(attention_mask(rows, start + cols, N, low, high, LOW, HIGH), s, float("-inf"))
        elif MASKED:
            s = tl.where(attention_mask(rows, start + cols, N, low, high, LOW, HIGH), s, float("-inf"))
        new_max = tl.max(s, 1)
        if SCALE_IN_EXPONENT:
            new_max *= scale
        new_max = tl.maximum(row_max, new_max)
        offset = tl.where(new_max == float("-inf"), 0.0, new_max)
        if SCALE_IN_EXPONENT:
            s *= scale
        p = tl.exp2(s - offset[:, None])
        rescale = tl.exp2(row_max - offset)
        row_sum = row_sum * rescale + tl.sum(p, 1)
        acc_o = acc_o * rescale[:, None]
        values = load_tile(v, v_ptr, v_row, batch, kv_head, start, N, MASKED, E, BLOCK_N, BLOCK_E, UNIT, WIDE)
        values = operand(values, FORMAT, CONVERT)
        acc_o = tl.dot(p.to(values.dtype), values, acc_o, input_precision=PRECISION)
        row_max = new_max
    return acc_o, row_sum, row_max


@triton.jit
def attention_forward(
    q, k, v, o, q_rest, k_rest,
    q_ptr, q_batch, q_head, q_row, k_ptr, k_batch, k_head, k_row, v_ptr, v_batch, v_head, v_row,
    bias_ptr, bias_batch, bias_head, bias_row, sinks_ptr, o_ptr, o_batch, o_head, o_row,
    lse_ptr, lse_batch, lse_head, lse_row,
    q_scale_ptr, q_scale_batch, q_scale_head, k_scale_ptr, k_scale_batch, k_scale_head,
    v_scale_ptr, v_scale_batch, v_scale_head,
    H, qheads_per_kvhead, M, N, low, high, scale, cap, tiles_ptr, tiles,
    SCALE_IN_EXPONENT: tl.constexpr, SOFTCAP: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, REST_D: tl.constexpr, BLOCK_E: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    MASKING: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, FORMAT: tl.constexpr,
    CONVERT: tl.constexpr,
):  # fmt: skip
    """o and lse of BLOCK_M queries. q, k, v, o and the rests are descriptors, or None where pointers are
    used. MASKING: 3: blocks that need a mask have loops of their own; less: one loop, MASKED of
    `softmax_loop`."""
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
    if k_ptr is not None:
        k_ptr = head_start(k_ptr, k_start, kv_head, k_batch, k_head, UNIT)
    if v_ptr is not None:
        v_ptr = head_start(v_ptr, k_start, kv_head, v_batch, v_head, UNIT)
    if o_ptr is not None:
        o_ptr = head_start(o_ptr, q_start, head, o_batch, o_head, UNIT)
    if bias_ptr is not None:
        bias_ptr = head_start(bias_ptr, batch, head, bias_batch, bias_head, 1)
    queries = load_tile(q, q_ptr, q_row, q_start, head, start_m, M, True, D, BLOCK_M, BLOCK_D, UNIT, WIDE)
    rest = None
    if REST_D > 0:
        rest = load_tile(
            q_rest, q_ptr, q_row, q_start, head, start_m, M, True, D, BLOCK_M, REST_D, UNIT, WIDE, BLOCK_D
        )
        rest = operand(rest, FORMAT, CONVERT)
    queries = operand(queries, FORMAT, CONVERT)
    if FORMAT is not None:
        scale *= scale_of(q_scale_ptr, batch, kv_head, q_scale_batch, q_scale_head)
        scale *= scale_of(k_scale_ptr, batch, kv_head, k_scale_batch, k_scale_head)

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

    acc_o = tl.zeros((BLOCK_M, BLOCK_E), dtype=tl.float32)
    row_sum = tl.zeros((BLOCK_M,), dtype=tl.float32)
    row_max = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    if MASKING == 3:
        if LOW:
            full_first = tl.minimum(full_first, tl.cdiv(stop, BLOCK_N) * BLOCK_N)
            acc_o, row_sum, row_max = softmax_loop(
                acc_o, row_sum, row_max, queries, rest, k, k_rest, v, k_ptr, k_row, v_ptr, v_row, bias_ptr,
                bias_row, k_start, kv_head, start_m, first, tl.minimum(full_first, stop), M, N, low, high,
                scale, cap, 0, 0, True, SCALE_IN_EXPONENT, SOFTCAP, LOW, HIGH, D, E, BLOCK_D, REST_D,
                BLOCK_E, UNIT, WIDE, PRECISION, BLOCK_M, BLOCK_N, FORMAT, CONVERT,
            )  # fmt: skip
        full_stop = tl.maximum(full_stop, full_first)
        acc_o, row_sum, row_max = softmax_loop(
            acc_o, row_sum, row_max, queries, rest, k, k_rest, v, k_ptr, k_row, v_ptr, v_row, bias_ptr,
            bias_row, k_start, kv_head, start_m, full_stop, stop, M, N, low, high, scale, cap, 0, 0, True,
            SCALE_IN_EXPONENT, SOFTCAP, LOW, HIGH, D, E, BLOCK_D, REST_D, BLOCK_E, UNIT, WIDE, PRECISION,
            BLOCK_M, BLOCK_N, FORMAT, CONVERT,
        )  # fmt: skip
        acc_o, row_sum, row_max = softmax_loop(
            acc_o, row_sum, row_max, queries, rest, k, k_rest, v, k_ptr, k_row, v_ptr, v_row, bias_ptr,
            bias_row, k_start, kv_head, start_m, full_first, full_stop, M, N, low, high, scale, cap, 0, 0,
            False, SCALE_IN_EXPONENT, SOFTCAP, LOW, HIGH, D, E, BLOCK_D, REST_D, BLOCK_E, UNIT, WIDE,
            PRECISION, BLOCK_M, BLOCK_N, FORMAT, CONVERT,
        )  # fmt: skip
    else:
        acc_o, row_sum, row_max = softmax_loop(
            acc_o, row_sum, row_max, queries, rest, k, k_rest, v, k_ptr, k_row, v_ptr, v_row, bias_ptr,
            bias_row, k_start, kv_head, start_m, first, stop, M, N, low, high, scale, cap, full_first,
            full_stop, MASKING, SCALE_IN_EXPONENT, SOFTCAP, LOW, HIGH, D, E, BLOCK_D, REST_D, BLOCK_E, UNIT,
            WIDE, PRECISION, BLOCK_M, BLOCK_N, FORMAT, CONVERT,
        )  # fmt: skip

    no_key = row_sum == 0.0  # a row of NaN alone has no maximum, but a sum
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + head)
        if tiles_ptr is not None:
            sink = tl.where(N < 0, float("-inf"), sink)  # a token of no sequence
        sink_log2 = sink * 1.4426950408889634
        new_max = tl.maximum(row_max, sink_log2)
        offset = tl.where(new_max == float("-inf"), 0.0, new_max)
        rescale = tl.exp2(row_max - offset)
        row_sum = row_sum * rescale + tl.exp2(sink_log2 - offset)
        acc_o = acc_o * rescale[:, None]
        row_max = new_max
    offset = tl.where(row_max == float("-inf"), 0.0, row_max)
    rows = start_m + tl.arange(0, BLOCK_M)
    lse_ptr = head_start(lse_ptr, q_start, head, lse_batch, lse_head, 1)
    lse = (offset + tl.log2(row_sum)) * 0.6931471805599453
    if sinks_ptr is not None:
        lse = tl.where(no_key, sink, lse)  # to the bit
    tl.store(lse_ptr + rows.to(tl.int64) * lse_row, lse, mask=rows < M)
    acc_o = acc_o * (1.0 / tl.where(row_sum == 0.0, 1.0, row_sum))[:, None]
    if FORMAT is not None:
        acc_o *= scale_of(v_scale_ptr, batch, kv_head, v_scale_batch, v_scale_head)
    store_tile(o, o_ptr, o_row, q_start, head, start_m, M, acc_o, E, UNIT, WIDE)
