"""The plans of embedding's C++ kernels, gather_rows.cu and segmented_sum.cu."""

from __future__ import annotations

from portable.kernels._lib.plans.segmented_sum_plan import gather_plan, segmented_sum_plan
from portable.plan import Call, Plan, Rejected


def forward(call: Call) -> Plan | Rejected:
    """y from the rows of weight; NaN where an index is outside them."""
    return gather_plan(call, "input", "weight", "y", "(INF_F - INF_F)")


def backward(call: Call) -> Plan | Rejected:
    """dweight, the sums of dy's rows by token; zeros for padding_idx."""
    return segmented_sum_plan(call, "dy", "dweight", left_out=call.params["padding_idx"])
