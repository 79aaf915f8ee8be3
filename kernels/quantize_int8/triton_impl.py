"""The int8 quantisers in Triton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import triton
import triton.language as tl

from portable.dtypes import itemsize
from portable.kernels._lib.triton.rows import (
    divisible,
    element_tile,
    plan_elementwise,
    row_args,
    row_starts,
    row_tile,
    tile_launch,
    too_large,
    unit_of,
)
from portable.kernels.quantize_fp8.triton_impl import (
    RESIDENT,
    RESIDENT_AMD,
    STATIC_ACCESSES,
    WITH_SUBNORMALS,
    magnitudes,
    scale_of,
)
from portable.layout import rows
from portable.plan import Call, Plan, Pointer, Rejected, Scalar, TritonKernel

FULL_REGISTERS = 48
"""Of a thread of 32 elements (NVIDIA). With zero points the compiler takes 55, with which fewer programs of
128 or 256 threads share a multiprocessor: 8192x7168 in bfloat16 49.4 us, so limited 45.7 (H200, 2026-11-27).
By 40 they spill."""
SYMMETRIC = (("zero_ptr", None),)
"""The constant of kernels without zero points."""


@triton.jit
def nearest(value, least, most):
    """The nearest integers, the even one of two, to numbers that are brought to `least` to `most` first; 0,
    which lies between, of NaN. Beside 1.5 * 2^23 the step of float32 is 1: the addition rounds."""
    value = tl.where(value == value, value, 0.0)
    value = tl.minimum(tl.maximum(value, least), most)
    return (value + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000


@triton.jit
def codes_of(value, zero):
    """The codes of numbers over their scale: the nearest integers from -127 to 127 where `zero` is None, else
    their sums with it, from -128."""
    if zero is None:
        code = nearest(value, -127.0, 127.0)
    else:
        code = nearest(value, (-128 - zero).to(tl.float32), (127 - zero).to(tl.float32)) + zero
    return code.to(tl.int8)


@triton.jit
def codes_of_rows(x, scale, zero):
    """The codes of rows over their own scales [ROWS]: 0, or the zero point, where those are not finite; only
    there a number may become NaN, and there each is brought to 0. Symmetric codes are within 127 and a
    rounding; with a zero point, which is nearest to the lower end, they go beyond the upper end alone."""
    finite, inverse = scale < float("inf"), tl.div_rn(1.0, scale)
    if zero is None:
        value = x * inverse[:, None]
        code = (value + 12582912.0).to(tl.int32, bitcast=True) & tl.where(finite, 0xFF, 0)[:, None]
    else:
        most = tl.where(finite, 127 - zero, 0).to(tl.float32)
        value = tl.minimum(x * tl.where(finite, inverse, 0.0)[:, None], most[:, None])
        code = (value + 12582912.0).to(tl.int32, bitcast=True) + zero[:, None]
    return code.to(tl.int8)


@triton.jit
def above_and_below(x):
    """Integers, signed and not, of which `scale_and_zero` takes the largest of a row. As signed ones the bits
    of float32 order what is above 0; as unsigned ones what is below, which has its sign in the uppermost bit;
    NaN is beyond Inf in both."""
    bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    return bits, bits.to(tl.uint32, bitcast=True)


@triton.jit
def symmetric_scale(most, eps):
    return scale_of(most, eps, 127.0, False)  # pyright: ignore[reportArgumentType]


@triton.jit
def scale_and_zero(above, below, eps, HALF: tl.constexpr):
    """Of rows and 0 by the largest of `above_and_below`, with codes from 0 to 2 * HALF. The scale is that of
    halves, as the difference of the ends may be too large for float32."""
    above = tl.maximum(above, 0)
    below = tl.maximum(below.to(tl.int32, bitcast=True) ^ -0x80000000, 0).to(tl.float32, bitcast=True)
    half = above.to(tl.float32, bitcast=True) * 0.5 + below * 0.5
    scale = scale_of(half.to(tl.int32, bitcast=True), eps * 0.5, HALF, False)  # pyright: ignore[reportArgumentType]
    return scale, nearest(below * tl.div_rn(1.0, scale), 0.0, 2 * HALF)


@triton.jit
def quantize_rows(
    x_ptr, x_stride, q_ptr, q_stride, scale_ptr, zero_ptr, count, length, eps,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows of at most BLOCK elements."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < count
    col = tl.arange(0, BLOCK)[None, :]
    mask = there[:, None] & (col < divisible(length, UNIT))
    x = tl.load(row_starts(x_ptr, row, x_stride, UNIT) + col, mask=mask, other=0.0)
    if zero_ptr is None:
        scale, zero = symmetric_scale(tl.max(magnitudes(x), axis=1), eps), None
    else:
        above, below = above_and_below(x)
        scale, zero = scale_and_zero(tl.max(above, axis=1), tl.max(below, axis=1), eps, 127.5)  # pyright: ignore[reportArgumentType]
        zero -= 128
        tl.store(zero_ptr + row, zero, mask=there)
    tl.store(scale_ptr + row, scale, mask=there)
    codes = codes_of_rows(x.to(tl.float32), scale, zero)
    tl.store(row_starts(q_ptr, row, q_stride, UNIT) + col, codes, mask=mask)


@triton.jit
def quantize_rows_stream(
    x_ptr, x_stride, q_ptr, q_stride, scale_ptr, zero_ptr, length, eps,
    UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of any length, read twice, the second time backwards."""
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * divisible(x_stride, UNIT)
    q_row = q_ptr + row * divisible(q_stride, UNIT)
    length = divisible(length, UNIT)
    lane = tl.arange(0, BLOCK)
    most = tl.zeros([BLOCK], tl.int32)
    below = tl.zeros([BLOCK], tl.uint32)
    for start in range(0, length, BLOCK):
        col = start + lane
        x = tl.load(x_row + col, mask=col < length, other=0.0)
        if zero_ptr is None:
            most = tl.maximum(most, magnitudes(x))
        else:
            over, under = above_and_below(x)
            most, below = tl.maximum(most, over), tl.maximum(below, under)
    if zero_ptr is None:
        scale, zero = symmetric_scale(tl.max(most, axis=0), eps), None
    else:
        scale, zero = scale_and_zero(tl.max(most, axis=0), tl.max(below, axis=0), eps, 127.5)  # pyright: ignore[reportArgumentType]
        zero -= 128
        tl.store(zero_ptr + row, zero)
    tl.store(scale_ptr + row, scale)
    inverse = tl.div_rn(1.0, scale)
    for start in range(0, length, BLOCK):
        col = (tl.cdiv(length, BLOCK) * BLOCK - BLOCK - start) + lane
        x = tl.load(x_row + col, mask=col < length, other=0.0).to(tl.float32)
        tl.store(q_row + col, codes_of(x * inverse, zero), mask=col < length)


@triton.jit
def quantize_elements(
    x_ptr, x_stride, q_ptr, q_stride, count, length, chunks, scale_ptr, zero_ptr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile by a given scale and, unless zero_ptr is None, a given zero point."""
    row, col, mask = element_tile(count, length, chunks, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    x = tl.load(row_starts(x_ptr, row, x_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    value = x * tl.div_rn(1.0, tl.load(scale_ptr))
    zero = None if zero_ptr is None else tl.minimum(tl.maximum(tl.load(zero_ptr), -128), 127)
    tl.store(row_starts(q_ptr, row, q_stride, UNIT) + col, codes_of(value, zero), mask=mask)


def symmetric(call: Call) -> Plan | Rejected:
    """q and scale from x: one launch."""
    return plan_rows(call, quantize_rows, quantize_rows_stream, SYMMETRIC)


def asymmetric(call: Call) -> Plan | Rejected:
    """q, scale and zero point from x: one launch."""
    plan = plan_rows(call, quantize_rows, quantize_rows_stream)
    if isinstance(plan, Rejected) or call.device.vendor != "cuda" or itemsize(call["x"].dtype) > 2:
        return plan
    (launch,) = plan.launches
    kernel = launch.kernel
    if not isinstance(kernel, TritonKernel) or kernel.function is quantize_rows_stream:
        return plan
    if ("UNIT", 1) in kernel.constants or ("ROWS", 1) not in kernel.constants:  # they would spill
        return plan
    kernel = replace(kernel, options=(*kernel.options, ("maxnreg", FULL_REGISTERS)))
    return Plan((replace(launch, kernel=kernel),))


def plan_rows(
    call: Call, function: Any, stream: Any, constants: Sequence[tuple[str, Any]] = ()
) -> Plan | Rejected:
    """q, a scale and, where the op has them, a zero point per row: one launch of `function`, or of `stream`
    for rows that no program holds, which are refused where that is None."""
    count, length, _ = rows(call["x"])
    names = ("x", "q")
    unit = unit_of(call, names, names, length)
    args = [*row_args(call, names, unit > 1), ("scale_ptr", Pointer("scale"))]
    tile = row_tile(call, length, unit, RESIDENT, RESIDENT_AMD if stream else None)
    if tile.streams and stream is None:
        return Rejected(f"rows of {length} elements: more than a program holds")
    if rejected := too_large(count, length, tile):
        return rejected
    if call.has("zero_point"):
        args.append(("zero_ptr", Pointer("zero_point")))
    if not tile.streams:
        args.append(("count", Scalar("i64", count)))
    args += [("length", Scalar("i32", length)), ("eps", Scalar("f32", call.params["eps"]))]
    return Plan((tile_launch(call, tile, stream if tile.streams else function, args, count, *constants),))


def static(call: Call) -> Plan | Rejected:
    """q from x, a scale and perhaps a zero point: one launch."""
    given = call.has("zero_point")
    constants = () if given else SYMMETRIC
    plan = plan_elementwise(
        call, ("x", "q"), quantize_elements, *constants, options=WITH_SUBNORMALS, accesses=STATIC_ACCESSES
    )
    if isinstance(plan, Rejected):
        return plan
    (launch,) = plan.launches
    more = (("scale_ptr", Pointer("scale")), *((("zero_ptr", Pointer("zero_point")),) if given else ()))
    return Plan((replace(launch, args=(*launch.args, *more)),))
