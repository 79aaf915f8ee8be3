"""The gradient of long rows' norms in Triton: a row's statistics first, then dx of a range of columns.

`triton_norm_backward` has the formulas and the plan.
"""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.triton.norm import before_weight, load_weight
from portable.kernels._lib.triton.pdl import enter_pdl
from portable.kernels._lib.triton.rows import divisible


@triton.jit
def norm_backward_stats(
    dy_ptr, dy_stride, x_ptr, x_stride, w_ptr, stats_ptr, length, eps, offset,
    PDL: tl.constexpr, CENTERED: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of one row of any length, in one pass: mean, r, mean(g) and mean(g * h) into stats, float32 [rows, 4].

    Sums are of x - s, where each lane's s is its first x, so that a common offset cancels nothing.
    """
    enter_pdl(PDL)
    row = tl.program_id(0).to(tl.int64)
    dy_row = dy_ptr + row * divisible(dy_stride, UNIT)
    x_row = x_ptr + row * divisible(x_stride, UNIT)
    n = length.to(tl.float32)
    length = divisible(length, UNIT)
    lane = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    gx_sums = tl.zeros([BLOCK], tl.float32)
    if CENTERED:
        shift = tl.load(x_row + lane, mask=lane < length, other=0.0).to(tl.float32)
        sums = tl.zeros([BLOCK], tl.float32)
        g_sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        col = start + lane
        inside = col < length
        x = tl.load(x_row + col, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(dy_row + col, mask=inside, other=0.0).to(tl.float32)
        if w_ptr is not None:
            g *= load_weight(w_ptr, col, inside, offset)
        if CENTERED:
            x = tl.where(inside, x - shift, 0.0)
            sums += x
            g_sums += g
        squares = tl.fma(x, x, squares)
        gx_sums = tl.fma(g, x, gx_sums)
    mean = 0.0
    g_mean = 0.0
    if CENTERED:
        held = ((length - lane + BLOCK - 1) // BLOCK).to(tl.float32)
        mean = tl.sum(tl.fma(shift, held, sums), axis=0) / n
        g_mean = tl.sum(g_sums, axis=0) / n
        shift -= mean
        squares = tl.fma(shift, tl.fma(held, shift, 2.0 * sums), squares)
        gx_sums = tl.fma(shift, g_sums, gx_sums)
    r = tl.rsqrt(tl.sum(squares, axis=0) / n + eps)
    stats = stats_ptr + row * 4
    tl.store(stats, mean)
    tl.store(stats + 1, r)
    tl.store(stats + 2, g_mean)
    tl.store(stats + 3, tl.sum(gx_sums, axis=0) / n * r)


@triton.jit
def norm_backward_columns(
    dy_ptr, dy_stride, x_ptr, x_stride, w_ptr, stats_ptr, dx_ptr, dx_stride, a_ptr, a_stride, dw_ptr, db_ptr,
    count, length, chunks, lines, offset,
    PDL: tl.constexpr, CENTERED: tl.constexpr, CAST: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK columns of every `lines`-th row; `dw_ptr` and `db_ptr` are float32 [lines, length] or None."""
    enter_pdl(PDL)
    pid = tl.program_id(0)
    slot = pid // chunks
    length = divisible(length, UNIT)
    col = (pid % chunks) * BLOCK + tl.arange(0, BLOCK)
    inside = col < length
    if w_ptr is not None:
        w = load_weight(w_ptr, col, inside, offset)
    dw = tl.zeros([BLOCK], tl.float32)
    db = tl.zeros([BLOCK], tl.float32)
    for place in range(slot.to(tl.int64), count, lines):
        row = count - 1 - place  # what the statistics read last may still be near
        stats = stats_ptr + row * 4
        r = tl.load(stats + 1)
        x = tl.load(x_ptr + row * divisible(x_stride, UNIT) + col, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * divisible(dy_stride, UNIT) + col, mask=inside, other=0.0).to(tl.float32)
        h = (x - tl.load(stats)) * r
        g = dy
        if w_ptr is not None:
            g = dy * w
        dx = tl.fma(h, -tl.load(stats + 3), g - tl.load(stats + 2)) * r
        if a_ptr is not None:
            a_row = a_ptr + row * divisible(a_stride, UNIT)
            dx += tl.load(a_row + col, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + row * divisible(dx_stride, UNIT) + col, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        if dw_ptr is not None:
            dw = tl.fma(dy, before_weight(h, dx_ptr.dtype.element_ty, CAST), dw)
        if db_ptr is not None:
            db += dy
    line = slot.to(tl.int64) * length + col
    if dw_ptr is not None:
        tl.store(dw_ptr + line, dw, mask=inside)
    if db_ptr is not None:
        tl.store(db_ptr + line, db, mask=inside)
