"""swiglu and its gradient as native kernels."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._lib.plans.elementwise_plan import elementwise_plan
from portable.plan import Call, Plan, Rejected

SOURCE = Path(__file__).with_name("swiglu.cu")


def forward(call: Call) -> Plan | Rejected:
    """y from gate and up: one launch."""
    return elementwise_plan(call, ("gate", "up", "y"), SOURCE, "swiglu_forward", ("PASS", "FORWARD"))


def backward(call: Call) -> Plan | Rejected:
    """dgate and dup from dy, gate and up: one launch."""
    names = ("dy", "gate", "up", "dgate", "dup")
    return elementwise_plan(call, names, SOURCE, "swiglu_backward", ("PASS", "BACKWARD"))
