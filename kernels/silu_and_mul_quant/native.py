"""The plans of the C++ kernels: quantize_fp8's rows and groups, of what two rows of x make."""

from __future__ import annotations

from portable.kernels.quantize_fp8.native import GROUP, code_defines, plan_groups, plan_rows
from portable.plan import Call, Plan, Rejected, Scalar

GATED = ("GATED", 1)


def row(call: Call) -> Plan | Rejected:
    """q and scale from x, [*, 2, N]: one launch."""
    return plan_rows(call, (*code_defines(call), GATED), x_rows=2)


def groups(call: Call) -> Plan | Rejected:
    """q and a scale per 128 columns: one launch."""
    return plan_groups(call, GROUP, (*code_defines(call), GATED), Scalar("f32", call.params["eps"]))
