"""layer_norm and its gradient as native kernels."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._lib.plans.norm_plan import backward_plan, forward_plan
from portable.kernels._lib.plans.ring_plan import Ring
from portable.plan import Call, Plan, Rejected

SOURCE = Path(__file__).with_name("layer_norm.cu")
# Per 16-byte vectors in a row (H200, 2026-11-21 and 22; docs/notes/row_ops.md).
CLUSTERS = {4096: (4, 256, 4, 5), 8192: (8, 256, 4, 5), 16384: (8, 512, 4, 3), 32768: (8, 1024, 4, 1)}
FORWARD_RINGS = {
    4096: Ring(2, 512, 4, resident=1, slots=12, hold=8),
    8192: Ring(4, 512, 4, resident=1, slots=22, clusters=30, hold=8),
    16384: Ring(8, 512, 4, resident=1, slots=20, clusters=15, hold=8),
    32768: Ring(8, 512, 8, resident=1, slots=24, clusters=15, hold=14),
}
# Of float32 rows. 16384 columns: a block of 512 threads 0.96 of the copy, a cluster of 4 x 256 0.90. Of
# 262144 columns no block can hold its weights: 24 slots leave L1 60 KB to bring them through (0.86 of the
# copy), 27 slots 28 KB (0.68).
WIDE_CLUSTERS = {**CLUSTERS, 4096: (1, 512, 8, 2)}
WIDE_FORWARD_RINGS = {
    8192: Ring(4, 512, 4, resident=1, slots=24, clusters=30, hold=8),
    16384: Ring(8, 512, 4, resident=1, slots=12, clusters=15, hold=8),
    32768: Ring(8, 512, 8, resident=1, slots=24, clusters=15, hold=14),
    65536: Ring(8, 512, 16, resident=1, slots=24, clusters=15, hold=0),
}
GRADIENT_RINGS = {
    512: Ring(1, 256, 2, resident=2, slots=8),
    1024: Ring(1, 512, 2, resident=1, slots=8),
    2048: Ring(2, 512, 2, resident=1, slots=8),
    4096: Ring(4, 512, 2, resident=1, slots=8, clusters=30),
    8192: Ring(8, 512, 2, resident=1, slots=8, clusters=15),
}
# In float32 the sums over rows need half the registers of as many vectors of 16 bits.
WIDE_GRADIENT_RINGS = {
    **GRADIENT_RINGS,
    512: Ring(1, 256, 2, resident=2, slots=6),
    1024: Ring(1, 512, 2, resident=1, slots=6),
    16384: Ring(8, 512, 4, resident=1, slots=13, clusters=15),
}


def forward(call: Call) -> Plan | Rejected:
    """y from x, weight and bias: one launch."""
    wide = call["x"].dtype == "float32"
    return forward_plan(
        call,
        "layer_norm",
        SOURCE,
        ("weight", "bias"),
        most_chunks=4,
        clusters=WIDE_CLUSTERS if wide else CLUSTERS,
        rings=WIDE_FORWARD_RINGS if wide else FORWARD_RINGS,
    )


def backward(call: Call) -> Plan | Rejected:
    """dx, dweight and dbias from dy, x and weight: one launch for dx, then what the others need."""
    wide = call["x"].dtype == "float32"
    return backward_plan(
        call,
        "layer_norm",
        SOURCE,
        ("weight", "bias"),
        statistics=2,
        stages=2,
        most_lanes=512,
        resident=2,
        rings=WIDE_GRADIENT_RINGS if wide else GRADIENT_RINGS,
    )
