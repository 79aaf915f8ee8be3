"""rms_norm and its gradient as native kernels."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._common.norm_plan import backward_plan, forward_plan
from portable.plan import Call, Plan, Rejected

SOURCE = Path(__file__).with_name("rms_norm.cu")


def forward(call: Call) -> Plan | Rejected:
    """y from x and weight: one launch."""
    return forward_plan(call, "rms_norm", SOURCE, ("weight",), most_chunks=8)


def backward(call: Call) -> Plan | Rejected:
    """dx and dweight from dy, x and weight: one launch for dx, and what dweight needs (norm_plan)."""
    return backward_plan(call, "rms_norm", SOURCE, ("weight",), statistics=1, most_lanes=1024, resident=3)
