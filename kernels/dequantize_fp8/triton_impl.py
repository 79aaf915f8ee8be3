"""The dequantisers in Triton. Codes are bytes to them: Triton's types of 8 bits are not on all GPUs."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from portable.dtypes import itemsize
from portable.kernels._lib.triton.minifloat import converts, decode, decode_written_out, format_of
from portable.kernels._lib.triton.rows import (
    MAX_GRID,
    MIN_BLOCK,
    RowTile,
    element_tile,
    row_args,
    row_starts,
    setting,
    unit_of,
    warps,
)
from portable.kernels.quantize_fp8.triton_impl import WITH_SUBNORMALS, group_tile
from portable.layout import ceil_div, next_power_of_2, rows
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar

GROUP, MX_GROUP = 128, 32
ELEMENTS = 16
"""Elements of a thread; half as many where each has a pointer and a mask of its own."""


@triton.jit
def product(q, zero, scale, dtype: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr):
    """Codes times scales in float32, rounded to `dtype`; of integers, where FORMAT is None, without the zero
    point. CONVERT: the GPU's instructions convert codes, and round a product as it is."""
    if not CONVERT:
        y = signed_product(q, zero, scale, dtype, FORMAT)
    elif FORMAT is None:
        y = ((q.to(tl.int32) - zero).to(tl.float32) * scale).to(dtype)
    else:
        y = (decode(q, FORMAT, True) * scale).to(dtype)
    return y


@triton.jit
def signed_product(q, zero, scale, dtype: tl.constexpr, FORMAT: tl.constexpr):
    """The same from magnitudes, and the sign is set after: Triton's -x is 0 - x, and on AMD GPUs it rounds a
    product to float16 with 0 added (v_fma_mixlo_f16). Either makes 0 of -0."""
    if FORMAT is None:
        value = q.to(tl.int32) - zero
        negative = value < 0
        size = tl.abs(value).to(tl.float32)
    else:
        negative = q >= 128
        size = tl.abs(decode_written_out(q, FORMAT, True))
    y = (size * tl.abs(scale)).to(dtype)
    sign = negative.to(tl.int32) ^ ((scale.to(tl.int32, bitcast=True) >> 31) & 1)
    if dtype.primitive_bitwidth == 16:
        bits = y.to(tl.int16, bitcast=True) | (sign << 15).to(tl.int16)
    else:
        bits = y.to(tl.int32, bitcast=True) | (sign << 31)
    return bits.to(dtype, bitcast=True)


@triton.jit
def power_of_two(byte):
    """float8_e8m0fnu as float32: 2^(byte - 127), of which the least is subnormal, and NaN of 255."""
    code = byte.to(tl.int32)
    bits = tl.where(code == 0, 0x00400000, code << 23)
    return tl.where(code == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def dequantize_rows(
    q_ptr, q_stride, y_ptr, y_stride, scale_ptr, zero_ptr, count, length, chunks,
    FORMAT: tl.constexpr, CONVERT: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile by a scale per row."""
    row, col, mask = element_tile(count, length, chunks, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    q = tl.load(row_starts(q_ptr, row, q_stride, UNIT) + col, mask=mask, other=0)
    scale = tl.load(scale_ptr + row, mask=row < count, other=0.0)[:, None]
    if zero_ptr is not None:
        zero = tl.load(zero_ptr + row, mask=row < count, other=0)[:, None]
        zero = tl.minimum(tl.maximum(zero, -128), 127)
    else:
        zero = 0
    y = product(q, zero, scale, y_ptr.dtype.element_ty, FORMAT, CONVERT)
    tl.store(row_starts(y_ptr, row, y_stride, UNIT) + col, y, mask=mask)


@triton.jit
def dequantize_groups(
    q_ptr, q_stride, y_ptr, y_stride, scale_ptr, groups, across, length, height, down,
    FORMAT: tl.constexpr, CONVERT: tl.constexpr, SIDE: tl.constexpr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS of the `groups`, of BLOCK columns each; a row has `across` of them. SIDE rows of a matrix, of
    `height` rows, share their scales; it has `down` times such rows."""
    group, there, row, first, lane, mask = group_tile(groups, across, length, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    q = tl.load(row_starts(q_ptr, row, q_stride, UNIT) + first + lane, mask=mask, other=0)
    place = group
    if SIDE > 1:
        line = group // across
        matrix = line // height
        place += (matrix * down + (line - matrix * height) // SIDE - line) * across
    scale = tl.load(scale_ptr + place, mask=there, other=0)
    if scale_ptr.dtype.element_ty == tl.uint8:
        scale = power_of_two(scale)
    y = product(q, 0, scale[:, None], y_ptr.dtype.element_ty, FORMAT, CONVERT)
    tl.store(row_starts(y_ptr, row, y_stride, UNIT) + first + lane, y, mask=mask)


def _arguments(call: Call) -> tuple[int, list[tuple[str, Argument]], tuple[tuple[str, Any], ...]]:
    """The elements that divide rows of q and y, the arguments of both and of the scales, FORMAT and CONVERT.

    The elements are those of 16 bytes of y: a thread that loads 16 codes would give some of their y to others
    to store, through shared memory.
    """
    names = ("q", "y")
    unit = unit_of(call, names, ("y", "q"), call["q"].shape[-1])
    of_q, of_scale = (call[name].dtype for name in ("q", "scale"))
    args = dict(row_args(call, names, unit > 1))
    args["q_ptr"] = Pointer("q", unit > 1, dtype=None if of_q == "int8" else "uint8")
    scale = Pointer("scale", dtype="uint8" if itemsize(of_scale) == 1 else None)
    given = [*args.items(), ("scale_ptr", scale)]
    if of_q == "int8":
        return unit, given, (("FORMAT", None), ("CONVERT", call.device.vendor == "cuda"))
    return unit, given, (("FORMAT", format_of(of_q)), ("CONVERT", converts(call.device, of_q)))


def row(call: Call) -> Plan | Rejected:
    """y from q, a scale per row and perhaps a zero point per row: one launch."""
    count, length, _ = rows(call["q"])
    unit, args, constants = _arguments(call)
    size, per_thread = setting(call, "TILE"), ELEMENTS if unit > 1 else ELEMENTS // 2
    block = min(size, max(MIN_BLOCK, next_power_of_2(length)))
    tile = RowTile(size // block, block, unit, warps(call.device, size // per_thread), length > block)
    chunks = ceil_div(length, block)
    programs = chunks * ceil_div(count, tile.rows)
    if programs > MAX_GRID:
        return Rejected(f"{programs} tiles of {size} elements: more than {MAX_GRID}")
    if call.has("zero_point"):
        args.append(("zero_ptr", Pointer("zero_point")))
    else:
        constants = (*constants, ("zero_ptr", None))
    args += [("count", Scalar("i64", count)), ("length", Scalar("i64", length))]
    args.append(("chunks", Scalar("i32", max(chunks, 1))))
    kernel = tile.kernel(dequantize_rows, *constants, options=WITH_SUBNORMALS)
    return Plan((Launch(kernel, (programs, 1, 1), tuple(args)),))


def _groups(call: Call, width: int, side: int = 1) -> Plan | Rejected:
    """y from q and a scale per `side` x `width`: one launch."""
    count, length, _ = rows(call["q"])
    height = call["q"].shape[-2] if side > 1 else 1
    unit, args, constants = _arguments(call)
    across = ceil_div(length, width)
    size, per_thread = setting(call, "TILE"), ELEMENTS if unit > 1 else ELEMENTS // 2
    tile = RowTile(size // width, width, unit, warps(call.device, size // per_thread), False)
    groups = count * across
    if groups > MAX_GRID - tile.rows:
        return Rejected(f"{groups} groups: more than {MAX_GRID}")
    dense = all(rows(call[name]).stride == length for name in ("q", "y"))
    if side == 1 and dense and length % width == 0:  # one long row
        across, length = groups, count * length
    args += [
        ("groups", Scalar("i32", groups)),
        ("across", Scalar("i32", max(across, 1))),
        ("length", Scalar("i64", length)),
        ("height", Scalar("i32", max(height, 1))),
        ("down", Scalar("i32", ceil_div(height, side))),
    ]
    kernel = tile.kernel(dequantize_groups, *constants, ("SIDE", side), options=WITH_SUBNORMALS)
    return Plan((Launch(kernel, (ceil_div(groups, tile.rows), 1, 1), tuple(args)),))


def groups(call: Call) -> Plan | Rejected:
    return _groups(call, GROUP)


def tiles(call: Call) -> Plan | Rejected:
    return _groups(call, GROUP, GROUP)


def mx(call: Call) -> Plan | Rejected:
    return _groups(call, MX_GROUP)
