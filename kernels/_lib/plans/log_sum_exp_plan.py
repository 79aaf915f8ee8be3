"""Planning of kernels that read rows of logits once (log_sum_exp.h), and of their elementwise gradients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from portable.kernels._lib.plans.elementwise_plan import element_class
from portable.kernels._lib.plans.row_class import (
    MAX_GRID,
    pointer,
    row_class,
    row_launch,
    stride_arguments,
)
from portable.layout import rows
from portable.plan import Argument, Call, Launch, Plan, Rejected, Scalar

CHUNKS = 4
LONGEST = 2**30
Arguments = Sequence[tuple[str, Argument]]


def scan_plan(
    call: Call, names: Sequence[str], source: Path, entry: str, defines: Sequence[tuple[str, int | str]],
    numbers: Arguments,
) -> Plan | Rejected:  # fmt: skip
    """One launch; `names` are the kernel's tensors, the logits first and then what has an element per row,
    `numbers` its last arguments."""
    logits = call[names[0]]
    view = rows(logits)
    kind = row_class(
        call.device, logits.dtype, view.length, [(logits, view.stride)], most_chunks=CHUNKS, streamed=CHUNKS
    )
    if view.count > MAX_GRID * kind.rows_per_block or view.length > LONGEST:
        return Rejected(f"{view.count} rows of {view.length} elements exceed the grid")
    args = (
        *(pointer(call, name) for name in names),
        ("rows", Scalar("i64", view.count)),
        ("length", Scalar("i32", view.length)),
        *stride_arguments({names[0]: view}),
        *numbers,
    )
    return Plan((row_launch(kind.kernel(source, entry, defines), kind, view, args),))


def gradient_plan(
    call: Call, names: Sequence[str], source: Path, entry: str, defines: Sequence[tuple[str, int | str]],
    numbers: Arguments,
) -> Plan | Rejected:  # fmt: skip
    """One launch; of `names` the logits and the last one, their gradient, are rows."""
    views = {name: rows(call[name]) for name in ("logits", names[-1])}
    first = views["logits"]
    kind, across, grid = element_class(call, call["logits"].dtype, views)
    if grid > MAX_GRID or first.length > LONGEST:
        return Rejected(f"{first.count} rows of {first.length} elements exceed the grid")
    args = (
        *(pointer(call, name) for name in names),
        ("rows", Scalar("i64", first.count)),
        ("length", Scalar("i64", first.length)),
        *stride_arguments(views),
        ("across", Scalar("i32", across)),
        *numbers,
    )
    return Plan((Launch(kind.kernel(source, entry, defines), (grid, 1, 1), args),))
