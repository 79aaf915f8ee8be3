"""The plan of quantize_nvfp4's C++ kernel: quantize_fp8's of groups, with scales of NVFP4."""

from __future__ import annotations

from portable.kernels._lib.minifloat import format_type
from portable.kernels.quantize_fp8.native import plan_groups
from portable.kernels.quantize_nvfp4.reference import FP4, GROUP, OF_SCALES
from portable.plan import Call, Plan, Pointer, Rejected


def plan(call: Call) -> Plan | Rejected:
    """q and a scale per 16 columns: one launch."""
    defines = (
        ("FORMAT", format_type(FP4)),
        ("GROUP_SIZE", GROUP),
        ("SCALE_FORMAT", format_type(OF_SCALES)),
    )
    return plan_groups(call, GROUP, defines, Pointer("global_scale"))
