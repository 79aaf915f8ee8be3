"""Both ops in Triton: quantize_fp8's rows and groups, of what two rows of x make."""

from __future__ import annotations

from portable.kernels.quantize_fp8 import triton_impl as quantize_fp8
from portable.plan import Call, Plan, Rejected


def row(call: Call) -> Plan | Rejected:
    """q and scale from x, [*, 2, N]: one launch."""
    return quantize_fp8.plan_rows(call, gated=True)


def groups(call: Call) -> Plan | Rejected:
    """q and a scale per 128 columns: one launch."""
    return quantize_fp8.groups(call, gated=True)
