"""Planning that rms_norm and layer_norm share.

Forward is one launch. Backward is one whose persistent blocks also sum the parameters' gradients over
their rows, or two where a row is too long for that, and then the sum over the blocks. On Hopper clusters of
blocks share long rows, and the gradient's rows go through a ring in shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from portable import dtypes
from portable.kernels._lib.plans.ring_plan import Ring, ring_class, ring_kernel
from portable.kernels._lib.plans.row_plan import (
    MAX_GRID,
    ClusterShapes,
    RowClass,
    cluster_class,
    fully_occupied,
    length_argument,
    row_class,
    row_count_argument,
    row_launch,
    vector_length,
)
from portable.layout import Rows, rows
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar, Workspace

COLUMN_SUM = Path(__file__).resolve().parents[1] / "rows/column_sum.cu"
SUM_WIDTH, SUM_GROUPS = 32, 32
COLUMN_THREADS = 128


def pointer(call: Call, name: str) -> tuple[str, Argument]:
    """The tensor's address, or null where it is absent."""
    if not call.has(name):
        return name, Scalar("i64", 0)
    return name, Pointer(name, aligned=call[name].alignment >= 16)


def workspace(name: str) -> tuple[str, Argument]:
    """The address of a workspace; allocations are aligned."""
    return name, Pointer(name, aligned=True)


def null(name: str) -> tuple[str, Argument]:
    """The address of nothing."""
    return name, Scalar("i64", 0)


def _strides(views: dict[str, Rows]) -> tuple[tuple[str, Argument], ...]:
    return tuple((f"{name}_stride", Scalar("i64", view.stride)) for name, view in views.items())


def _parameters(call: Call, names: Sequence[str]) -> list[str]:
    return [name for name in names if call.has(name)]


def _defines(call: Call, dtype: str, names: Sequence[str]) -> tuple[tuple[str, int | str], ...]:
    present = _parameters(call, names)
    kind = call[present[0]].dtype if present else dtype
    return (("W", dtypes.of(kind).c), *((f"HAS_{name.upper()}", int(call.has(name))) for name in names))


def forward_plan(
    call: Call,
    op: str,
    source: Path,
    parameters: Sequence[str],
    *,
    most_chunks: int,
    clusters: ClusterShapes,
    rings: Mapping[int, Ring],
) -> Plan | Rejected:
    """y from x and the parameters that are there; `most_chunks` vectors per lane fit the registers, and
    longer rows pass through rings as `rings` says, or clusters of blocks hold them as `clusters` says."""
    views = {name: rows(call[name]) for name in ("x", "y")}
    x = views["x"]
    dtype = call["x"].dtype
    aligned = [(call[name], view.stride) for name, view in views.items()]
    aligned += [(call[name], 0) for name in _parameters(call, parameters)]
    wide = any(call[name].dtype != dtype for name in _parameters(call, parameters))
    found = None if wide else ring_class(call.device, dtype, x.length, aligned, rings)
    if found is not None and x.count:
        kind, ring = found
        blocks = min(ring.blocks(call.device), x.count)
        kernel = kind.kernel(source, f"{op}_forward_ring", *_defines(call, dtype, parameters))
        kernel = ring_kernel(kernel, ring, tensors=1, stage="FORWARD_RING")
        args = _forward_args(call, parameters, kind, views)
        launch = Launch(kernel, (blocks * ring.cluster, 1, 1), (*args, ("blocks", Scalar("i32", blocks))))
        return Plan((launch,))
    kind = cluster_class(call.device, dtype, x.length, aligned, clusters)
    if kind is None or wide or x.count > MAX_GRID // kind.cluster:
        kind = row_class(dtype, x.length, aligned, most_chunks=most_chunks)
        if not wide:
            kind = fully_occupied(kind, call.device)
    if x.count > MAX_GRID * kind.rows_per_block:
        return Rejected(f"{x.count} rows exceed the grid")
    stage = "forward" if kind.resident else "forward_stream"
    kernel = kind.kernel(source, f"{op}_{stage}", *_defines(call, dtype, parameters), ("PASS", stage.upper()))
    args = _forward_args(call, parameters, kind, views)
    return Plan((row_launch(kernel, kind, x, args),))


def _forward_args(
    call: Call, parameters: Sequence[str], kind: RowClass, views: dict[str, Rows]
) -> tuple[tuple[str, Argument], ...]:
    return (
        pointer(call, "x"),
        *(pointer(call, name) for name in parameters),
        pointer(call, "y"),
        *row_count_argument(kind, views["x"].count),
        length_argument(kind, views["x"].length),
        *_strides(views),
        ("eps", Scalar("f32", call.params["eps"])),
    )


def backward_plan(
    call: Call,
    op: str,
    source: Path,
    parameters: Sequence[str],
    *,
    statistics: int,
    stages: int,
    most_lanes: int,
    resident: int,
    rings: Mapping[int, Ring],
) -> Plan | Rejected:
    """dx and the gradients of the parameters that are there.

    `statistics` floats per row pass from the rows' kernel to the columns'; up to `most_lanes` lanes per row
    leave registers enough to sum the gradients beside it, and then `resident` blocks of 256 threads with
    `stages` rows each fit a multiprocessor (fewer blocks where tails or weights wider than x want registers).
    On Hopper `rings` says, per power of two of 16-byte vectors in a row, how blocks take them through shared
    memory.
    """
    views = {name: rows(call[name]) for name in ("dy", "x", "dx")}
    x = views["x"]
    dtype = call["x"].dtype
    present = _parameters(call, parameters)
    aligned = [(call[name], view.stride) for name, view in views.items()]
    aligned += [(call[name], 0) for name in present if name == "weight"]
    wide = any(call[name].dtype != dtype for name in present)
    if present and not wide and x.count:
        found = ring_class(call.device, dtype, x.length, aligned, rings)
        if found is not None:
            kind, ring = found
            blocks = min(ring.blocks(call.device), x.count)
            kernel = kind.kernel(source, f"{op}_backward_ring", *_defines(call, dtype, parameters))
            kernel = ring_kernel(kernel, ring, tensors=2, stage="BACKWARD_RING")
            return _persistent(call, kernel, parameters, kind, views, blocks)
    if wide:
        most_lanes = min(most_lanes, 512)
    fused = row_class(dtype, x.length, aligned, most_chunks=2, most_lanes=most_lanes, threads=256)
    if present and fused.resident:
        if fused.threads > 256:
            resident = 2 if stages == 1 and fused.threads == 512 and not (wide or fused.tail) else 1
        elif fused.vector > 1 and fused.tail:
            resident = max(resident - 1, 1)
        elif fused.vector > 1 and (wide or call.device.arch == "sm_100"):
            resident = min(resident, 2)  # a third spills: 8 bytes on sm_100 (compiled 2026-11-21)
        kernel = fused.kernel(
            source,
            f"{op}_backward",
            *_defines(call, dtype, parameters),
            ("RESIDENT", resident),
            ("STAGES", stages),
            ("PASS", "BACKWARD"),
        )
        blocks = min(call.device.multiprocessors * resident, -(-x.count // fused.rows_per_block))
        return _persistent(call, kernel, parameters, fused, views, blocks)
    return _split(call, op, source, parameters, aligned, views, statistics)


def _persistent(
    call: Call,
    kernel: NativeKernel,
    parameters: Sequence[str],
    kind: RowClass,
    views: dict[str, Rows],
    blocks: int,
) -> Plan:
    """`blocks` persistent blocks, or clusters of them, process the rows."""
    x = views["x"]
    args = (
        pointer(call, "dy"),
        pointer(call, "x"),
        pointer(call, "weight"),
        pointer(call, "dx"),
        workspace("columns"),
        *row_count_argument(kind, x.count),
        length_argument(kind, x.length),
        *_strides(views),
        ("eps", Scalar("f32", call.params["eps"])),
        ("blocks", Scalar("i32", blocks)),
    )
    sums, space = _sum_blocks(call, parameters, blocks, x.length)
    return Plan((Launch(kernel, (blocks * kind.cluster, 1, 1), args), sums), (space,))


def _split(
    call: Call,
    op: str,
    source: Path,
    parameters: Sequence[str],
    aligned: Sequence[tuple],
    views: dict[str, Rows],
    statistics: int,
) -> Plan | Rejected:
    x = views["x"]
    dtype = call["x"].dtype
    save = bool(_parameters(call, parameters))
    # Two statistics beside weights wider than x leave no registers for rows of 1024 lanes.
    crowded = statistics > 1 and any(call[name].dtype != dtype for name in _parameters(call, parameters))
    kind = row_class(dtype, x.length, aligned, most_chunks=2, streamed=2, most_lanes=512 if crowded else 1024)
    if x.count > MAX_GRID * kind.rows_per_block:
        return Rejected(f"{x.count} rows exceed the grid")
    stage = "backward_rows" if kind.resident else "backward_stream"
    common = _defines(call, dtype, parameters)
    kernel = kind.kernel(source, f"{op}_{stage}", *common, ("SAVE", int(save)), ("PASS", stage.upper()))
    saved = workspace("saved") if save else null("saved")
    args = (
        pointer(call, "dy"),
        pointer(call, "x"),
        pointer(call, "weight"),
        pointer(call, "dx"),
        saved,
        *row_count_argument(kind, x.count),
        length_argument(kind, x.length),
        *_strides(views),
        ("eps", Scalar("f32", call.params["eps"])),
    )
    rows_launch = row_launch(kernel, kind, x, args)
    if not save:
        return Plan((rows_launch,))

    vector = vector_length(dtype, [(call[name], views[name].stride) for name in ("dy", "x")])
    across = -(-x.length // (COLUMN_THREADS * vector))
    # Eight blocks of columns per multiprocessor: enough loads in flight, few partial sums.
    down = min(max(8 * call.device.multiprocessors // across, 1), x.count, 65535)
    columns = RowClass(dtype, vector, x.length % vector != 0, COLUMN_THREADS, COLUMN_THREADS, 1, False)
    column_kernel = columns.kernel(source, f"{op}_columns", *common, ("PASS", "COLUMNS"))
    column_args = (
        pointer(call, "dy"),
        pointer(call, "x"),
        workspace("saved"),
        workspace("columns"),
        ("rows", Scalar("i64", x.count)),
        ("length", Scalar("i64", x.length)),
        *_strides({name: views[name] for name in ("dy", "x")}),
        ("blocks", Scalar("i32", down)),
    )
    sums, space = _sum_blocks(call, parameters, down, x.length)
    return Plan(
        (rows_launch, Launch(column_kernel, (across, down, 1), column_args), sums),
        (space, Workspace("saved", (x.count, statistics), "float32")),
    )


def _sum_blocks(call: Call, parameters: Sequence[str], blocks: int, length: int) -> tuple[Launch, Workspace]:
    present = _parameters(call, parameters)
    dtype = call[present[0]].dtype
    kernel = NativeKernel(
        COLUMN_SUM,
        "column_sum",
        SUM_WIDTH * SUM_GROUPS,
        (("W", dtypes.of(dtype).c), ("WIDTH", SUM_WIDTH), ("GROUPS", SUM_GROUPS)),
    )
    results = [pointer(call, f"d{name}")[1] for name in present]
    args = (
        ("partial", workspace("columns")[1]),
        ("first", results[0]),
        ("second", results[-1] if len(results) > 1 else Scalar("i64", 0)),
        ("blocks", Scalar("i32", blocks)),
        ("length", Scalar("i64", length)),
    )
    grid = (-(-length // SUM_WIDTH), len(results), 1)
    return Launch(kernel, grid, args), Workspace("columns", (len(results), blocks, length), "float32")
