"""layer_norm and its gradient in Triton: the shared norm kernels, centred."""

from __future__ import annotations

from portable.kernels._lib.triton.norm import plan_norm
from portable.kernels._lib.triton.norm_backward import plan_norm_backward
from portable.plan import Call, Plan, Rejected


def forward(call: Call) -> Plan | Rejected:
    """Plan y = (x - mean) * rsqrt(var + eps) * weight + bias; x, y [*, N], weight and bias [N] or absent."""
    return plan_norm(call, centered=True)


def backward(call: Call) -> Plan | Rejected:
    """Plan dx, dweight and dbias from dy, x, weight, bias (whose values are not read)."""
    return plan_norm_backward(call, centered=True)
