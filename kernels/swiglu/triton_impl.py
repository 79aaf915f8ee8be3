"""swiglu and its gradient in Triton, elementwise."""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.triton.math import sigmoid_factors
from portable.kernels._lib.triton.pdl import enter_pdl
from portable.kernels._lib.triton.rows import element_tile, plan_elementwise, row_starts
from portable.plan import Call, Plan, Rejected


@triton.jit
def swiglu_elements(
    gate_ptr, gate_stride, up_ptr, up_stride, y_ptr, y_stride, count, length, chunks,
    PDL: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = silu(gate) * up for one tile."""
    enter_pdl(PDL)
    row, col, mask = element_tile(count, length, chunks, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    gate = tl.load(row_starts(gate_ptr, row, gate_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(row_starts(up_ptr, row, up_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    WIDE: tl.constexpr = y_ptr.dtype.element_ty.primitive_bitwidth > 16
    left, right, last, _ = sigmoid_factors(gate, WIDE)
    y = (gate * left) * (up * right) * last
    tl.store(row_starts(y_ptr, row, y_stride, UNIT) + col, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def swiglu_backward_elements(
    dy_ptr, dy_stride, gate_ptr, gate_stride, up_ptr, up_stride,
    dgate_ptr, dgate_stride, dup_ptr, dup_stride, count, length, chunks,
    PDL: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """With s = sigmoid(gate): dgate = dy * up * s * (1 + gate * (1 - s)) and dup = dy * gate * s."""
    enter_pdl(PDL)
    row, col, mask = element_tile(count, length, chunks, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    dy = tl.load(row_starts(dy_ptr, row, dy_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(row_starts(gate_ptr, row, gate_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(row_starts(up_ptr, row, up_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    WIDE: tl.constexpr = dup_ptr.dtype.element_ty.primitive_bitwidth > 16
    left, right, last, complement = sigmoid_factors(gate, WIDE)
    dy *= right
    dup = (gate * left) * dy * last
    dgate = (up * tl.fma(gate, complement, 1.0) * left) * dy * last
    dtype = dup_ptr.dtype.element_ty
    tl.store(row_starts(dgate_ptr, row, dgate_stride, UNIT) + col, dgate.to(dtype), mask=mask)
    tl.store(row_starts(dup_ptr, row, dup_stride, UNIT) + col, dup.to(dtype), mask=mask)


def forward(call: Call) -> Plan | Rejected:
    """Plan y = silu(gate) * up; all are [*, N] of one dtype."""
    return plan_elementwise(call, ("gate", "up", "y"), swiglu_elements)


def backward(call: Call) -> Plan | Rejected:
    """Plan dgate and dup from dy, gate and up; all are [*, N] of one dtype."""
    return plan_elementwise(call, ("dy", "gate", "up", "dgate", "dup"), swiglu_backward_elements)
