"""embedding and its gradient in Triton."""

from __future__ import annotations

from portable.kernels._lib.triton.segmented_sum import gather_plan, segmented_sum_plan
from portable.plan import Call, Plan, Rejected


def forward(call: Call) -> Plan | Rejected:
    """y from the rows of weight; NaN where an index is outside them."""
    return gather_plan(call, "input", "weight", "y", float("nan"))


def backward(call: Call) -> Plan | Rejected:
    """dweight, the sums of dy's rows by token; zeros for padding_idx."""
    return segmented_sum_plan(call, "dy", "dweight", left_out=call.params["padding_idx"])
