"""layer_norm and its gradient as native kernels."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._common.norm_plan import Ring, backward_plan, forward_plan
from portable.plan import Call, Plan, Rejected

SOURCE = Path(__file__).with_name("layer_norm.cu")
# Per 16-byte vectors in a row (H200, 2026-11-21; docs/notes/row_ops.md).
CLUSTERS = {4096: (4, 256, 4, 5), 8192: (8, 256, 4, 5), 16384: (8, 512, 4, 3), 32768: (8, 1024, 4, 1)}
RINGS = {
    512: Ring(1, 256, 2, resident=2, stages=3),
    1024: Ring(1, 512, 2, resident=1, stages=3),
    2048: Ring(2, 512, 2, resident=1, stages=4),
    4096: Ring(4, 512, 2, resident=1, stages=4),
    8192: Ring(8, 512, 2, resident=1, stages=4),
}


def forward(call: Call) -> Plan | Rejected:
    """y from x, weight and bias: one launch."""
    return forward_plan(call, "layer_norm", SOURCE, ("weight", "bias"), most_chunks=4, clusters=CLUSTERS)


def backward(call: Call) -> Plan | Rejected:
    """dx, dweight and dbias from dy, x and weight: one launch for dx, then what the others need."""
    return backward_plan(
        call,
        "layer_norm",
        SOURCE,
        ("weight", "bias"),
        statistics=2,
        stages=2,
        most_lanes=512,
        resident=2,
        rings=RINGS,
    )
