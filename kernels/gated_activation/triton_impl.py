"""gated_activation and its gradient in Triton, elementwise."""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.triton.activations import activate, times_slope
from portable.kernels._lib.triton.pdl import enter_pdl
from portable.kernels._lib.triton.rows import UNFUSED, element_tile, plan_elementwise, row_starts
from portable.plan import Call, Plan, Rejected


@triton.jit
def gated_activation_elements(
    x_ptr, x_stride, y_ptr, y_stride, count, length, chunks,
    PDL: tl.constexpr, ACTIVATION: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = activation(gate) * up for one tile; gate and up are two neighbouring rows of x."""
    enter_pdl(PDL)
    WIDE: tl.constexpr = y_ptr.dtype.element_ty.primitive_bitwidth > 16
    row, col, mask = element_tile(count, length, chunks, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    gate = tl.load(row_starts(x_ptr, 2 * row, x_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(row_starts(x_ptr, 2 * row + 1, x_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    y = activate(gate, ACTIVATION, WIDE) * up
    tl.store(row_starts(y_ptr, row, y_stride, UNIT) + col, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gated_activation_backward_elements(
    dy_ptr, dy_stride, x_ptr, x_stride, dx_ptr, dx_stride, count, length, chunks,
    PDL: tl.constexpr, ACTIVATION: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dgate = dy * activation'(gate) * up and dup = dy * activation(gate), two neighbouring rows of dx."""
    enter_pdl(PDL)
    WIDE: tl.constexpr = dx_ptr.dtype.element_ty.primitive_bitwidth > 16
    row, col, mask = element_tile(count, length, chunks, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    dy = tl.load(row_starts(dy_ptr, row, dy_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(row_starts(x_ptr, 2 * row, x_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(row_starts(x_ptr, 2 * row + 1, x_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    dgate = times_slope(dy, gate, ACTIVATION, WIDE) * up
    dup = dy * activate(gate, ACTIVATION, WIDE)
    dtype = dx_ptr.dtype.element_ty
    tl.store(row_starts(dx_ptr, 2 * row, dx_stride, UNIT) + col, dgate.to(dtype), mask=mask)
    tl.store(row_starts(dx_ptr, 2 * row + 1, dx_stride, UNIT) + col, dup.to(dtype), mask=mask)


def forward(call: Call) -> Plan | Rejected:
    """Plan y, [*, N], from x, [*, 2, N], both of one dtype."""
    constant = ("ACTIVATION", call.params["activation"])
    return plan_elementwise(call, ("x", "y"), gated_activation_elements, constant, options=UNFUSED)


def backward(call: Call) -> Plan | Rejected:
    """Plan dx, [*, 2, N], from dy and x."""
    constant = ("ACTIVATION", call.params["activation"])
    names = ("dy", "x", "dx")
    return plan_elementwise(call, names, gated_activation_backward_elements, constant, options=UNFUSED)
