"""rms_norm and its gradient as native kernels."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._lib.plans.norm_plan import backward_plan, forward_plan
from portable.kernels._lib.plans.ring_plan import Ring
from portable.plan import Call, Plan, Rejected

SOURCE = Path(__file__).with_name("rms_norm.cu")
# Per 16-byte vectors in a row (H200, 2026-11-21 and 22; docs/notes/row_ops.md).
CLUSTERS = {
    512: (1, 256, 2, 6),
    4096: (4, 256, 4, 5),
    8192: (8, 256, 4, 6),
    16384: (8, 512, 4, 3),
    32768: (8, 512, 8, 2),
    65536: (8, 1024, 8, 1),
}
FORWARD_RINGS = {
    32768: Ring(8, 512, 8, resident=1, slots=26, clusters=15, hold=8),
    65536: Ring(8, 512, 16, resident=1, slots=22, clusters=15, hold=4),
}
GRADIENT_RINGS = {
    512: Ring(1, 256, 2, resident=2, slots=6),
    1024: Ring(1, 512, 2, resident=1, slots=6),
    2048: Ring(2, 256, 4, resident=1, slots=14),
    4096: Ring(4, 512, 2, resident=1, slots=8, clusters=30),
    8192: Ring(8, 512, 2, resident=1, slots=8, clusters=15),
    16384: Ring(8, 512, 4, resident=1, slots=13, clusters=15),
}
WIDE_GRADIENT_RINGS = {**GRADIENT_RINGS, 4096: Ring(4, 512, 2, resident=1, slots=6, clusters=30)}


def forward(call: Call) -> Plan | Rejected:
    """y from x and weight: one launch."""
    return forward_plan(
        call, "rms_norm", SOURCE, ("weight",), most_chunks=8, clusters=CLUSTERS, rings=FORWARD_RINGS
    )


def backward(call: Call) -> Plan | Rejected:
    """dx and dweight from dy, x and weight: one launch for dx, and what dweight needs (norm_plan)."""
    wide = call["x"].dtype == "float32"
    return backward_plan(
        call,
        "rms_norm",
        SOURCE,
        ("weight",),
        statistics=1,
        stages=1,
        most_lanes=1024,
        resident=3,
        rings=WIDE_GRADIENT_RINGS if wide else GRADIENT_RINGS,
    )
