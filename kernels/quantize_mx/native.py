"""The plan of quantize_mx's C++ kernel: quantize_fp8's of groups, with scales of MX."""

from __future__ import annotations

from portable.kernels._lib.minifloat import format_type
from portable.kernels.quantize_fp8.native import plan_groups
from portable.kernels.quantize_mx.reference import FP4, GROUP
from portable.plan import Call, Plan, Rejected, Scalar


def plan(call: Call) -> Plan | Rejected:
    """q and a scale per 32 columns: one launch."""
    return _plan(call, call["q"].dtype)


def fp4(call: Call) -> Plan | Rejected:
    """The same of numbers of 4 bits, two in a byte of q."""
    return _plan(call, FP4)


def _plan(call: Call, dtype: str) -> Plan | Rejected:
    rounding = str(call.params["rounding"]).upper()
    defines = (("FORMAT", format_type(dtype)), ("GROUP_SIZE", GROUP), ("MX_ROUNDING", rounding))
    return plan_groups(call, GROUP, defines, Scalar("f32", 0.0))  # which nothing here is made from
