"""softmax, log_softmax (LOG) and their gradients in Triton: one tile per program while a row fits in
registers, else loops."""

from __future__ import annotations

import triton
import triton.language as tl

from portable.dtypes import itemsize
from portable.kernels._lib.triton.math import exp_nonpositive
from portable.kernels._lib.triton.pdl import enter_pdl
from portable.kernels._lib.triton.rows import divisible, plan_rows, row_starts
from portable.plan import Call, Plan, Rejected

# Of one row, in the registers of 1024 threads; the gradient holds two tensors.
FORWARD_RESIDENT_BYTES = 65536
BACKWARD_RESIDENT = 16384
# Elements, on AMD GPUs: 120 of 128 registers on gfx942; 65536 of a gradient spill 28 (compiled 2026-11-23),
# of log_softmax 76 (2026-11-26).
FORWARD_RESIDENT_AMD = 65536
LOG_RESIDENT_AMD = 32768
BACKWARD_RESIDENT_AMD = 32768


@triton.jit
def softmax_tile(x, WIDE: tl.constexpr, LOG: tl.constexpr):
    """softmax of each of the rows of x [ROWS, BLOCK], or its logarithm."""
    if LOG:
        below = x - tl.max(x, axis=1, keep_dims=True)
        y = below - tl.log(tl.sum(exp_nonpositive(below), axis=1, keep_dims=True))
    else:
        power = exp_nonpositive(x - tl.max(x, axis=1, keep_dims=True), WIDE)
        y = power * (1.0 / tl.sum(power, axis=1, keep_dims=True))
    return y


@triton.jit
def softmax_rows(
    x_ptr, x_stride, y_ptr, y_stride, count, length,
    PDL: tl.constexpr, LOG: tl.constexpr, AHEAD: tl.constexpr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = softmax(x) for ROWS rows of at most BLOCK elements; if AHEAD, for every num_programs-th such tile,
    each loaded while the one before it is worked on."""
    enter_pdl(PDL)
    WIDE: tl.constexpr = y_ptr.dtype.element_ty.primitive_bitwidth > 16
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = first + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)[None, :]
    inside = col < divisible(length, UNIT)
    mask = (row < count)[:, None] & inside
    x = tl.load(row_starts(x_ptr, row, x_stride, UNIT) + col, mask=mask, other=-float("inf"))
    if AHEAD:
        step = tl.num_programs(0) * ROWS
        for start in range(first, count, step):
            row = start + tl.arange(0, ROWS)
            mask = (row < count)[:, None] & inside
            after = row + step
            more = (after < count)[:, None] & inside
            start_after = row_starts(x_ptr, after, x_stride, UNIT)
            following = tl.load(start_after + col, mask=more, other=-float("inf"))
            y = softmax_tile(x.to(tl.float32), WIDE, LOG)
            tl.store(row_starts(y_ptr, row, y_stride, UNIT) + col, y.to(y_ptr.dtype.element_ty), mask=mask)
            x = following
    else:
        y = softmax_tile(x.to(tl.float32), WIDE, LOG)
        tl.store(row_starts(y_ptr, row, y_stride, UNIT) + col, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def softmax_stream(
    x_ptr, x_stride, y_ptr, y_stride, length,
    PDL: tl.constexpr, LOG: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = softmax(x) for one row of any length.

    One pass keeps each lane's own maximum and sum; the other goes backwards, as what was read last is
    nearest.
    """
    enter_pdl(PDL)
    WIDE: tl.constexpr = LOG or y_ptr.dtype.element_ty.primitive_bitwidth > 16
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * divisible(x_stride, UNIT)
    y_row = y_ptr + row * divisible(y_stride, UNIT)
    length = divisible(length, UNIT)
    lane = tl.arange(0, BLOCK)
    # The lowest finite number: from -inf on, a row that begins with -inf would give -inf - -inf.
    highest = tl.full([BLOCK], -3.4028234663852886e38, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        col = start + lane
        x = tl.load(x_row + col, mask=col < length, other=-float("inf")).to(tl.float32)
        distance = x - highest
        power = exp_nonpositive(-tl.abs(distance), WIDE)
        total = tl.where(distance > 0.0, tl.fma(total, power, 1.0), total + power)
        highest = tl.maximum(highest, x)
    shift = tl.max(highest, axis=0)
    sums = tl.sum(total * exp_nonpositive(highest - shift, WIDE), axis=0)
    scale = tl.log(sums) if LOG else 1.0 / sums
    for start in range(0, length, BLOCK):
        col = (tl.cdiv(length, BLOCK) * BLOCK - BLOCK - start) + lane
        x = tl.load(x_row + col, mask=col < length, other=0.0).to(tl.float32)
        y = (x - shift) - scale if LOG else exp_nonpositive(x - shift, WIDE) * scale
        tl.store(y_row + col, y.to(y_ptr.dtype.element_ty), mask=col < length)


@triton.jit
def gradient(dy, y, total, LOG: tl.constexpr):
    """dx y * (dy - sum(dy * y)), or dy - exp(y) * sum(dy) for the logarithm y."""
    return dy - exp_nonpositive(y) * total if LOG else y * (dy - total)


@triton.jit
def softmax_backward_rows(
    dy_ptr, dy_stride, y_ptr, y_stride, dx_ptr, dx_stride, count, length,
    PDL: tl.constexpr, LOG: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`gradient` for ROWS rows of at most BLOCK elements."""
    enter_pdl(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)[None, :]
    mask = (row < count)[:, None] & (col < divisible(length, UNIT))
    dy = tl.load(row_starts(dy_ptr, row, dy_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(row_starts(y_ptr, row, y_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    dx = gradient(dy, y, tl.sum(dy if LOG else dy * y, axis=1, keep_dims=True), LOG)
    tl.store(row_starts(dx_ptr, row, dx_stride, UNIT) + col, dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit
def softmax_backward_stream(
    dy_ptr, dy_stride, y_ptr, y_stride, dx_ptr, dx_stride, length,
    PDL: tl.constexpr, LOG: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`gradient` for one row of any length; the second pass goes backwards."""
    enter_pdl(PDL)
    row = tl.program_id(0).to(tl.int64)
    dy_row = dy_ptr + row * divisible(dy_stride, UNIT)
    y_row = y_ptr + row * divisible(y_stride, UNIT)
    dx_row = dx_ptr + row * divisible(dx_stride, UNIT)
    length = divisible(length, UNIT)
    lane = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        col = start + lane
        dy = tl.load(dy_row + col, mask=col < length, other=0.0).to(tl.float32)
        y = tl.load(y_row + col, mask=col < length, other=0.0).to(tl.float32)
        sums = sums + dy if LOG else tl.fma(dy, y, sums)
    total = tl.sum(sums, axis=0)
    for start in range(0, length, BLOCK):
        col = (tl.cdiv(length, BLOCK) * BLOCK - BLOCK - start) + lane
        dy = tl.load(dy_row + col, mask=col < length, other=0.0).to(tl.float32)
        y = tl.load(y_row + col, mask=col < length, other=0.0).to(tl.float32)
        dx = gradient(dy, y, total, LOG)
        tl.store(dx_row + col, dx.to(dx_ptr.dtype.element_ty), mask=col < length)


def forward(call: Call, log: bool = False) -> Plan | Rejected:
    """Plan y = softmax(x), or its logarithm, over rows; x and y are [*, N] of one dtype."""
    resident = FORWARD_RESIDENT_BYTES // itemsize(call["x"].dtype)
    kernels = softmax_rows, softmax_stream
    on_amd = LOG_RESIDENT_AMD if log else FORWARD_RESIDENT_AMD
    return plan_rows(call, ("x", "y"), *kernels, resident, on_amd, ("LOG", log))


def backward(call: Call, log: bool = False) -> Plan | Rejected:
    """Plan the gradient over rows; all are [*, N] of one dtype."""
    names = ("dy", "y", "dx")
    kernels = softmax_backward_rows, softmax_backward_stream
    return plan_rows(call, names, *kernels, BACKWARD_RESIDENT, BACKWARD_RESIDENT_AMD, ("LOG", log))
