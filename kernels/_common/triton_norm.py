"""rms_norm and layer_norm forward in Triton: one kernel, CENTERED for layer_norm.

y = (x - mean) * rsqrt(mean((x - mean)^2) + eps) * w + b, where rms_norm takes 0 for mean and b. All in
float32, rounded once. `w_ptr` and `b_ptr` are None where absent.
"""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._common.triton_rows import (
    ITEMSIZE,
    divisible,
    row_args,
    row_starts,
    row_tile,
    too_large,
    unit_of,
)
from portable.layout import rows
from portable.plan import Call, Launch, Plan, Pointer, Rejected, Scalar

RESIDENT_BYTES = 65536  # of one row, in the registers of 1024 threads


@triton.jit
def scale_and_shift(value, w_ptr, b_ptr, col, mask):
    """value * w[col] + b[col], each where present."""
    if w_ptr is not None:
        value *= tl.load(w_ptr + col, mask=mask, other=0.0).to(tl.float32)
    if b_ptr is not None:
        value += tl.load(b_ptr + col, mask=mask, other=0.0).to(tl.float32)
    return value


@triton.jit
def norm_rows(
    x_ptr, x_stride, w_ptr, b_ptr, y_ptr, y_stride, count, length, eps,
    CENTERED: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows of at most BLOCK elements, held in registers."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)[None, :]
    inside = col < divisible(length, UNIT)
    mask = (row < count)[:, None] & inside
    x = tl.load(row_starts(x_ptr, row, x_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    n = length.to(tl.float32)
    if CENTERED:
        x = tl.where(inside, x - tl.sum(x, axis=1, keep_dims=True) / n, 0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / n + eps)
    y = scale_and_shift(x * scale, w_ptr, b_ptr, col, inside)
    tl.store(row_starts(y_ptr, row, y_stride, UNIT) + col, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def norm_stream(
    x_ptr, x_stride, w_ptr, b_ptr, y_ptr, y_stride, length, eps,
    CENTERED: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row of any length, read once for each of mean, sum of squares and result."""
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * divisible(x_stride, UNIT)
    y_row = y_ptr + row * divisible(y_stride, UNIT)
    n = length.to(tl.float32)
    length = divisible(length, UNIT)
    lane = tl.arange(0, BLOCK)
    mean = 0.0
    if CENTERED:
        sums = tl.zeros([BLOCK], tl.float32)
        for start in range(0, length, BLOCK):
            col = start + lane
            sums += tl.load(x_row + col, mask=col < length, other=0.0).to(tl.float32)
        mean = tl.sum(sums, axis=0) / n
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        col = start + lane
        x = tl.load(x_row + col, mask=col < length, other=0.0).to(tl.float32)
        x = tl.where(col < length, x - mean, 0.0)
        squares += x * x
    scale = tl.rsqrt(tl.sum(squares, axis=0) / n + eps)
    for start in range(0, length, BLOCK):
        col = start + lane
        x = tl.load(x_row + col, mask=col < length, other=0.0).to(tl.float32)
        y = scale_and_shift((x - mean) * scale, w_ptr, b_ptr, col, col < length)
        tl.store(y_row + col, y.to(y_ptr.dtype.element_ty), mask=col < length)


def plan_norm(call: Call, centered: bool) -> Plan | Rejected:
    """Plan the forward pass of rms_norm, or of layer_norm when `centered`: x, y [*, N], weight, bias [N]."""
    count, length, _ = rows(call["x"])
    optional = {"w_ptr": "weight", "b_ptr": "bias"}
    present = {arg: name for arg, name in optional.items() if call.has(name)}
    unit = unit_of(call, ["x", "y", *present.values()], ["x", "y"], length)
    tile = row_tile(call.device, length, unit, RESIDENT_BYTES // ITEMSIZE[call["x"].dtype])
    if rejected := too_large(count, length, tile):
        return rejected
    aligned = unit > 1
    args = row_args(call, ["x"], aligned)
    args += [(arg, Pointer(name, aligned)) for arg, name in present.items()]
    args += row_args(call, ["y"], aligned)
    if not tile.streams:
        args.append(("count", Scalar("i64", count)))
    args += [("length", Scalar("i32", length)), ("eps", Scalar("f32", call.params["eps"]))]
    absent = [(arg, None) for arg in optional if arg not in present]
    kernel = tile.kernel(norm_stream if tile.streams else norm_rows, *absent, ("CENTERED", centered))
    return Plan((Launch(kernel, (triton.cdiv(count, tile.rows), 1, 1), tuple(args)),))
