"""dequantize_mxfp4 and dequantize_nvfp4 in Triton: bytes of two codes become neighbours of y."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from portable.dtypes import itemsize
from portable.kernels._lib.triton.minifloat import converts, decode, format_of
from portable.kernels._lib.triton.rows import MAX_GRID, RowTile, divisible, row_starts, setting, warps
from portable.kernels.dequantize_fp8.reference import MX_GROUP, NV_GROUP
from portable.kernels.dequantize_fp8.triton_impl import ELEMENTS, power_of_two
from portable.kernels.quantize_fp8.triton_impl import WITH_SUBNORMALS, group_tile
from portable.layout import ceil_div, rows
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar


@triton.jit
def numbers(code, scale, whole, sign, dtype: tl.constexpr):
    """Codes of e2m1fn times scales, exactly, and times the global scale where there is one, rounded to
    `dtype`. The scales are magnitudes; the sign, with theirs, 0 or 1, is set after, as in the dequantisers of
    8 bits."""
    bits = code.to(tl.int32)
    size = ((bits & 7) << 22).to(tl.float32, bitcast=True) * 2.0**126 * scale
    if whole is not None:
        size = size * whole
    negative = (bits >> 3) ^ sign
    y = size.to(dtype)
    if dtype.primitive_bitwidth == 16:  # pyright: ignore[reportAttributeAccessIssue]
        signed = y.to(tl.int16, bitcast=True) | (negative << 15).to(tl.int16)
    else:
        signed = y.to(tl.int32, bitcast=True) | (negative << 31)
    return signed.to(dtype, bitcast=True)


@triton.jit
def dequantize_fp4_groups(
    q_ptr, q_stride, y_ptr, y_stride, scale_ptr, global_ptr, groups, across, length,
    FORMAT: tl.constexpr, CONVERT: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS of the `groups`, of BLOCK bytes of q each; a row has `across` of them and `length` bytes. FORMAT
    is the scales', with a global one, None of powers of two in a byte alone."""
    group, there, row, first, lane, mask = group_tile(groups, across, length, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    q = tl.load(row_starts(q_ptr, row, q_stride, UNIT) + first + lane, mask=mask, other=0)
    code = tl.load(scale_ptr + group, mask=there, other=0)
    if FORMAT is None:
        scale, sign, whole = power_of_two(code)[:, None], 0, None
    else:
        given = tl.load(global_ptr)
        scale, whole = decode(code & 127, FORMAT, CONVERT)[:, None], tl.abs(given)
        sign = (code.to(tl.int32) >> 7)[:, None] ^ ((given.to(tl.int32, bitcast=True) >> 31) & 1)
    dtype: tl.constexpr = y_ptr.dtype.element_ty
    y = tl.join(numbers(q & 15, scale, whole, sign, dtype), numbers(q >> 4, scale, whole, sign, dtype))
    column = tl.arange(0, 2 * BLOCK)[None, :]  # pyright: ignore[reportOperatorIssue]
    inside = there[:, None] & (2 * first + column < 2 * divisible(length, UNIT))
    to = row_starts(y_ptr, row, y_stride, 2 * UNIT) + 2 * first + column  # pyright: ignore[reportOperatorIssue]
    tl.store(to, y.reshape(ROWS, 2 * BLOCK), mask=inside)  # pyright: ignore[reportOperatorIssue]


@triton.jit
def two_numbers(word, by, then, AT: tl.constexpr, dtype: tl.constexpr):
    """The numbers of the codes from bit AT and from bit 16 + AT of words on, times `by`, exactly, and `then`,
    which are magnitudes, side by side.

    Where float16 has them, both codes' three bits are the numbers times 2^-14, e2m1's subnormal one too. A
    sign is set before the rounding to `dtype`, which so is none of a product (`signed_product`).
    """
    bits = word << (9 - AT) if AT < 9 else word >> (AT - 9)
    bits &= 0x0E000E00
    low = bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * by * then
    high = (bits >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * by * then
    low = low.to(tl.int32, bitcast=True) | ((word << (28 - AT)) & -0x80000000)
    high = high.to(tl.int32, bitcast=True) | ((word << (12 - AT)) & -0x80000000)
    return tl.join(low.to(tl.float32, bitcast=True).to(dtype), high.to(tl.float32, bitcast=True).to(dtype))


@triton.jit
def dequantize_fp4_words(
    q_ptr, y_ptr, scale_ptr, global_ptr, groups,
    FORMAT: tl.constexpr, CONVERT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As `dequantize_fp4_groups`, of groups that follow each other, by words of as many codes as 16 bytes of
    y have."""
    dtype: tl.constexpr = y_ptr.dtype.element_ty
    CODES: tl.constexpr = 128 // dtype.primitive_bitwidth  # pyright: ignore[reportAttributeAccessIssue]
    WORDS: tl.constexpr = 2 * BLOCK // CODES  # pyright: ignore[reportOperatorIssue]
    TYPE = tl.int32 if CODES == 8 else tl.int16
    first = tl.program_id(0).to(tl.int64) * ROWS
    place = tl.arange(0, ROWS * WORDS)  # pyright: ignore[reportOperatorIssue]
    there = place < tl.minimum(groups - first, ROWS).to(tl.int32) * WORDS
    q = q_ptr.to(tl.pointer_type(TYPE), bitcast=True) + first * WORDS
    word = tl.load(q + place, mask=there, other=0).to(tl.int32)
    code = tl.load(scale_ptr + first + place // WORDS, mask=there, other=0)
    if FORMAT is None:
        by, then = 2.0**14, power_of_two(code)
    else:
        given = tl.load(global_ptr)
        by, then = decode(code & 127, FORMAT, CONVERT) * 2.0**14, tl.abs(given)
        word ^= ((code.to(tl.int32) >> 7) ^ ((given.to(tl.int32, bitcast=True) >> 31) & 1)) * -0x77777778
    if CODES == 4:
        word = (word & 0xFF) | ((word & 0xFF00) << 8)
    even, odd = two_numbers(word, by, then, 0, dtype), two_numbers(word, by, then, 4, dtype)
    if CODES == 8:
        even = tl.join(even, two_numbers(word, by, then, 8, dtype))
        odd = tl.join(odd, two_numbers(word, by, then, 12, dtype))
    y = tl.join(even, odd).reshape(2 * ROWS * BLOCK)  # pyright: ignore[reportOperatorIssue]
    column = tl.arange(0, 2 * ROWS * BLOCK)  # pyright: ignore[reportOperatorIssue]
    inside = column < tl.minimum(groups - first, ROWS).to(tl.int32) * (2 * BLOCK)
    tl.store(y_ptr + first * (2 * BLOCK) + column, y, mask=inside)


def mxfp4(call: Call) -> Plan | Rejected:
    return _plan(call, MX_GROUP // 2, (("FORMAT", None), ("CONVERT", False), ("global_ptr", None)))


def nvfp4(call: Call) -> Plan | Rejected:
    kind = call["scale"].dtype
    constants = (("FORMAT", format_of(kind)), ("CONVERT", converts(call.device, kind)))
    return _plan(call, NV_GROUP // 2, constants)


def _plan(call: Call, width: int, constants: tuple[tuple[str, Any], ...]) -> Plan | Rejected:
    """y from q and a scale per `width` bytes: one launch."""
    q, y = rows(call["q"]), rows(call["y"])
    dense = q.stride == q.length and y.stride == 2 * q.length and q.length % width == 0
    unit = 8 // itemsize(call["y"].dtype)  # bytes of q for 16 of y
    aligned = all(call[name].alignment >= 16 for name in ("q", "y"))
    if not aligned or q.length % unit or q.stride % unit or y.stride % (2 * unit):
        unit = 1
    count, length = q.count, q.length
    across = ceil_div(length, width)
    size, per_thread = setting(call, "TILE"), ELEMENTS if unit > 1 else ELEMENTS // 2
    tile = RowTile(size // (2 * width), width, unit, warps(call.device, size // per_thread), False)
    groups = count * across
    if groups > MAX_GRID - tile.rows:
        return Rejected(f"{groups} groups: more than {MAX_GRID}")
    if dense and unit > 1:
        return _words(call, tile, groups, constants)
    if dense:  # one long row
        across, length = groups, count * length
    args: list[tuple[str, Argument]] = [
        ("q_ptr", Pointer("q", unit > 1)),
        ("q_stride", Scalar("i64", q.stride)),
        ("y_ptr", Pointer("y", unit > 1)),
        ("y_stride", Scalar("i64", y.stride)),
        ("scale_ptr", Pointer("scale", dtype="uint8")),
    ]
    if call.has("global_scale"):
        args.append(("global_ptr", Pointer("global_scale")))
    args += [
        ("groups", Scalar("i32", groups)),
        ("across", Scalar("i32", max(across, 1))),
        ("length", Scalar("i64", length)),
    ]
    kernel = tile.kernel(dequantize_fp4_groups, *constants, options=WITH_SUBNORMALS)
    return Plan((Launch(kernel, (ceil_div(groups, tile.rows), 1, 1), tuple(args)),))


def _words(call: Call, tile: RowTile, groups: int, constants: tuple[tuple[str, Any], ...]) -> Plan:
    """The same of rows that are whole groups and follow each other. No more than a word's alignment is
    promised of q: a thread that loads several gives some of their y to others to store."""
    args: list[tuple[str, Argument]] = [
        ("q_ptr", Pointer("q")),
        ("y_ptr", Pointer("y", True)),
        ("scale_ptr", Pointer("scale", dtype="uint8")),
    ]
    if call.has("global_scale"):
        args.append(("global_ptr", Pointer("global_scale")))
    args.append(("groups", Scalar("i32", groups)))
    kernel = tile.kernel(dequantize_fp4_words, *constants, options=WITH_SUBNORMALS)
    return Plan((Launch(kernel, (ceil_div(groups, tile.rows), 1, 1), tuple(args)),))
