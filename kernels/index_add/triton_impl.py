"""index_add and the gradient of its source in Triton."""

from __future__ import annotations

from portable.kernels._lib.triton.segmented_sum import gather_plan, segmented_sum_plan
from portable.plan import Call, Plan, Rejected


def forward(call: Call) -> Plan | Rejected:
    """y from input and the sums of source's rows."""
    return segmented_sum_plan(call, "source", "y", "input", alpha=call.params["alpha"])


def backward(call: Call) -> Plan | Rejected:
    """dsource from the rows of dy; zeros where an index is outside them."""
    alpha = call.params["alpha"]
    return gather_plan(call, "index", "dy", "dsource", 0.0, None if alpha == 1.0 else alpha)
