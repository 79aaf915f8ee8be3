"""Plans of the quantisers' C++ kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from portable import dtypes
from portable.kernels._lib.minifloat import format_type
from portable.kernels._lib.plans.elementwise_plan import element_class
from portable.kernels._lib.plans.row_class import (
    ACCESS_BYTES,
    AMD,
    HOPPER,
    MAX_GRID,
    RowClass,
    held_chunks,
    length_argument,
    pointer,
    power_of_two,
    row_class,
    row_count_argument,
    row_launch,
    stride_arguments,
    vector_length,
)
from portable.kernels.quantize_fp8.slabs import slabs
from portable.layout import Rows, ceil_div, rows
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, Workspace

_FOLDER = Path(__file__).parent
GROUP = 128
THREADS = 256
CHUNKS, PAIR_CHUNKS = 2, 4
"""Vectors of a lane, of different groups; of codes of 4 bits."""
TILE_CHUNKS = 8
"""Vectors of a lane of a 128x128 tile: 256 threads of 16-bit elements, 512 of float32."""
STRIP_LANES, STRIP_CHUNKS = 8, 4
"""Lanes side by side that have 128 bytes of a row, a strip of columns, and rows of a lane in flight."""
ONCE_THREADS, ONCE_TILES, MOST_BLOCKS = 512, 4, 8
"""A strip that is read once: threads of a block, the most tiles of it that their registers hold, and the most
blocks of a cluster. 8192x4096: 256 threads with 8 tiles, or a strip of half the columns, 0.98 of the speed
(H200, 2026-11-27)."""
ONCE_ROWS = ONCE_THREADS // STRIP_LANES * 4
"""Of a tile."""
STATIC_CHUNKS = 2
"""Vectors of x that a lane of NVIDIA's quantises by a given scale (16384x4096 in int8, one 57.1 us, where two
take 49.5 in Triton; H200, 2026-11-28)."""
BLOCKS, LEAST_SLICES, SLICE_CHUNKS = 8, 2, 4
"""The most blocks a multiprocessor that read a whole tensor, the fewest slices of it that each takes where it
has as many, and vectors of a slice that a lane has in flight."""


def code_defines(call: Call) -> tuple[tuple[str, int | str], ...]:
    """The format of q's codes, and whether scales are powers of two."""
    power = int(call.params.get("power_of_2", False))
    return ("FORMAT", format_type(call["q"].dtype)), ("POWER_OF_2", power)


def _eps(call: Call) -> tuple[str, Argument]:
    return "eps", Scalar("f32", call.params["eps"])


def _views(call: Call) -> dict[str, Rows]:
    return {name: rows(call[name]) for name in ("x", "q")}


def _too_many(blocks: int) -> Rejected:
    return Rejected(f"{blocks} blocks exceed the grid")


def row(call: Call) -> Plan | Rejected:
    """q and scale from x: one launch."""
    return plan_rows(call, code_defines(call))


def plan_rows(call: Call, defines: Sequence[tuple[str, int | str]], x_rows: int = 1) -> Plan | Rejected:
    """q and a scale per row, of `x_rows` rows of x each: one launch."""
    views, dtype = _views(call), call["x"].dtype
    first = views["q"]
    tensors = [(call[name], view.stride) for name, view in views.items()]
    most = held_chunks(call.device, dtype, x_rows, otherwise=4)
    kind = row_class(call.device, dtype, first.length, tensors, most_chunks=most)
    if first.count > MAX_GRID * kind.rows_per_block:
        return _too_many(first.count)
    args = (
        *(pointer(call, name) for name in ("x", "q", "scale")),
        *row_count_argument(kind, first.count),
        length_argument(kind, first.length),
        *stride_arguments(views),
        _eps(call),
    )
    variant = "" if kind.resident else "_stream"
    made = (("PASS", "WHOLE"), *defines)
    kernel = kind.kernel(_FOLDER / "rows.cu", "quantize_rows", made, variant)
    return Plan((row_launch(kernel, kind, first, args),))


def _vectors(call: Call, views: Mapping[str, Rows]) -> tuple[int, bool, bool]:
    """Elements of a vector, 16 bytes of x; whether they lie anywhere, on an AMD GPU, which loads them so; and
    whether a lane takes them one by one, far apart."""
    dtype = call["x"].dtype
    vector = ACCESS_BYTES // dtypes.itemsize(dtype)
    strides = [(call[name], view.stride if view.count > 1 else 0) for name, view in views.items()]
    aligned = vector_length(dtype, strides) == vector
    return vector, not aligned and call.device.vendor == AMD, not aligned and call.device.vendor != AMD


def groups(call: Call) -> Plan | Rejected:
    """q and a scale per 128 columns: one launch."""
    return plan_groups(call, GROUP, code_defines(call), Scalar("f32", call.params["eps"]))


def plan_groups(
    call: Call,
    size: int,
    defines: Sequence[tuple[str, int | str]],
    given: Argument,
) -> Plan | Rejected:
    """q and a scale per `size` columns, which is made from what is `given` too: one launch. x may have two
    rows for each of q's."""
    views = _views(call)
    count, length = views["q"].count, views["x"].length
    dense = views["x"].count == count and all(view.stride == view.length for view in views.values())
    if dense and length % size == 0:
        views = dict.fromkeys(views, Rows(1, count * length, count * length))
        count, length, _ = views["x"]
    vector, unaligned, strided = _vectors(call, views)
    vectors = power_of_two(ceil_div(length, vector))
    chunks = PAIR_CHUNKS if call["q"].dtype == "uint8" else CHUNKS  # a byte of two codes
    lanes = min(max(vectors // chunks, size // vector), THREADS)
    tail = length % vector != 0
    kind = RowClass(call["x"].dtype, vector, tail, THREADS, lanes, chunks, False, unaligned=unaligned)
    across = ceil_div(length, lanes * chunks * vector)
    grid = across * ceil_div(count, kind.rows_per_block)
    if grid > MAX_GRID:
        return _too_many(grid)
    args = (
        *(pointer(call, name) for name in ("x", "q", "scale")),
        ("rows", Scalar("i64", count)),
        ("length", Scalar("i64", length)),
        *stride_arguments(views),
        ("groups", Scalar("i64", ceil_div(length, size))),
        ("across", Scalar("i32", across)),
        ("given", given),
    )
    made = (("PASS", "GROUPS"), *defines, ("STRIDED", int(strided)))
    kernel = kind.kernel(_FOLDER / "groups.cu", "quantize_groups", made)
    return Plan((Launch(kernel, (grid, 1, 1), args),))


def tiles(call: Call) -> Plan | Rejected:
    """q and a scale per 128x128: one launch, of a block a tile."""
    views, height = _views(call), call["x"].shape[-2]
    count, length, _ = views["x"]
    vector, unaligned, strided = _vectors(call, views)
    lanes = GROUP // vector
    threads = lanes * GROUP // TILE_CHUNKS
    kind = RowClass(
        call["x"].dtype, vector, length % vector != 0, threads, lanes, TILE_CHUNKS, True, unaligned=unaligned
    )
    down, across = ceil_div(height, GROUP), ceil_div(length, GROUP)
    grid = count // max(height, 1) * down * across
    if grid > MAX_GRID:
        return _too_many(grid)
    args = (
        *(pointer(call, name) for name in ("x", "q", "scale")),
        ("height", Scalar("i64", height)),
        ("length", Scalar("i64", length)),
        *stride_arguments(views),
        ("down", Scalar("i32", down)),
        ("across", Scalar("i32", across)),
        _eps(call),
    )
    defines = (("PASS", "TILES"), *code_defines(call), ("STRIDED", int(strided)))
    kernel = kind.kernel(_FOLDER / "groups.cu", "quantize_tiles", defines)
    return Plan((Launch(kernel, (grid, 1, 1), args),))


def columns(call: Call) -> Plan | Rejected:
    """q and a scale per column: the greatest magnitudes of slabs of rows, then the codes."""
    first, (height, length) = rows(call["x"]), call["x"].shape[-2:]
    matrices = math.prod(call["x"].shape[:-2])
    vector, unaligned, strided = _vectors(call, {"x": first})
    stored = 16 if height % 16 == 0 and call["q"].alignment >= 16 else 1
    if stored > 1 and (once := _columns_once(call, code_defines(call))):
        return once
    strip = STRIP_LANES * vector
    across = ceil_div(length, strip)
    down, slab = slabs(call.device, across * matrices, height)
    blocks = matrices * down * across
    if blocks > MAX_GRID:
        return _too_many(blocks)
    tail = length % vector != 0
    kind = RowClass(
        call["x"].dtype, vector, tail, THREADS, STRIP_LANES, STRIP_CHUNKS, False, unaligned=unaligned
    )
    amax = ("amax", Pointer("amax", aligned=True))
    common = (
        ("height", Scalar("i64", height)),
        ("length", Scalar("i64", length)),
        *stride_arguments({"x": first}),
        ("down", Scalar("i32", down)),
        ("across", Scalar("i32", max(across, 1))),
        ("slab", Scalar("i32", slab)),
    )
    last = (
        pointer(call, "q"),
        pointer(call, "scale"),
        amax,
        *common,
        ("blocks", Scalar("i32", blocks)),
        _eps(call),
    )
    source, layout = _FOLDER / "columns.cu", (("STRIDED", int(strided)), ("GROUP_SIZE", strip))
    found = kind.kernel(source, "column_amax", (("PASS", "AMAX"), *layout))
    defines = (("PASS", "CODES"), *layout, *code_defines(call), ("ROW_CODES", stored))
    launches = (
        Launch(found, (blocks, 1, 1), (pointer(call, "x"), amax, *common)),
        Launch(kind.kernel(source, "quantize_columns", defines), (blocks, 1, 1), (pointer(call, "x"), *last)),
    )
    return Plan(launches, (Workspace("amax", (matrices * down * length,), "float32"),))


def _columns_once(call: Call, code: tuple[tuple[str, int | str], ...]) -> Plan | None:
    """`columns` in one launch that reads x once, a cluster of blocks for each strip; None where x is not of
    16 bits in whole vectors, or where 8 blocks do not hold a strip."""
    x, (height, length) = rows(call["x"]), call["x"].shape[-2:]
    vector, _, strided = _vectors(call, {"x": x})
    blocks = power_of_two(ceil_div(height, ONCE_TILES * ONCE_ROWS))
    whole = vector == 8 and not strided and length % vector == 0
    if call.device.arch != HOPPER or not whole or blocks > MOST_BLOCKS:
        return None
    strip = STRIP_LANES * vector
    across = ceil_div(length, strip)
    grid = math.prod(call["x"].shape[:-2]) * across * blocks
    if grid > MAX_GRID:
        return None
    args = (
        *(pointer(call, name) for name in ("x", "q", "scale")),
        ("height", Scalar("i64", height)),
        ("length", Scalar("i64", length)),
        *stride_arguments({"x": x}),
        ("across", Scalar("i32", max(across, 1))),
        _eps(call),
    )
    tiles = max(ceil_div(height, blocks * ONCE_ROWS), 1)
    kind = RowClass(call["x"].dtype, vector, False, ONCE_THREADS, STRIP_LANES, tiles, True)
    defines = (*code, ("GROUP_SIZE", strip), ("BLOCKS", blocks))
    kernel = kind.kernel(_FOLDER / "columns_once.cu", "quantize_columns_once", defines)
    return Plan((Launch(kernel, (grid, 1, 1), args),))


def static_chunks(call: Call) -> int:
    """Vectors of x that a lane quantises by a given scale."""
    return STATIC_CHUNKS if call.device.vendor == "cuda" else 1


def static(call: Call) -> Plan | Rejected:
    """q from x and a scale: one launch."""
    views = _views(call)
    first = views["x"]
    if all(view.stride == view.length for view in views.values()):
        total = first.count * first.length
        views = dict.fromkeys(views, Rows(1, total, total))
        first = views["x"]
    kind, across, grid = element_class(call, call["x"].dtype, views, static_chunks(call))
    if grid > MAX_GRID:
        return _too_many(grid)
    args = (
        *(pointer(call, name) for name in ("x", "scale", "q")),
        ("rows", Scalar("i64", first.count)),
        ("length", Scalar("i64", first.length)),
        *stride_arguments(views),
        ("across", Scalar("i32", across)),
    )
    defines = (("PASS", "ELEMENTS"), *code_defines(call))
    kernel = kind.kernel(_FOLDER / "tensor.cu", "quantize_elements", defines)
    return Plan((Launch(kernel, (grid, 1, 1), args),))


def amax_scale(call: Call) -> Plan | Rejected:
    """The scale of x: the greatest magnitude of each block's part, then of the blocks."""
    first = rows(call["x"])
    if first.stride == first.length:
        first = Rows(1, first.count * first.length, first.count * first.length)
    one, _, _ = element_class(call, call["x"].dtype, {"x": first})
    kind = replace(one, chunks=SLICE_CHUNKS if one.vector > 1 else 2 * SLICE_CHUNKS)
    across = ceil_div(first.length, kind.lanes * kind.chunks * kind.vector)
    slices = across * ceil_div(first.count, kind.rows_per_block)
    if slices > MAX_GRID:
        return _too_many(slices)
    blocks = max(min(ceil_div(slices, LEAST_SLICES), BLOCKS * call.device.multiprocessors), 1)
    amax = Pointer("amax", aligned=True)
    power = ("POWER_OF_2", int(call.params["power_of_2"]))
    parts = (
        pointer(call, "x"),
        ("amax", amax),
        ("rows", Scalar("i64", first.count)),
        ("length", Scalar("i64", first.length)),
        *stride_arguments({"x": first}),
        ("across", Scalar("i32", max(across, 1))),
        ("slices", Scalar("i32", slices)),
    )
    last = (
        ("amax", amax),
        pointer(call, "scale"),
        ("blocks", Scalar("i32", blocks)),
        ("largest", Scalar("f32", call.params["largest"])),
        _eps(call),
    )
    source = _FOLDER / "tensor.cu"
    whole = RowClass("float32", 1, False, THREADS, THREADS, 1, True)
    launches = (
        Launch(kind.kernel(source, "amax_slices", (("PASS", "SLICES"),)), (blocks, 1, 1), parts),
        Launch(whole.kernel(source, "amax_blocks", (("PASS", "BLOCKS"), power)), (1, 1, 1), last),
    )
    return Plan(launches, (Workspace("amax", (blocks,), "float32"),))
