"""Planning of elementwise kernels over rows (elementwise.h)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from portable.kernels._lib.plans.row_class import (
    MAX_GRID,
    RowClass,
    pointer,
    power_of_two,
    stride_arguments,
    vector_length,
)
from portable.layout import Rows, rows
from portable.plan import Call, Launch, Plan, Rejected, Scalar

THREADS = 256
# Vectors per operand and thread, scalars where nothing is aligned. 16384x4096, swiglu in float32: one
# 1.035 of the copy, two 1.026 (H200, 2026-11-21).
CHUNKS = 1
SCALARS = 4


def elementwise_plan(
    call: Call,
    names: Sequence[str],
    source: Path,
    entry: str,
    defines: Sequence[tuple[str, int | str]] = (),
) -> Plan | Rejected:
    """One launch over tensors of one shape; `names` in the kernel's order. In a spec: `plan: elementwise`.

    A tensor may have several rows of that length where the others have one, as gate and up in one tensor: its
    stride is from one of its own rows to the next.
    """
    views = {name: rows(call[name]) for name in names}
    first = min(views.values(), key=lambda view: view.count)
    dtype = call[names[0]].dtype
    alike = all(view.count == first.count for view in views.values())
    if alike and (first.count == 1 or all(view.stride == view.length for view in views.values())):
        total = first.count * first.length
        views = dict.fromkeys(names, Rows(1, total, total))
        first = views[names[0]]
    kind, across, grid = element_class(call, dtype, views)
    if grid > MAX_GRID:
        return Rejected(f"{grid} blocks exceed the grid")
    args = (
        *(pointer(call, name) for name in names),
        ("rows", Scalar("i64", first.count)),
        ("length", Scalar("i64", first.length)),
        *stride_arguments(views),
        ("across", Scalar("i32", across)),
    )
    kernel = kind.kernel(source, entry, defines)
    return Plan((Launch(kernel, (grid, 1, 1), args),))


def element_class(
    call: Call, dtype: str, views: Mapping[str, Rows], most_chunks: int = CHUNKS
) -> tuple[RowClass, int, int]:
    """The class of an elementwise kernel over these rows, all of one length, of `most_chunks` vectors a lane;
    how many blocks share a row, and how many there are in all."""
    count, length, _ = min(views.values(), key=lambda view: view.count)  # gate and up are two rows of one
    vector = vector_length(
        dtype, [(call[name], view.stride if view.count > 1 else 0) for name, view in views.items()]
    )
    chunks = most_chunks if vector > 1 else SCALARS
    vectors = power_of_two(-(-length // vector))
    lanes = THREADS if count == 1 else min(max(vectors // chunks, 1), THREADS)
    kind = RowClass(dtype, vector, length % vector != 0, THREADS, lanes, chunks, False)
    across = -(-length // (lanes * chunks * vector))
    return kind, across, across * -(-count // kind.rows_per_block)
