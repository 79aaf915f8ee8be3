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
    persistent,
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
    if b_ptr is not None:
        b = tl.load(b_ptr + col, mask=mask, other=0.0).to(tl.float32)
    if w_ptr is not None:
        w = tl.load(w_ptr + col, mask=mask, other=0.0).to(tl.float32)
        if b_ptr is not None:
            value = tl.fma(value, w, b)
        else:
            value *= w
    elif b_ptr is not None:
        value += b
    return value


@triton.jit
def norm_tile(x, inside, n, w_ptr, b_ptr, col, eps, CENTERED: tl.constexpr):
    """The norm of each of the rows of x [ROWS, BLOCK]."""
    if CENTERED:
        x = tl.where(inside, x - tl.sum(x, axis=1, keep_dims=True) / n, 0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / n + eps)
    return scale_and_shift(x * scale, w_ptr, b_ptr, col, inside)


@triton.jit
def norm_rows(
    x_ptr, x_stride, w_ptr, b_ptr, y_ptr, y_stride, count, length, eps,
    CENTERED: tl.constexpr, AHEAD: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows of at most BLOCK elements; if AHEAD, every num_programs-th such tile, each loaded while the
    one before it is worked on."""
    dtype = y_ptr.dtype.element_ty
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = first + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)[None, :]
    inside = col < divisible(length, UNIT)
    mask = (row < count)[:, None] & inside
    n = length.to(tl.float32)
    x = tl.load(row_starts(x_ptr, row, x_stride, UNIT) + col, mask=mask, other=0.0)
    if AHEAD:
        step = tl.num_programs(0) * ROWS
        for start in range(first, count, step):
            row = start + tl.arange(0, ROWS)
            mask = (row < count)[:, None] & inside
            after = row + step
            more = (after < count)[:, None] & inside
            following = tl.load(row_starts(x_ptr, after, x_stride, UNIT) + col, mask=more, other=0.0)
            y = norm_tile(x.to(tl.float32), inside, n, w_ptr, b_ptr, col, eps, CENTERED)
            tl.store(row_starts(y_ptr, row, y_stride, UNIT) + col, y.to(dtype), mask=mask)
            x = following
    else:
        y = norm_tile(x.to(tl.float32), inside, n, w_ptr, b_ptr, col, eps, CENTERED)
        tl.store(row_starts(y_ptr, row, y_stride, UNIT) + col, y.to(dtype), mask=mask)


@triton.jit
def norm_step(mean, squares, x, inside, number, CENTERED: tl.constexpr):
    """Each lane's mean and sum of squared distances from it (Welford), with one more x, its `number`-th; where
    not CENTERED the mean is 0."""
    if CENTERED:
        delta = tl.where(inside, x - mean, 0.0)
        mean = tl.fma(delta, 1.0 / number, mean)
        squares = tl.fma(delta, x - mean, squares)
    else:
        squares = tl.fma(x, x, squares)
    return mean, squares


@triton.jit
def norm_mean_and_scale(mean, squares, lane, length, n, eps, CENTERED: tl.constexpr, BLOCK: tl.constexpr):
    """The row's mean and 1 / its deviation, from the lanes' (Chan)."""
    total = 0.0
    if CENTERED:
        held = ((length - lane + BLOCK - 1) // BLOCK).to(tl.float32)
        total = tl.sum(mean * held, axis=0) / n
        mean -= total
        squares = tl.fma(held * mean, mean, squares)
    return total, tl.rsqrt(tl.sum(squares, axis=0) / n + eps)


@triton.jit
def norm_stream(
    x_ptr, x_stride, w_ptr, b_ptr, y_ptr, y_stride, count, length, eps,
    CENTERED: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Every num_programs-th row, of any length.

    One loop reads a row for its statistics and writes the row before it, from the end on, as what was read
    last is nearest.
    """
    x_stride = divisible(x_stride, UNIT)
    n = length.to(tl.float32)
    length = divisible(length, UNIT)
    lane = tl.arange(0, BLOCK)
    chunks = tl.cdiv(length, BLOCK)
    first = tl.program_id(0).to(tl.int64)
    means = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for chunk in tl.range(0, chunks, num_stages=STAGES):
        col = chunk * BLOCK + lane
        x = tl.load(x_ptr + first * x_stride + col, mask=col < length, other=0.0).to(tl.float32)
        means, squares = norm_step(means, squares, x, col < length, (chunk + 1).to(tl.float32), CENTERED)
    mean, scale = norm_mean_and_scale(means, squares, lane, length, n, eps, CENTERED, BLOCK)
    for row in range(first, count, tl.num_programs(0)):
        after = row + tl.num_programs(0)
        limit = divisible(tl.where(after < count, length, 0), UNIT)
        x_row = x_ptr + row * x_stride
        x_after = x_ptr + after * x_stride
        y_row = y_ptr + row * divisible(y_stride, UNIT)
        means = tl.zeros([BLOCK], tl.float32)
        squares = tl.zeros([BLOCK], tl.float32)
        for chunk in tl.range(0, chunks, num_stages=STAGES):
            col = chunk * BLOCK + lane
            x = tl.load(x_after + col, mask=col < limit, other=0.0)
            back = (chunks - 1 - chunk) * BLOCK + lane
            near = tl.load(x_row + back, mask=back < length, other=0.0).to(tl.float32)
            y = scale_and_shift((near - mean) * scale, w_ptr, b_ptr, back, back < length)
            tl.store(y_row + back, y.to(y_ptr.dtype.element_ty), mask=back < length)
            number = (chunk + 1).to(tl.float32)
            means, squares = norm_step(means, squares, x.to(tl.float32), col < length, number, CENTERED)
        mean, scale = norm_mean_and_scale(means, squares, lane, length, n, eps, CENTERED, BLOCK)


def plan_norm(call: Call, centered: bool) -> Plan | Rejected:
    """Plan the forward pass of rms_norm, or of layer_norm when `centered`: x, y [*, N], weight, bias [N]."""
    count, length, _ = rows(call["x"])
    optional = {"w_ptr": "weight", "b_ptr": "bias"}
    present = {arg: name for arg, name in optional.items() if call.has(name)}
    unit = unit_of(call, ["x", "y", *present.values()], ["x", "y"], length)
    tile = row_tile(call, length, unit, RESIDENT_BYTES // ITEMSIZE[call["x"].dtype])
    if rejected := too_large(count, length, tile):
        return rejected
    aligned = unit > 1
    args = row_args(call, ["x"], aligned)
    args += [(arg, Pointer(name, aligned)) for arg, name in present.items()]
    args += row_args(call, ["y"], aligned)
    tile, programs = persistent(call, tile, count)
    args.append(("count", Scalar("i64", count)))
    args += [("length", Scalar("i32", length)), ("eps", Scalar("f32", call.params["eps"]))]
    absent = [(arg, None) for arg in optional if arg not in present]
    kernel = tile.kernel(norm_stream if tile.streams else norm_rows, *absent, ("CENTERED", centered))
    return Plan((Launch(kernel, (programs, 1, 1), tuple(args)),))
