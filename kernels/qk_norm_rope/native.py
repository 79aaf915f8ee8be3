"""Plans of qk_norm_rope's C++ kernel, which are rope's."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._lib.plans.row_class import pointer
from portable.kernels.rope.native import plan_heads, vector_of
from portable.layout import ceil_div
from portable.plan import Call, Plan, Rejected, Scalar

SOURCE = Path(__file__).with_name("qk_norm_rope.cu")
NAMES = ("q", "k", "q_rotated", "k_rotated")


def forward(call: Call) -> Plan | Rejected:
    """Plan q_rotated and k_rotated, where the lanes of one warp hold a head."""
    lanes = ceil_div(call.axes["C"], vector_of(call, NAMES, ("q_weight", "k_weight")))
    if lanes > call.device.warp_size:
        return Rejected(f"a head takes {lanes} lanes; a warp has {call.device.warp_size}")
    more = (
        pointer(call, "q_weight"),
        pointer(call, "k_weight"),
        ("eps", Scalar("f32", call.params["eps"])),
    )
    return plan_heads(call, NAMES, SOURCE, "qk_norm_rope", more)
