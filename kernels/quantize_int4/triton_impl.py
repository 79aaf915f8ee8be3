"""The quantisers to 4 bits in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.triton.rows import (
    divisible,
    row_args,
    row_starts,
    row_tile,
    tile_launch,
    too_large,
    unit_of,
)
from portable.kernels.int4_mm.reference import ZERO_POINT
from portable.kernels.quantize_fp8.triton_impl import RESIDENT, magnitudes, scale_of
from portable.kernels.quantize_int8.triton_impl import SYMMETRIC, above_and_below, nearest
from portable.layout import rows
from portable.plan import Call, Plan, Pointer, Rejected, Scalar


@triton.jit
def quantize_rows(
    x_ptr, x_stride, q_ptr, q_stride, scale_ptr, zero_ptr, count, length, eps,
    ZERO: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows of at most BLOCK elements. The scale with zero points is that of halves of the range."""
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
        above = tl.maximum(tl.max(above, axis=1), 0).to(tl.float32, bitcast=True)
        below = tl.maximum(tl.max(below, axis=1), 0).to(tl.float32, bitcast=True)
        half = above * 0.5 + below * 0.5
        scale = scale_of(half.to(tl.int32, bitcast=True), eps * 0.5, 7.5, False)  # pyright: ignore[reportArgumentType]
        zero = nearest(below * tl.div_rn(1.0, scale), 0.0, 15.0)
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
    return _rows(call)


def asymmetric(call: Call) -> Plan | Rejected:
    """q, scale and zero point from x: one launch."""
    return _rows(call, Pointer("zero_point"))


def _rows(call: Call, zero_point: Pointer | None = None) -> Plan | Rejected:
    count, length, _ = rows(call["x"])
    names = ("x", "q")
    unit = unit_of(call, names, names, length)
    tile = row_tile(call, length, unit, RESIDENT)
    if tile.streams:
        return Rejected(f"rows of {length} elements: more than a program holds")
    if rejected := too_large(count, length, tile):
        return rejected
    args = [*row_args(call, names, unit > 1), ("scale_ptr", Pointer("scale"))]
    if zero_point is not None:
        args.append(("zero_ptr", zero_point))
    args += [
        ("count", Scalar("i64", count)),
        ("length", Scalar("i32", length)),
        ("eps", Scalar("f32", call.params["eps"])),
    ]
    constants = (("ZERO", ZERO_POINT), *(SYMMETRIC if zero_point is None else ()))
    return Plan((tile_launch(call, tile, quantize_rows, args, count, *constants),))
