"""linear in Triton: matmul's kernel with bias and activation; and the activation's gradient."""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._common.triton_math import sigmoid_factors, times_gelu_slope, times_gelu_tanh_slope
from portable.kernels._common.triton_rows import element_tile, plan_elementwise, row_starts
from portable.kernels.matmul.problem import from_linear
from portable.kernels.matmul.triton_impl import plan_problem
from portable.plan import Call, Plan, Rejected


@triton.jit
def activation_backward_elements(
    dy_ptr, dy_stride, z_ptr, z_stride, dz_ptr, dz_stride, count, length, chunks,
    ACTIVATION: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dz = dy * activation'(z) for one tile. relu' is 0 at 0 and 1 at NaN, as in torch."""
    WIDE: tl.constexpr = dz_ptr.dtype.element_ty.primitive_bitwidth > 16
    row, col, mask = element_tile(count, length, chunks, UNIT, ROWS, BLOCK)
    dy = tl.load(row_starts(dy_ptr, row, dy_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    z = tl.load(row_starts(z_ptr, row, z_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    if ACTIVATION == "relu":
        dz = tl.where(z <= 0.0, 0.0, dy)
    elif ACTIVATION == "gelu":
        dz = times_gelu_slope(dy, z, WIDE)
    elif ACTIVATION == "gelu_tanh":
        dz = times_gelu_tanh_slope(dy, z, WIDE)
    else:  # silu, z * s with s = sigmoid(z): s * (1 + z * (1 - s))
        left, right, last, complement = sigmoid_factors(z, WIDE)
        dz = (tl.fma(z, complement, 1.0) * left) * (dy * right) * last
    tl.store(row_starts(dz_ptr, row, dz_stride, UNIT) + col, dz.to(dz_ptr.dtype.element_ty), mask=mask)


def plan(call: Call) -> Plan | Rejected:
    """Plan y = activation(x @ weight.T + bias); x [*, K], weight [N, K], bias [N] or absent, y [*, N]."""
    problem = from_linear(call)
    return problem if isinstance(problem, Rejected) else plan_problem(problem, call)


def activation_backward(call: Call) -> Plan | Rejected:
    """Plan dz = dy * activation'(z); all are [*, N] of one dtype."""
    constant = ("ACTIVATION", call.params["activation"])
    return plan_elementwise(call, ("dy", "z", "dz"), activation_backward_elements, constant)
