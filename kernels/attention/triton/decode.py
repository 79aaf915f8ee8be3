"""A few queries against a long cache of keys and values, contiguous or paged, in Triton.

`decode_split` gives each program a split of one sequence's keys and one KV head with all query heads that
read it; `decode_combine` adds the splits up in order. A split's size follows from the sequence's own length
and the GPU alone, so that a sequence gets the same bits whatever lies beside it in the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.triton.minifloat import decode_halves, decode_written_out
from portable.kernels._lib.triton.pdl import enter_pdl
from portable.kernels._lib.triton.rows import divisible
from portable.kernels.attention.triton.tiles import apply_softcap

COMBINE_SPLITS = 64
COMBINE_COLUMNS = 64
COMBINE_WARPS = 2
"""Tile of decode_combine: splits at once, at most, columns and warps of a program. Over 64 sequences of 8
splits and 32 heads decode took 503 us with 64 x 32 and 4 warps, 489 with 16 x 64 and 2 (H200, 2026-11-22)."""


@triton.jit
def kv_splits(length, M, left, max_splits, CHUNK: tl.constexpr, LEFT: tl.constexpr):
    """(first, size, count): the first key that is read, the keys of a split, the number of splits: CHUNK
    keys, or more where that would make more than `max_splits` splits."""
    first = length * 0
    if LEFT:
        first = tl.minimum(tl.maximum(length - M - left, 0), length) // 128 * 128
    span = length - first
    split_size = tl.maximum(tl.cdiv(tl.cdiv(span, max_splits), 128) * 128, CHUNK)
    return first, split_size, tl.cdiv(span, split_size)


@triton.jit
def length_of(lens_ptr, z, capacity):
    """The length of sequence z, clamped to 0..capacity."""
    length = capacity
    if lens_ptr is not None:
        length = tl.minimum(tl.maximum(tl.load(lens_ptr + z), 0), capacity)
    return length


@triton.jit
def page_of(table_ptr, start, end, pages, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    """The page of each key from `start` on, or of all of them where they lie in one, clamped to 0..pages -
    1."""
    if table_ptr is None:
        return start.to(tl.int64) * 0
    else:
        n = start if PAGE % BLOCK_N == 0 else start + tl.arange(0, BLOCK_N)
        page = tl.load(table_ptr + n // PAGE, mask=n < end, other=0)
        return tl.minimum(tl.maximum(page, 0), pages - 1).to(tl.int64)


@triton.jit
def rows_at(
    ptr, page, start, page_stride, row_stride, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, COLS: tl.constexpr
):  # fmt: skip
    """Pointers [BLOCK_N, COLS] to the rows of the keys from `start` on, which lie in `page`; PAGE 0: in rows.

    Steps from a common start took more registers, not fewer: 255 and a stack for 206 (2026-11-21).
    """
    slot = start + tl.arange(0, BLOCK_N)
    if PAGE > 0:
        slot %= PAGE
    rows = page * page_stride + slot.to(tl.int64) * row_stride
    return ptr + (rows[:, None] + tl.arange(0, COLS)[None, :])


@triton.jit
def operands_of(codes, FORMAT: tl.constexpr, CONVERT: tl.constexpr, dtype: tl.constexpr):
    """Numbers of a cache as the products take them: its own where FORMAT is None, else those of codes, in
    float16 by the GPU's instruction with CONVERT, else in `dtype`. Both have them all."""
    if FORMAT is None:
        return codes
    elif CONVERT:
        return decode_halves(codes, FORMAT)
    else:
        return decode_written_out(codes, FORMAT).to(dtype)


@triton.jit
def halves_of_rows(q):
    """(q as float16, what its products are multiplied by). A row of bfloat16 is times the power of two that
    brings its largest finite number to 2^14: float16 has every number of it then but those that are lost
    beside the largest in sums of float32 as well."""
    if q.dtype == tl.float16:
        return q, tl.full((q.shape[0],), 1.0, tl.float32)
    else:
        size = q.to(tl.int16, bitcast=True).to(tl.int32) & 0x7FFF
        most = tl.max(tl.where(size < 0x7F80, size, 0), 1)
        bits = tl.minimum(268 - (most >> 7), 253)
        factor = (bits << 23).to(tl.float32, bitcast=True)
        inverse = ((254 - bits) << 23).to(tl.float32, bitcast=True)
        return (q.to(tl.float32) * factor[:, None]).to(tl.float16), inverse


@triton.jit
def finalize(acc, m, l):  # noqa: E741
    """(o, lse) of acc and row_sum l, which is 0 where no key is seen."""
    seen = l > 0.0
    seen = seen | (l != l)
    o = acc / tl.where(seen, l, 1.0)[:, None]
    return o, tl.where(seen, (m + tl.log2(l)) * 0.69314718055994530942, -float("inf"))


@triton.jit
def decode_split(
    q_ptr, q_batch, q_head, q_row, k_ptr, k_page, k_head, k_row, v_ptr, v_page, v_head, v_row,
    table_ptr, table_row, lens_ptr, o_ptr, o_batch, o_head, o_row, m_ptr, l_ptr,
    capacity, pages, M, qheads_per_kvhead, tiles, kv_heads, splits, max_splits, left, right, scale, cap,
    k_scale_ptr, k_scale_head, v_scale_ptr, v_scale_head, FORMAT: tl.constexpr, CONVERT: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, PAGE: tl.constexpr, UNIT: tl.constexpr, LEFT: tl.constexpr,
    RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, DIRECT: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Split `split` of sequence z, KV head g: the sum of exp2(score - m) * value, not divided by row_sum l,
    to o [z, head, query, splits, E], m and l [z, head, query, splits]; with DIRECT, the results themselves
    to o, of its own strides, and lse to m [z, head, query].

    Row r of the tile is query r // n of head g * n + r % n, n = qheads_per_kvhead. The cache lies in
    `pages` pages of PAGE keys; with no table, page z is sequence z. A table's entries are clamped to
    0..pages - 1. With a FORMAT the cache holds codes of it, bytes, and each key head has scales.

    With CONVERT products are of float16, which has weights down to 2^-24 alone: they are 2^15 times as large.
    """
    pid = tl.program_id(0)
    g = pid % kv_heads  # heads of one token are neighbours
    tile = pid // kv_heads % tiles
    split = pid // kv_heads // tiles % splits
    z = pid // kv_heads // tiles // splits
    length = length_of(lens_ptr, z, capacity)
    first, split_size, split_count = kv_splits(length, M, left, max_splits, CHUNK, LEFT)
    if split >= split_count and not DIRECT:
        return

    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    query, head = row // qheads_per_kvhead, g * qheads_per_kvhead + row % qheads_per_kvhead
    in_rows = query < M
    d = tl.arange(0, BLOCK_D)
    e = tl.arange(0, BLOCK_E)
    q_ptr += z.to(tl.int64) * divisible(q_batch, UNIT)
    q_at = query.to(tl.int64) * divisible(q_row, UNIT) + head.to(tl.int64) * divisible(q_head, UNIT)
    q = tl.load(q_ptr + q_at[:, None] + d[None, :], mask=in_rows[:, None] & (d < D)[None, :], other=0.0)
    if CONVERT:
        q, inverse = halves_of_rows(q)  # pyright: ignore[reportGeneralTypeIssues]
        scale *= inverse[:, None]
    if FORMAT is not None:
        scale *= tl.load(k_scale_ptr + g * k_scale_head)
    WEIGHT_BITS: tl.constexpr = 15 if CONVERT else 0
    k_ptr += g.to(tl.int64) * divisible(k_head, UNIT)
    v_ptr += g.to(tl.int64) * divisible(v_head, UNIT)
    k_page, v_page = divisible(k_page, UNIT), divisible(v_page, UNIT)
    k_row, v_row = divisible(k_row, UNIT), divisible(v_row, UNIT)
    if table_ptr is None:
        k_ptr += z.to(tl.int64) * k_page
        v_ptr += z.to(tl.int64) * v_page
    else:
        table_ptr += z.to(tl.int64) * table_row
    at = (z.to(tl.int64) * (kv_heads * qheads_per_kvhead) + head) * M + query
    last = length - M + query  # the last key that a causal query sees

    begin = first + split * split_size
    end = tl.minimum(begin + split_size, length)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)  # noqa: E741
    acc = tl.zeros((BLOCK_M, BLOCK_E), tl.float32)
    next_page = page_of(table_ptr, begin, end, pages, PAGE, BLOCK_N)
    for start in range(begin, end, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        inside = n < end
        page = next_page  # loaded an iteration ahead: a load that waits for a load is not pipelined
        next_page = page_of(table_ptr, start + BLOCK_N, end, pages, PAGE, BLOCK_N)
        k_mask = inside[:, None] & (d < D)[None, :] if D < BLOCK_D else inside[:, None]
        v_mask = inside[:, None] & (e < E)[None, :] if E < BLOCK_E else inside[:, None]
        k = tl.load(rows_at(k_ptr, page, start, k_page, k_row, PAGE, BLOCK_N, BLOCK_D), k_mask, other=0)
        v = tl.load(rows_at(v_ptr, page, start, v_page, v_row, PAGE, BLOCK_N, BLOCK_E), v_mask, other=0)
        k = operands_of(k, FORMAT, CONVERT, q.dtype)
        v = operands_of(v, FORMAT, CONVERT, q.dtype)
        scores, _ = apply_softcap(tl.dot(q, tl.trans(k)), scale, cap, SOFTCAP)
        seen = inside[None, :]
        if RIGHT:
            seen = seen & (n[None, :] <= last[:, None] + right)
        if LEFT:
            seen = seen & (n[None, :] >= last[:, None] - left)
        scores = tl.where(seen, scores, -float("inf"))
        m_new = tl.maximum(m, tl.max(scores, 1))
        offset = tl.where(m_new == -float("inf"), 0.0, m_new)
        p = tl.exp2(scores - (offset - WEIGHT_BITS)[:, None] if CONVERT else scores - offset[:, None])
        rescale = tl.exp2(m - offset)
        l = l * rescale + tl.sum(p, 1)  # noqa: E741
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None])
        m = m_new
    if FORMAT is not None:
        acc *= tl.load(v_scale_ptr + g * v_scale_head) * 2.0**-WEIGHT_BITS
        l *= 2.0**-WEIGHT_BITS  # noqa: E741
    mask = in_rows[:, None] & (e < E)[None, :]
    if DIRECT:
        o, lse = finalize(acc, m, l)
        o_at = z.to(tl.int64) * o_batch + query.to(tl.int64) * o_row + head * o_head
        tl.store(o_ptr + o_at[:, None] + e[None, :], o.to(o_ptr.dtype.element_ty), mask=mask)
        tl.store(m_ptr + at, lse, mask=in_rows)
    else:
        tl.store(o_ptr + ((at * splits + split) * E)[:, None] + e[None, :], acc, mask=mask)
        tl.store(m_ptr + at * splits + split, m, mask=in_rows)
        tl.store(l_ptr + at * splits + split, l, mask=in_rows)


@triton.jit
def decode_combine(
    o_ptr, o_batch, o_head, o_row, lse_ptr, part_ptr, m_ptr, l_ptr, sinks_ptr, lens_ptr,
    capacity, M, heads, splits, max_splits, left,
    E: tl.constexpr, LEFT: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_E: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """o and lse [z, head, query] of one query of one head, BLOCK_E columns of it."""
    enter_pdl(PDL)
    pid = tl.program_id(0).to(tl.int64)
    query = pid % M
    head = pid // M % heads
    z = pid // M // heads
    _, _, split_count = kv_splits(length_of(lens_ptr, z, capacity), M, left, max_splits, CHUNK, LEFT)  # pyright: ignore[reportGeneralTypeIssues]
    column = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    part_ptr += pid * splits * E
    m_ptr += pid * splits
    l_ptr += pid * splits
    s = tl.arange(0, BLOCK_S)

    split_max = tl.full((BLOCK_S,), -float("inf"), tl.float32)
    for start in range(0, split_count, BLOCK_S):
        split_max = tl.maximum(
            split_max, tl.load(m_ptr + start + s, mask=start + s < split_count, other=-float("inf"))
        )
    m = tl.max(split_max, 0)
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + head) * 1.44269504088896340736
        m = tl.maximum(m, sink)
    offset = tl.where(m == -float("inf"), 0.0, m)
    total = tl.zeros((BLOCK_S,), tl.float32)
    acc = tl.zeros((BLOCK_S, BLOCK_E), tl.float32)
    for start in range(0, split_count, BLOCK_S):
        inside = start + s < split_count
        rescale = tl.exp2(tl.load(m_ptr + start + s, mask=inside, other=-float("inf")) - offset)
        total += rescale * tl.load(l_ptr + start + s, mask=inside, other=0.0)
        mask = inside[:, None] & (column < E)[None, :]
        part = tl.load(part_ptr + ((start + s) * E)[:, None] + column[None, :], mask=mask, other=0.0)
        acc += part * rescale[:, None]
    l = tl.sum(total, 0)  # noqa: E741
    if sinks_ptr is not None:
        l += tl.exp2(sink - offset)  # noqa: E741
    seen = (l > 0.0) | (l != l)
    o = tl.sum(acc, 0) / tl.where(seen, l, 1.0)
    o_ptr += z * o_batch + query * o_row + head * o_head
    tl.store(o_ptr + column, o.to(o_ptr.dtype.element_ty), mask=column < E)
    if tl.program_id(1) == 0:
        lse = tl.where(seen, (m + tl.log2(l)) * 0.69314718055994530942, -float("inf"))
        tl.store(lse_ptr + pid, lse)
