"""Planning of the gradients of rms_norm and layer_norm. In a spec: `plan: norm_gradient`.

One launch whose persistent blocks also sum the parameters' gradients over their rows, or two where a row is
too long for that, and then the sum over the blocks. On Hopper rows go through a ring in shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from portable.kernels._lib.plans.column_sum import column_sum
from portable.kernels._lib.plans.row_class import (
    MAX_GRID,
    RowClass,
    held_chunks,
    length_argument,
    parameter_defines,
    pointer,
    row_class,
    row_count_argument,
    row_launch,
    scalar_arguments,
    stride_arguments,
    vector_length,
)
from portable.kernels._lib.plans.row_tile import row_tile
from portable.layout import Rows, rows
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar, Workspace

COLUMN_THREADS = 128


class _Problem(NamedTuple):
    """A call: the kernel's tensors, those of them that are rows, and the parameters that are there."""

    call: Call
    source: Path
    entry: str
    defines: tuple[tuple[str, int | str], ...]
    names: Sequence[str]
    views: dict[str, Rows]
    present: list[str]
    scalars: Sequence[str]

    @property
    def rows(self) -> Rows:
        return self.views[self.names[0]]

    @property
    def dtype(self) -> str:
        return self.call[self.names[0]].dtype

    @property
    def wide(self) -> bool:
        return any(self.call[name].dtype != self.dtype for name in self.present)

    @property
    def aligned(self) -> list[tuple[Any, int]]:
        found = [(self.call[name], view.stride) for name, view in self.views.items()]
        return found + [(self.call[name], 0) for name in self.present if name in self.names]

    def args(self, kind: RowClass, saved: tuple[str, Argument]) -> tuple[tuple[str, Argument], ...]:
        return (
            *(pointer(self.call, name) for name in self.names),
            saved,
            *row_count_argument(kind, self.rows.count),
            length_argument(kind, self.rows.length),
            *stride_arguments(self.views),
            *scalar_arguments(self.call, self.scalars),
        )

    def column_sum(self, blocks: int) -> tuple[Launch, Workspace]:
        """The launch that adds the blocks' sums of columns, and the workspace that they are in."""
        outputs = [f"d{name}" for name in self.present]
        return column_sum(self.call, "columns", outputs, blocks, self.rows.length)


def norm_gradient_plan(
    call: Call,
    names: Sequence[str],
    source: Path,
    entry: str,
    defines: Sequence[tuple[str, int | str]] = (),
    *,
    parameters: Sequence[str],
    scalars: Sequence[str],
    statistics: int,
    stages: int,
    most_lanes: int,
    resident: int,
    tiles: Sequence[Mapping[str, Any]] = (),
) -> Plan | Rejected:
    """The gradients of a norm's input and of the parameters that are there; `names` are dy, x, weight and dx,
    and perhaps a tensor of rows that is added to dx.

    `statistics` floats per row pass from the rows' kernel to the columns'; up to `most_lanes` lanes per row
    leave registers enough to sum the gradients beside it, and then `resident` blocks of 256 threads with
    `stages` rows each fit a multiprocessor (fewer blocks where weights wider than x want registers).
    """
    views = {name: rows(call[name]) for name in names if name not in parameters}
    present = [name for name in parameters if call.has(name)]
    common = (*parameter_defines(call, call[names[0]].dtype, parameters), *defines)
    problem = _Problem(call, source, entry, common, names, views, present, scalars)
    x, dtype, wide = problem.rows, problem.dtype, problem.wide
    if present and not wide and x.count:
        found = row_tile(tiles, call.device, dtype, x.length, problem.aligned, ring=True)
        if found is not None:
            kind, tile = found
            kernel = tile.ring_kernel(kind.kernel(source, entry, common, "_ring"), tensors=2)
            return _persistent(problem, kernel, kind, min(tile.blocks(call.device), x.count))
    if wide:
        most_lanes = min(most_lanes, 512)
    fused = row_class(
        call.device, dtype, x.length, problem.aligned, most_chunks=2, most_lanes=most_lanes, threads=256
    )
    if present and fused.resident:
        if fused.threads > 256:
            resident = 2 if stages == 1 and fused.threads == 512 and not wide else 1
        elif fused.vector > 1 and (wide or call.device.arch == "sm_100"):
            resident = min(resident, 2)  # a third spills: 8 bytes on sm_100 (compiled 2026-11-21)
        kernel = fused.kernel(source, entry, (*common, ("RESIDENT", resident), ("STAGES", stages)))
        blocks = min(call.device.multiprocessors * resident, -(-x.count // fused.rows_per_block))
        return _persistent(problem, kernel, fused, blocks)
    return _split(problem, statistics)


def _workspace(name: str) -> tuple[str, Argument]:
    """The address of a workspace; allocations are aligned."""
    return name, Pointer(name, aligned=True)


def _persistent(problem: _Problem, kernel: NativeKernel, kind: RowClass, blocks: int) -> Plan:
    """`blocks` persistent blocks, or clusters of them, process the rows."""
    args = (*problem.args(kind, _workspace("columns")), ("blocks", Scalar("i32", blocks)))
    sums, space = problem.column_sum(blocks)
    return Plan((Launch(kernel, (blocks * kind.cluster, 1, 1), args), sums), (space,))


def _split(problem: _Problem, statistics: int) -> Plan | Rejected:
    """One launch over rows, and one over columns for the parameters' gradients."""
    call, x, dtype, views = problem.call, problem.rows, problem.dtype, problem.views
    save = bool(problem.present)
    # Two statistics beside weights wider than x leave no registers for rows of 1024 lanes.
    most_lanes = 512 if statistics > 1 and problem.wide else 1024
    # Four sums beside eight vectors of two rows spill (138 registers on gfx942; compiled 2026-11-23).
    held = 2 if problem.wide else held_chunks(call.device, dtype, 2 * statistics, otherwise=2)
    kind = row_class(
        call.device, dtype, x.length, problem.aligned, most_chunks=held, streamed=2, most_lanes=most_lanes
    )
    if x.count > MAX_GRID * kind.rows_per_block:
        return Rejected(f"{x.count} rows exceed the grid")
    variant = "_rows" if kind.resident else "_stream"
    kernel = kind.kernel(problem.source, problem.entry, (*problem.defines, ("SAVE", int(save))), variant)
    saved = _workspace("saved") if save else ("saved", Scalar("i64", 0))
    rows_launch = row_launch(kernel, kind, x, problem.args(kind, saved))
    if not save:
        return Plan((rows_launch,))

    read = {name: views[name] for name in problem.names[:2]}  # dy and x
    vector = vector_length(dtype, [(call[name], view.stride) for name, view in read.items()])
    across = -(-x.length // (COLUMN_THREADS * vector))
    # Eight blocks of columns per multiprocessor: enough loads in flight, few partial sums.
    down = min(max(8 * call.device.multiprocessors // across, 1), x.count, 65535)
    columns = RowClass(dtype, vector, x.length % vector != 0, COLUMN_THREADS, COLUMN_THREADS, 1, False)
    column_kernel = columns.kernel(problem.source, problem.entry, problem.defines, "_columns")
    column_args = (
        *(pointer(call, name) for name in read),
        _workspace("saved"),
        _workspace("columns"),
        ("rows", Scalar("i64", x.count)),
        ("length", Scalar("i64", x.length)),
        *stride_arguments(read),
        ("blocks", Scalar("i32", down)),
    )
    sums, space = problem.column_sum(down)
    return Plan(
        (rows_launch, Launch(column_kernel, (across, down, 1), column_args), sums),
        (space, Workspace("saved", (x.count, statistics), "float32")),
    )
