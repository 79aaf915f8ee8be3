"""activation as a native kernel."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._lib.plans.elementwise_plan import elementwise_plan
from portable.kernels.linear.activation import activation_define
from portable.plan import Call, Plan, Rejected

SOURCE = Path(__file__).with_name("activation.cu")


def forward(call: Call) -> Plan | Rejected:
    """y from x: one launch."""
    return elementwise_plan(call, ("x", "y"), SOURCE, "activation_forward", (activation_define(call),))
