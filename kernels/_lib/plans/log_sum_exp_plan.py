"""Planning of kernels that read rows of logits once (log_sum_exp.h), and of their elementwise gradients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from portable.kernels._lib.plans.elementwise_plan import element_class
from portable.kernels._lib.plans.row_class import (
    AMD,
    MAX_GRID,
    pointer,
    row_class,
    row_launch,
    stride_arguments,
)
from portable.layout import rows
from portable.plan import Argument, Call, Launch, Plan, Rejected, Scalar

CHUNKS = 4
CHUNKS_ON_AMD = 8
"""Vectors of a lane, which takes as many where a row has them: what lanes merge costs the vector pipe as much
as ten elements (modelled, gfx950, cross_entropy 8192x32000 in bfloat16: four 98 us, eight 80; 2026-11-26)."""
LONGEST = 2**30
Arguments = Sequence[tuple[str, Argument]]


def scan_plan(
    call: Call, names: Sequence[str], source: Path, entry: str, defines: Sequence[tuple[str, int | str]],
    numbers: Arguments,
) -> Plan | Rejected:  # fmt: skip
    """One launch; `names` are the kernel's tensors, the logits first and then what has an element per row,
    `numbers` its last arguments. ONE_TILE says that the lanes hold a row."""
    logits = call[names[0]]
    view = rows(logits)
    tensors = [(logits, view.stride)]
    aimed, most = (CHUNKS_ON_AMD,) * 2 if call.device.vendor == AMD else (2, CHUNKS)
    kind = row_class(
        call.device, logits.dtype, view.length, tensors, most_chunks=most, streamed=CHUNKS, aimed=aimed
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
    kernel = kind.kernel(source, entry, (*defines, ("ONE_TILE", int(kind.resident))))
    return Plan((row_launch(kernel, kind, view, args),))


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
