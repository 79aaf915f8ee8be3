"""mean in Triton: one pass over rows of any length."""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.triton.log_sum_exp import scan_plan
from portable.kernels._lib.triton.pdl import enter_pdl
from portable.kernels._lib.triton.rows import divisible, row_starts
from portable.plan import Call, Plan, Rejected


@triton.jit
def mean_rows(
    x_ptr, y_ptr, x_stride, count, length,
    PDL: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The means of ROWS rows. Every lane adds up its own columns; the order of a row's additions follows from
    its length and alignment alone."""
    enter_pdl(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < count
    n = length.to(tl.float32)
    starts = row_starts(x_ptr, row, x_stride, UNIT)
    length = divisible(length, UNIT)
    lane = tl.arange(0, BLOCK)[None, :]
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        col = start + lane
        sums += tl.load(starts + col, mask=there[:, None] & (col < length), other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(sums, axis=1), n)
    tl.store(y_ptr + row, mean.to(y_ptr.dtype.element_ty), mask=there)


def forward(call: Call) -> Plan | Rejected:
    """Plan y, the means of the rows of x."""
    return scan_plan(call, ("x", "y"), mean_rows, ())
