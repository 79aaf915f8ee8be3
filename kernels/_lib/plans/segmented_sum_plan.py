"""Plans of gather_rows.cu and segmented_sum.cu: rows read, or added, by an index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from portable import dtypes
from portable.kernels._lib.plans.row_class import MAX_GRID, RowClass, pointer, power_of_two, vector_length
from portable.layout import ceil_div, rows
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, Workspace

_SOURCES = Path(__file__).resolve().parents[1] / "rows"
THREADS = 256
CHUNKS = 2
"""Vectors of a lane where a row has more than a block's threads: a row of 4096 in bfloat16 is one block's,
which asks for the row's index or its segment once."""
SCALARS = 4
PART = 64
"""Tokens that one block adds one after the other. More leave a segment of thousands to few blocks; fewer are
more sums to add in turn. Both are part of the order, so the number is no tunable."""
AHEAD = 4


def index_bits(call: Call, name: str) -> tuple[tuple[str, int], ...]:
    """The define INDEX."""
    return (("INDEX", 8 * dtypes.itemsize(call[name].dtype)),)


def row_kind(call: Call, names: Sequence[str]) -> tuple[RowClass, int]:
    """The class of rows of all `names`, with whole vectors alone, and how many blocks share a row."""
    views = [(call[name], rows(call[name])) for name in names]
    dtype, length = call[names[0]].dtype, views[0][1].length
    vector = vector_length(dtype, [(info, view.stride if view.count > 1 else 0) for info, view in views])
    vector = vector if length % vector == 0 else 1
    vectors = power_of_two(ceil_div(length, vector))
    chunks = SCALARS if vector == 1 else CHUNKS if vectors > THREADS else 1
    lanes = min(max(vectors // chunks, 1), THREADS)
    kind = RowClass(dtype, vector, False, THREADS, lanes, chunks, False)
    return kind, ceil_div(length, lanes * chunks * vector)


def gather_plan(
    call: Call, index: str, source: str, y: str, outside: str, scale: float | None = None
) -> Plan | Rejected:
    """y[i] = source[index[i]], times `scale`, with `outside` (in C) where the index is outside the rows."""
    kind, across = row_kind(call, (source, y))
    given, made = rows(call[source]), rows(call[y])
    grid = across * ceil_div(made.count, kind.rows_per_block)
    if grid > MAX_GRID:
        return Rejected(f"{grid} blocks exceed the grid")
    args = (
        ("index", pointer(call, index)[1]),
        ("rows", pointer(call, source)[1]),
        ("y", pointer(call, y)[1]),
        ("count", Scalar("i64", given.count)),
        ("tokens", Scalar("i64", made.count)),
        ("length", Scalar("i64", made.length)),
        ("rows_stride", Scalar("i64", given.stride)),
        ("y_stride", Scalar("i64", made.stride)),
        ("across", Scalar("i32", across)),
        ("scale", Scalar("f32", 1.0 if scale is None else scale)),
    )
    defines = (*index_bits(call, index), ("SCALE", int(scale is not None)), ("OUTSIDE", outside))
    kernel = kind.kernel(_SOURCES / "gather_rows.cu", "gather_rows", defines)
    return Plan((Launch(kernel, (grid, 1, 1), args),))


def segmented_sum_plan(
    call: Call, source: str, y: str, input: str | None = None, left_out: int = -1, alpha: float = 1.0
) -> Plan | Rejected:
    """y[r] = the sum of the rows of `source` in segment r, or input[r] + alpha * it; segment `left_out`
    counts as empty. The call's index, order, starts and ends say what the segments are.

    One launch, and before it one that adds the parts of long segments, where there are tokens for one."""
    kind, across = row_kind(call, (source, y) if input is None else (source, input, y))
    given, made = rows(call[source]), rows(call[y])
    windows = ceil_div(given.count, PART)
    long = given.count > PART
    grids = [across * ceil_div(count, kind.rows_per_block) for count in (2 * windows, made.count)]
    if max(grids) > MAX_GRID:
        return Rejected(f"{max(grids)} blocks exceed the grid")
    own_defines = (("PART_TOKENS", PART), ("AHEAD", AHEAD), ("INPUT", int(input is not None)))
    common = (*index_bits(call, "index"), *own_defines)
    where = tuple(pointer(call, name) for name in ("order", "starts", "ends"))
    own = ("source", pointer(call, source)[1])
    parts: tuple[str, Argument] = ("parts", Pointer("parts", True) if long else Scalar("i64", 0))
    sizes: tuple[tuple[str, Argument], ...] = (
        ("count", Scalar("i64", made.count)),
        ("length", Scalar("i64", made.length)),
        ("source_stride", Scalar("i64", given.stride)),
    )
    ends: tuple[tuple[str, Argument], ...] = (
        ("across", Scalar("i32", across)),
        ("left_out", Scalar("i64", left_out)),
    )
    file = _SOURCES / "segmented_sum.cu"
    launches = []
    if long:
        kernel = kind.kernel(file, "segment_parts", (*common, ("PASS", "PARTS")))
        tokens = ("tokens", Scalar("i64", given.count))
        args = (own, pointer(call, "index"), *where, parts, tokens, *sizes, *ends)
        launches.append(Launch(kernel, (grids[0], 1, 1), args))
    added = ("input", Scalar("i64", 0)) if input is None else pointer(call, input)
    strides: tuple[tuple[str, Argument], ...] = (
        ("input_stride", Scalar("i64", 0 if input is None else rows(call[input]).stride)),
        ("y_stride", Scalar("i64", made.stride)),
    )
    kernel = kind.kernel(file, "segment_sums", (*common, ("PASS", "SUMS")))
    target, factor = ("y", pointer(call, y)[1]), ("alpha", Scalar("f32", alpha))
    args = (own, *where, parts, added, target, *sizes, *strides, *ends, factor)
    launches.append(Launch(kernel, (grids[1], 1, 1), args))
    width = across * kind.lanes * kind.chunks * kind.vector
    spaces = (Workspace("parts", (2 * windows, width), "float32"),) if long else ()
    return Plan(tuple(launches), spaces)
