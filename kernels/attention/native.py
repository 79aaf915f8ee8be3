"""Entries of attention's native implementations; each kernel's plan is in the file of its name."""

from __future__ import annotations

from portable.kernels.attention.backward_plan import plan_backward
from portable.kernels.attention.forward_plan import plan_forward
from portable.plan import Call, Plan, Rejected


def forward(call: Call) -> Plan | Rejected:
    return plan_forward(call)


def backward(call: Call) -> Plan | Rejected:
    return plan_backward(call)
