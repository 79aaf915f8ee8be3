"""qk_norm_rope in Triton: rope's kernel, with weights."""

from __future__ import annotations

from portable.kernels.rope.triton_impl import plan_heads
from portable.plan import Call, Plan, Rejected


def forward(call: Call) -> Plan | Rejected:
    """Plan q_rotated and k_rotated."""
    return plan_heads(call, ("q", "k", "q_rotated", "k_rotated"))
