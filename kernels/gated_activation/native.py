"""gated_activation and its gradient as native kernels."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._lib.plans.elementwise_plan import elementwise_plan
from portable.kernels.linear.activation import activation_define
from portable.plan import Call, Plan, Rejected

SOURCE = Path(__file__).with_name("gated_activation.cu")


def forward(call: Call) -> Plan | Rejected:
    """y from x, [*, 2, N]: one launch."""
    defines = (("PASS", "FORWARD"), activation_define(call))
    return elementwise_plan(call, ("x", "y"), SOURCE, "gated_activation_forward", defines)


def backward(call: Call) -> Plan | Rejected:
    """dx from dy and x: one launch."""
    defines = (("PASS", "BACKWARD"), activation_define(call))
    return elementwise_plan(call, ("dy", "x", "dx"), SOURCE, "gated_activation_backward", defines)
