"""The quantisers to 4 bits in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.triton.rows import divisible, row_starts
from portable.kernels.int4_mm.reference import ZERO_POINT
from portable.kernels.quantize_fp8.triton_impl import magnitudes, scale_of
from portable.kernels.quantize_int8.triton_impl import (
    SYMMETRIC,
    above_and_below,
    nearest,
    plan_rows,
    scale_and_zero,
)
from portable.plan import Call, Plan, Rejected

_ZERO = ("ZERO", ZERO_POINT)


@triton.jit
def quantize_rows(
    x_ptr, x_stride, q_ptr, q_stride, scale_ptr, zero_ptr, count, length, eps,
    ZERO: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows of at most BLOCK elements."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < count
    length = divisible(length, UNIT)
    col = tl.arange(0, BLOCK)[None, :]
    x = tl.load(row_starts(x_ptr, row, x_stride, UNIT) + col, mask=there[:, None] & (col < length), other=0.0)
    if zero_ptr is None:
        scale = scale_of(tl.max(magnitudes(x), axis=1), eps, 7.5, False)  # pyright: ignore[reportArgumentType]
        zero = tl.full([ROWS], ZERO, tl.int32)
    else:
        above, below = above_and_below(x)
        scale, zero = scale_and_zero(tl.max(above, axis=1), tl.max(below, axis=1), eps, 7.5)  # pyright: ignore[reportArgumentType]
        tl.store(zero_ptr + row, zero.to(tl.uint8), mask=there)
    tl.store(scale_ptr + row, scale, mask=there)
    zero = zero[:, None]
    value = x.to(tl.float32) * tl.div_rn(1.0, scale)[:, None]
    codes = nearest(value, (-zero).to(tl.float32), (15 - zero).to(tl.float32)) + zero
    low, high = tl.split(codes.to(tl.uint8).reshape(ROWS, BLOCK // 2, 2))  # pyright: ignore[reportOperatorIssue]
    pair = tl.arange(0, BLOCK // 2)[None, :]  # pyright: ignore[reportOperatorIssue]
    mask = there[:, None] & (2 * pair < length)
    tl.store(row_starts(q_ptr, row, q_stride, UNIT) + pair, low | (high << 4), mask=mask)


def symmetric(call: Call) -> Plan | Rejected:
    """q and scale from x: one launch."""
    return plan_rows(call, quantize_rows, None, (_ZERO, *SYMMETRIC))


def asymmetric(call: Call) -> Plan | Rejected:
    """q, scale and zero point from x: one launch."""
    return plan_rows(call, quantize_rows, None, (_ZERO,))
