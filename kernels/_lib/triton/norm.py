"""rms_norm and layer_norm forward in Triton: one kernel, CENTERED for layer_norm.

y = (x - mean) * rsqrt(mean((x - mean)^2) + eps) * (w + offset) + b, where rms_norm takes 0 for mean and b.
All in float32, rounded once; with CAST rounded before w as well. `w_ptr`, `b_ptr` and `offset` are None where
absent.

With `r_ptr` (fused_add_rms_norm) x is x + r, rounded to its type, which goes to `h_ptr` as well.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from portable.dtypes import itemsize
from portable.kernels._lib.triton.pdl import enter_pdl
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
from portable.layout import rows
from portable.plan import Argument, Call, Plan, Pointer, Rejected, Scalar

RESIDENT_BYTES = 65536  # of one row, in the registers of 1024 threads
RESIDENT_BYTES_AMD = 131072  # float32 rows of 65536 spill 7 and 26 registers on gfx942 (compiled 2026-11-23)
UNROLL = 4  # chunks of a long row whose loads are in flight together


@triton.jit
def load_weight(w_ptr, col, mask, offset):
    """w[col] + offset in float32; an offset of None is none."""
    w = tl.load(w_ptr + col, mask=mask, other=0.0).to(tl.float32)
    if offset is not None:
        w += offset
    return w


@triton.jit
def before_weight(value, dtype: tl.constexpr, CAST: tl.constexpr):
    """A normalized value as it meets the weight: rounded to the rows' dtype if CAST."""
    if CAST:
        value = value.to(dtype).to(tl.float32)
    return value


@triton.jit
def scale_and_shift(value, w_ptr, b_ptr, col, mask, offset, dtype: tl.constexpr, CAST: tl.constexpr):
    """value * (w[col] + offset) + b[col], each where present."""
    if b_ptr is not None:
        b = tl.load(b_ptr + col, mask=mask, other=0.0).to(tl.float32)
    if w_ptr is not None:
        w = load_weight(w_ptr, col, mask, offset)
        value = before_weight(value, dtype, CAST)
        if b_ptr is not None:
            value = tl.fma(value, w, b)
        else:
            value *= w
    elif b_ptr is not None:
        value += b
    return value


@triton.jit
def norm_tile(
    x, inside, n, w_ptr, b_ptr, col, eps, offset,
    dtype: tl.constexpr, CENTERED: tl.constexpr, CAST: tl.constexpr,
):  # fmt: skip
    """The norm of each of the rows of x [ROWS, BLOCK], for rows of `dtype`."""
    if CENTERED:
        x = tl.where(inside, x - tl.sum(x, axis=1, keep_dims=True) / n, 0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / n + eps)
    return scale_and_shift(x * scale, w_ptr, b_ptr, col, inside, offset, dtype, CAST)


@triton.jit
def add_rounded(x, r):
    """x + r in float32, rounded once to their type."""
    return (x.to(tl.float32) + r.to(tl.float32)).to(x.dtype)


@triton.jit
def norm_rows(
    x_ptr, x_stride, w_ptr, b_ptr, y_ptr, y_stride, r_ptr, r_stride, h_ptr, h_stride,
    count, length, eps, offset,
    PDL: tl.constexpr, CENTERED: tl.constexpr, CAST: tl.constexpr, AHEAD: tl.constexpr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows of at most BLOCK elements; if AHEAD, which knows no `r_ptr`, every num_programs-th such tile,
    each loaded while the one before it is worked on."""
    enter_pdl(PDL)
    dtype = y_ptr.dtype.element_ty
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = first + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)[None, :]
    inside = col < divisible(length, UNIT)
    mask = (row < count)[:, None] & inside
    n = length.to(tl.float32)
    x = tl.load(row_starts(x_ptr, row, x_stride, UNIT) + col, mask=mask, other=0.0)
    if r_ptr is not None:
        x = add_rounded(x, tl.load(row_starts(r_ptr, row, r_stride, UNIT) + col, mask=mask, other=0.0))
        tl.store(row_starts(h_ptr, row, h_stride, UNIT) + col, x, mask=mask)
    if AHEAD:
        step = tl.num_programs(0) * ROWS
        for start in range(first, count, step):
            row = start + tl.arange(0, ROWS)
            mask = (row < count)[:, None] & inside
            after = row + step
            more = (after < count)[:, None] & inside
            following = tl.load(row_starts(x_ptr, after, x_stride, UNIT) + col, mask=more, other=0.0)
            y = norm_tile(x.to(tl.float32), inside, n, w_ptr, b_ptr, col, eps, offset, dtype, CENTERED, CAST)
            tl.store(row_starts(y_ptr, row, y_stride, UNIT) + col, y.to(dtype), mask=mask)
            x = following
    else:
        y = norm_tile(x.to(tl.float32), inside, n, w_ptr, b_ptr, col, eps, offset, dtype, CENTERED, CAST)
        tl.store(row_starts(y_ptr, row, y_stride, UNIT) + col, y.to(dtype), mask=mask)


@triton.jit
def norm_stream(
    x_ptr, x_stride, w_ptr, b_ptr, y_ptr, y_stride, r_ptr, r_stride, h_ptr, h_stride, length, eps, offset,
    PDL: tl.constexpr, CENTERED: tl.constexpr, CAST: tl.constexpr,
    UNROLL: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row of any length, read twice: for its statistics, and backwards for the result. With `r_ptr` both
    read x and r: what one lane has stored another would have to wait for.

    Each lane follows the mean of its own elements and their squared distances from it (Welford); the lanes'
    are then merged (Chan).
    """
    enter_pdl(PDL)
    row = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = y_ptr.dtype.element_ty
    x_row = x_ptr + row * divisible(x_stride, UNIT)
    y_row = y_ptr + row * divisible(y_stride, UNIT)
    if r_ptr is not None:
        r_row = r_ptr + row * divisible(r_stride, UNIT)
        h_row = h_ptr + row * divisible(h_stride, UNIT)
    n = length.to(tl.float32)
    length = divisible(length, UNIT)
    lane = tl.arange(0, BLOCK)
    chunks = tl.cdiv(length, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    mean = 0.0
    if CENTERED:
        means = tl.zeros([BLOCK], tl.float32)
        for chunk in tl.range(0, chunks, loop_unroll_factor=UNROLL):
            col = chunk * BLOCK + lane
            inside = col < length
            x = tl.load(x_row + col, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
            delta = tl.where(inside, x - means, 0.0)
            means = tl.fma(delta, 1.0 / (chunk + 1).to(tl.float32), means)
            squares = tl.fma(delta, x - means, squares)
        held = ((length - lane + BLOCK - 1) // BLOCK).to(tl.float32)
        mean = tl.sum(means * held, axis=0) / n
        means -= mean
        squares = tl.fma(held * means, means, squares)
    else:
        for chunk in tl.range(0, chunks, loop_unroll_factor=UNROLL):
            col = chunk * BLOCK + lane
            inside = col < length
            x = tl.load(x_row + col, mask=inside, other=0.0, eviction_policy="evict_last")
            if r_ptr is not None:
                x = add_rounded(x, tl.load(r_row + col, mask=inside, other=0.0, eviction_policy="evict_last"))
                tl.store(h_row + col, x, mask=inside, eviction_policy="evict_first")
            x = x.to(tl.float32)
            squares = tl.fma(x, x, squares)
    scale = tl.rsqrt(tl.sum(squares, axis=0) / n + eps)
    for step in tl.range(0, chunks, loop_unroll_factor=UNROLL):
        col = (chunks - 1 - step) * BLOCK + lane
        inside = col < length
        x = tl.load(x_row + col, mask=inside, other=0.0)
        if r_ptr is not None:
            x = add_rounded(x, tl.load(r_row + col, mask=inside, other=0.0))
        x = x.to(tl.float32)
        y = scale_and_shift((x - mean) * scale, w_ptr, b_ptr, col, inside, offset, dtype, CAST)
        tl.store(y_row + col, y.to(dtype), mask=inside, eviction_policy="evict_first")


def weight_settings(call: Call) -> tuple[list[tuple[str, Argument]], list[tuple[str, Any]]]:
    """How a weight acts: the argument `offset` where it is not 0, and the constants of the others."""
    offset = call.params.get("weight_offset", 0.0) if call.has("weight") else 0.0
    args: list[tuple[str, Argument]] = [("offset", Scalar("f32", offset))] if offset else []
    cast = call.has("weight") and call.params.get("cast_before_weight", False)
    return args, [*([] if offset else [("offset", None)]), ("CAST", cast)]


def plan_norm(call: Call, centered: bool) -> Plan | Rejected:
    """Plan the forward pass of rms_norm, or of layer_norm when `centered`: x, y [*, N], weight, bias [N]; of
    fused_add_rms_norm where there is a residual: residual, new_residual [*, N]."""
    count, length, _ = rows(call["x"])
    optional = {"w_ptr": "weight", "b_ptr": "bias"}
    present = {arg: name for arg, name in optional.items() if call.has(name)}
    more = {"r": "residual", "h": "new_residual"} if call.has("residual") else {}
    unit = unit_of(call, ["x", "y", *more.values(), *present.values()], ["x", "y", *more.values()], length)
    size = itemsize(call["x"].dtype)
    tile = row_tile(call, length, unit, RESIDENT_BYTES // size, RESIDENT_BYTES_AMD // size)
    if rejected := too_large(count, length, tile):
        return rejected
    aligned = unit > 1
    args = row_args(call, ["x"], aligned)
    args += [(arg, Pointer(name, aligned)) for arg, name in present.items()]
    args += row_args(call, ["y"], aligned)
    for arg, name in more.items():
        args += renamed_row_args(call, arg, name, aligned)
    if not tile.streams:
        args.append(("count", Scalar("i64", count)))
    args += [("length", Scalar("i32", length)), ("eps", Scalar("f32", call.params["eps"]))]
    offset, settings = weight_settings(call)
    args += offset
    constants: list[tuple[str, Any]] = [(arg, None) for arg in optional if arg not in present]
    if not more:
        constants += [(f"{arg}_{what}", None) for arg in "rh" for what in ("ptr", "stride")]
    constants += [*settings, ("CENTERED", centered), ("UNROLL", UNROLL if aligned else 1)]
    function = norm_stream if tile.streams else norm_rows
    return Plan((tile_launch(call, tile, function, args, count, *constants),))
