"""Both ops in Triton: rms_norm's tile, then quantize_fp8's scale and codes."""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.minifloat import largest
from portable.kernels._lib.triton.minifloat import encode
from portable.kernels._lib.triton.norm import add_rounded, norm_tile, scale_and_shift, weight_settings
from portable.kernels._lib.triton.rows import (
    divisible,
    renamed_row_args,
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
    as_bytes,
    code_constants,
    magnitudes,
    scale_of,
)
from portable.layout import rows
from portable.plan import Call, Plan, Pointer, Rejected, Scalar


@triton.jit
def norm_quantize_rows(
    x_ptr, x_stride, w_ptr, q_ptr, q_stride, scale_ptr, r_ptr, r_stride, h_ptr, h_stride,
    count, length, eps, offset, scale_eps, largest,
    POWER_OF_2: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows of at most BLOCK elements; with `r_ptr` of x + r, rounded, which goes to `h_ptr`."""
    dtype = x_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < count
    col = tl.arange(0, BLOCK)[None, :]
    inside = col < divisible(length, UNIT)
    mask = there[:, None] & inside
    n = length.to(tl.float32)
    x = tl.load(row_starts(x_ptr, row, x_stride, UNIT) + col, mask=mask, other=0.0)
    if r_ptr is not None:
        x = add_rounded(x, tl.load(row_starts(r_ptr, row, r_stride, UNIT) + col, mask=mask, other=0.0))
        tl.store(row_starts(h_ptr, row, h_stride, UNIT) + col, x, mask=mask)
    y = norm_tile(x.to(tl.float32), inside, n, w_ptr, None, col, eps, offset, dtype, False, False)
    y = tl.where(inside, y, 0.0).to(dtype)  # of no columns there is no mean
    scale = scale_of(tl.max(magnitudes(y), axis=1), scale_eps, largest, POWER_OF_2)
    tl.store(scale_ptr + row, scale, mask=there)
    codes = encode(y.to(tl.float32) * tl.div_rn(1.0, scale)[:, None], FORMAT, CONVERT)
    tl.store(row_starts(q_ptr, row, q_stride, UNIT) + col, codes, mask=mask)


@triton.jit
def chunk_of(x_row, r_row, col, inside):
    """Some columns of a row, or of the rounded sum of two."""
    x = tl.load(x_row + col, mask=inside, other=0.0)
    if r_row is not None:
        x = add_rounded(x, tl.load(r_row + col, mask=inside, other=0.0))
    return x


@triton.jit
def normalized_chunk(x_row, r_row, r, w_ptr, col, inside, offset):
    """The rounded norms of some columns of a row."""
    x = chunk_of(x_row, r_row, col, inside)
    y = scale_and_shift(x.to(tl.float32) * r, w_ptr, None, col, inside, offset, x.dtype, False)
    return y.to(x.dtype)


@triton.jit
def norm_quantize_stream(
    x_ptr, x_stride, w_ptr, q_ptr, q_stride, scale_ptr, r_ptr, r_stride, h_ptr, h_stride, length, eps, offset,
    scale_eps, largest,
    POWER_OF_2: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr,
    UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of any length, read three times, the second time backwards: of a sum both of its rows, as what
    one lane has stored another would have to wait for."""
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * divisible(x_stride, UNIT)
    q_row = q_ptr + row * divisible(q_stride, UNIT)
    if r_ptr is not None:
        r_row = r_ptr + row * divisible(r_stride, UNIT)
        h_row = h_ptr + row * divisible(h_stride, UNIT)
    else:
        r_row = None
    n = length.to(tl.float32)
    length = divisible(length, UNIT)
    lane = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        col = start + lane
        x = chunk_of(x_row, r_row, col, col < length)
        if r_ptr is not None:
            tl.store(h_row + col, x, mask=col < length)
        x = x.to(tl.float32)
        squares = tl.fma(x, x, squares)
    r = tl.rsqrt(tl.sum(squares, axis=0) / n + eps)
    most = tl.zeros([BLOCK], tl.int32)
    for start in range(0, length, BLOCK):
        col = (tl.cdiv(length, BLOCK) * BLOCK - BLOCK - start) + lane
        most = tl.maximum(
            most, magnitudes(normalized_chunk(x_row, r_row, r, w_ptr, col, col < length, offset))
        )
    scale = scale_of(tl.max(most, axis=0), scale_eps, largest, POWER_OF_2)
    tl.store(scale_ptr + row, scale)
    inverse = tl.div_rn(1.0, scale)
    for start in range(0, length, BLOCK):
        col = start + lane
        y = normalized_chunk(x_row, r_row, r, w_ptr, col, col < length, offset).to(tl.float32)
        tl.store(q_row + col, encode(y * inverse, FORMAT, CONVERT), mask=col < length)


def row(call: Call) -> Plan | Rejected:
    """q and scale from x and weight, or from x + residual, which is new_residual: one launch."""
    count, length, _ = rows(call["x"])
    weighted = call.has("weight")
    more = {"r": "residual", "h": "new_residual"} if call.has("residual") else {}
    names = ("x", "q", *more.values())
    unit = unit_of(call, (*names, "weight") if weighted else names, names, length)
    tile = row_tile(call, length, unit, RESIDENT, RESIDENT_AMD)
    if rejected := too_large(count, length, tile):
        return rejected
    args = [*as_bytes(row_args(call, names[:2], unit > 1)), ("scale_ptr", Pointer("scale"))]
    for arg, name in more.items():
        args += renamed_row_args(call, arg, name, unit > 1)
    if weighted:
        args.insert(2, ("w_ptr", Pointer("weight", unit > 1)))
    if not tile.streams:
        args.append(("count", Scalar("i64", count)))
    args += [("length", Scalar("i32", length)), ("eps", Scalar("f32", call.params["eps"]))]
    offset, settings = weight_settings(call)
    args += [
        *offset,
        ("scale_eps", Scalar("f32", call.params["scale_eps"])),
        ("largest", Scalar("f32", largest(call["q"].dtype))),
    ]
    constants = [each for each in settings if each[0] == "offset"]
    if not weighted:
        constants.append(("w_ptr", None))
    if not more:
        constants += [(f"{arg}_{what}", None) for arg in "rh" for what in ("ptr", "stride")]
    function = norm_quantize_stream if tile.streams else norm_quantize_rows
    return Plan((tile_launch(call, tile, function, args, count, *constants, *code_constants(call)),))
