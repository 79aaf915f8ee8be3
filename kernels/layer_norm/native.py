"""layer_norm and its gradient as native kernels."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._common.norm_plan import backward_plan, forward_plan
from portable.plan import Call, Plan, Rejected

SOURCE = Path(__file__).with_name("layer_norm.cu")


def forward(call: Call) -> Plan | Rejected:
    """y from x, weight and bias: one launch."""
    return forward_plan(call, "layer_norm", SOURCE, ("weight", "bias"), most_chunks=4)


def backward(call: Call) -> Plan | Rejected:
    """dx, dweight and dbias from dy, x and weight: one launch for dx, then what the others need."""
    return backward_plan(
        call, "layer_norm", SOURCE, ("weight", "bias"), statistics=2, most_lanes=512, resident=2
    )
