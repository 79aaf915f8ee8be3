"""activation in Triton, elementwise."""

from __future__ import annotations

import triton
import triton.language as tl

from portable.dtypes import itemsize
from portable.kernels._lib.plans.row_class import AMD
from portable.kernels._lib.triton.activations import activate
from portable.kernels._lib.triton.pdl import enter_pdl
from portable.kernels._lib.triton.rows import UNFUSED, element_tile, plan_elementwise, row_starts
from portable.plan import Call, Plan, Rejected

ELEMENTS = 16
"""Of a thread on NVIDIA's GPUs, whose instructions bound the kernel: where they are is worked out once for
all of them. Measured: docs/notes/activations.md."""


@triton.jit
def activation_elements(
    x_ptr, x_stride, y_ptr, y_stride, count, length, chunks,
    PDL: tl.constexpr, ACTIVATION: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = activation(x) for one tile."""
    enter_pdl(PDL)
    WIDE: tl.constexpr = y_ptr.dtype.element_ty.primitive_bitwidth > 16
    row, col, mask = element_tile(count, length, chunks, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    x = tl.load(row_starts(x_ptr, row, x_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    y = activate(x, ACTIVATION, WIDE)
    tl.store(row_starts(y_ptr, row, y_stride, UNIT) + col, y.to(y_ptr.dtype.element_ty), mask=mask)


def forward(call: Call) -> Plan | Rejected:
    """Plan y = activation(x); both are [*, N] of one dtype."""
    constant = ("ACTIVATION", call.params["activation"])
    accesses = 1 if call.device.vendor == AMD else ELEMENTS * itemsize(call["x"].dtype) // 16
    return plan_elementwise(
        call, ("x", "y"), activation_elements, constant, options=UNFUSED, accesses=accesses
    )
