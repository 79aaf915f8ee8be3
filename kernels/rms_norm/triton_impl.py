"""rms_norm and its gradient in Triton: the shared norm kernels, not centred."""

from __future__ import annotations

from portable.kernels._lib.triton.norm import plan_norm
from portable.kernels._lib.triton.norm_backward import plan_norm_backward
from portable.plan import Call, Plan, Rejected


def forward(call: Call) -> Plan | Rejected:
    """Plan y = x * rsqrt(mean(x^2) + eps) * weight; x, y [*, N] of one dtype, weight [N] or absent."""
    return plan_norm(call, centered=False)


def backward(call: Call) -> Plan | Rejected:
    """Plan dx and dweight from dy, x, weight."""
    return plan_norm_backward(call, centered=False)
