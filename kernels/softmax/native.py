"""softmax and its gradient as native kernels: a block for a few short rows or for one long row,
or on Hopper a cluster of blocks for a longer one."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._lib.plans.row_plan import (
    MAX_GRID,
    ClusterShapes,
    cluster_class,
    fully_occupied,
    length_argument,
    row_class,
    row_count_argument,
    row_launch,
)
from portable.layout import rows
from portable.plan import Call, Plan, Pointer, Rejected, Scalar

SOURCE = Path(__file__).with_name("softmax.cu")
# Per 16-byte vectors in a row: blocks in a cluster, threads, vectors per lane, blocks per multiprocessor
# (H200, 2026-11-21 and 22; docs/notes/row_ops.md).
FORWARD_CLUSTERS = {
    2048: (1, 512, 4, 3),
    4096: (4, 256, 4, 5),
    8192: (8, 256, 4, 5),
    16384: (8, 256, 8, 4),
    32768: (8, 1024, 4, 2),
    65536: (8, 1024, 8, 1),
}
# The gradient has loads of two tensors in flight: one vector of each per lane is enough in a block's row.
BACKWARD_CLUSTERS = {
    128: (1, 128, 1, 16),
    256: (1, 256, 1, 8),
    512: (1, 512, 1, 4),
    1024: (1, 1024, 1, 2),
    2048: (2, 512, 2, 3),
    4096: (4, 512, 2, 3),
    8192: (8, 512, 2, 3),
    16384: (8, 512, 4, 2),
    32768: (8, 1024, 4, 1),
}


def _plan(
    call: Call, entry: str, names: tuple[str, ...], most_chunks: int, clusters: ClusterShapes
) -> Plan | Rejected:
    views = {name: rows(call[name]) for name in names}
    first = views[names[0]]
    dtype = call[names[0]].dtype
    tensors = [(call[name], view.stride) for name, view in views.items()]
    kind = cluster_class(call.device, dtype, first.length, tensors, clusters)
    if kind is None or first.count > MAX_GRID // kind.cluster:
        kind = row_class(dtype, first.length, tensors, most_chunks=most_chunks)
        if len(names) == 2:  # the gradient holds two tensors
            kind = fully_occupied(kind, call.device)
    if first.count > MAX_GRID * kind.rows_per_block:
        return Rejected(f"{first.count} rows exceed the grid")
    if not kind.resident:
        entry += "_stream"
    args = (
        *((name, Pointer(name, aligned=call[name].alignment >= 16)) for name in names),
        *row_count_argument(kind, first.count),
        length_argument(kind, first.length),
        *((f"{name}_stride", Scalar("i64", view.stride)) for name, view in views.items()),
    )
    kernel = kind.kernel(SOURCE, entry, ("PASS", entry.removeprefix("softmax_").upper()))
    return Plan((row_launch(kernel, kind, first, args),))


def forward(call: Call) -> Plan | Rejected:
    """y from x: one launch."""
    return _plan(call, "softmax_forward", ("x", "y"), most_chunks=8, clusters=FORWARD_CLUSTERS)


def backward(call: Call) -> Plan | Rejected:
    """dx from dy and y: one launch."""
    return _plan(call, "softmax_backward", ("dy", "y", "dx"), most_chunks=4, clusters=BACKWARD_CLUSTERS)
