"""The plan of quantize_mx's C++ kernel: quantize_fp8's of groups, with scales of MX."""

from __future__ import annotations

from portable.kernels._lib.minifloat import format_type
from portable.kernels.quantize_fp8.native import plan_groups
from portable.kernels.quantize_mx.reference import GROUP
from portable.plan import Call, Plan, Rejected


def plan(call: Call) -> Plan | Rejected:
    """q and a scale per 32 columns: one launch."""
    rounding = str(call.params["rounding"]).upper()
    defines = (("FORMAT", format_type(call["q"].dtype)), ("GROUP_SIZE", GROUP), ("MX_ROUNDING", rounding))
    return plan_groups(call, GROUP, defines)
