"""softmax and its gradient as native kernels: one block for a few short rows or for one long row."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._common.row_plan import (
    MAX_GRID,
    length_argument,
    row_class,
    row_count_argument,
    row_launch,
)
from portable.layout import rows
from portable.plan import Call, Plan, Pointer, Rejected, Scalar

SOURCE = Path(__file__).with_name("softmax.cu")


def _plan(call: Call, entry: str, names: tuple[str, ...], most_chunks: int) -> Plan | Rejected:
    views = {name: rows(call[name]) for name in names}
    first = views[names[0]]
    kind = row_class(
        call[names[0]].dtype,
        first.length,
        [(call[name], view.stride) for name, view in views.items()],
        chunks=4,
        most_chunks=most_chunks,
    )
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
    return _plan(call, "softmax_forward", ("x", "y"), most_chunks=8)


def backward(call: Call) -> Plan | Rejected:
    """dx from dy and y: one launch."""
    return _plan(call, "softmax_backward", ("dy", "y", "dx"), most_chunks=4)
