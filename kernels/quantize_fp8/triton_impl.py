"""The quantisers in Triton. q is a tensor of bytes to them: Triton's types of 8 bits are not on all GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import triton
import triton.language as tl

from portable.dtypes import itemsize
from portable.kernels._lib.minifloat import largest
from portable.kernels._lib.triton.activations import activate
from portable.kernels._lib.triton.math import rounded
from portable.kernels._lib.triton.minifloat import converts, encode, format_of
from portable.kernels._lib.triton.rows import (
    MAX_GRID,
    UNFUSED,
    RowTile,
    divisible,
    element_tile,
    plan_elementwise,
    row_args,
    row_starts,
    row_tile,
    setting,
    tile_launch,
    too_large,
    unit_of,
    warps,
)
from portable.kernels.quantize_fp8.slabs import TALL, slabs
from portable.layout import ceil_div, next_power_of_2, rows
from portable.plan import (
    Argument,
    Call,
    Launch,
    Plan,
    Pointer,
    Rejected,
    Scalar,
    TritonKernel,
    Workspace,
)

GROUP = 128
RESIDENT, RESIDENT_AMD = 16384, 32768
ELEMENTS, TILE_ELEMENTS = 16, 32
"""Elements of groups, and of a 128x128 tile, that a thread has. Half as many of groups, and SLAB rows of a
tile at a time, where each element has a pointer and a mask of its own (UNIT 1): else they spill."""
SLAB = 8
STRIP, SLABS, PARTS = 64, 24, 16
"""Columns of a program that makes rows of columns; slabs that each multiprocessor gets, where there are so
many; and the most slabs of a strip, whose greatest magnitudes a program loads at once."""
COLUMN_ELEMENTS = 32
"""Elements of a tile of columns that a thread has on NVIDIA: with 16, fewer bytes are on their way while the
threads of a program wait for each other."""
GATED_ELEMENTS = 4
"""Elements of gate and of up that a thread has where each has a pointer and a mask of its own: of 8, short
rows of float32 spill on sm_90a."""
STATIC_ACCESSES = 2
"""Vectors of x that a thread quantises by a given scale: of one, too little is on its way (16384x4096 in int8
58.0 us, with two 49.5; H200, 2026-11-28)."""
GATED_REGISTERS = 40
"""Of a thread that makes groups of gate and up of 16 bits (NVIDIA). The compiler takes 48: 16384x4096 in
bfloat16 91.7 us, so limited 88.6 (H200, 2026-11-28). By 36 they spill."""
PROGRAMS, LEAST_TILES = 8, 2
"""The most programs a multiprocessor that read a whole tensor, and the fewest tiles of it that each takes
where it has as many."""
WITH_SUBNORMALS = (*UNFUSED, ("enable_reflect_ftz", False))
"""A given scale may be so large that its reciprocal is subnormal; libdevice's division would flush it
(NVIDIA, releases of Triton that use it)."""


@triton.jit
def magnitudes(x):
    """|x| as the bits of float32, which are ordered as the numbers are, with NaN above Inf."""
    return x.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def scale_of(most, eps, largest, POWER_OF_2: tl.constexpr):
    """The dequantisation scales of groups from the bits of their greatest magnitudes."""
    most = tl.maximum(most, eps.to(tl.int32, bitcast=True))
    scale = tl.div_rn(most.to(tl.float32, bitcast=True), largest)
    if POWER_OF_2:
        up = (scale.to(tl.int32, bitcast=True) + 0x007FFFFF) & 0x7F800000
        scale = tl.where(scale == scale, up.to(tl.float32, bitcast=True), scale)
    return scale


@triton.jit
def source_row(row, GATED: tl.constexpr):
    """The row of x that `load_source` begins at."""
    if GATED:
        row = 2 * row
    return row


@triton.jit
def load_source(
    start, col, x_stride, mask, UNIT: tl.constexpr, GATED: tl.constexpr, PACKED: tl.constexpr
):  # fmt: skip
    """What is quantised: x, `col` elements from `start`, or with GATED silu(gate) * up in float32, rounded to
    x's type, of it and the row after it. 0 where there is nothing."""
    x = tl.load(start + col, mask=mask, other=0.0)
    if GATED:
        WIDE: tl.constexpr = x.dtype.primitive_bitwidth > 16
        up = tl.load(start + divisible(x_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
        x = rounded(activate(x.to(tl.float32), "silu", WIDE) * up, x.dtype, PACKED)
    return x


@triton.jit
def quantize_rows(
    x_ptr, x_stride, q_ptr, q_stride, scale_ptr, count, length, eps, largest,
    POWER_OF_2: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr, GATED: tl.constexpr,
    PACKED: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows of at most BLOCK elements."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < count
    col = tl.arange(0, BLOCK)[None, :]
    mask = there[:, None] & (col < divisible(length, UNIT))
    start = row_starts(x_ptr, source_row(row, GATED), x_stride, UNIT)
    x = load_source(start, col, x_stride, mask, UNIT, GATED, PACKED)
    scale = scale_of(tl.max(magnitudes(x), axis=1), eps, largest, POWER_OF_2)
    tl.store(scale_ptr + row, scale, mask=there)
    value = x.to(tl.float32) * tl.div_rn(1.0, scale)[:, None]
    codes = encode(value, FORMAT, CONVERT)
    tl.store(row_starts(q_ptr, row, q_stride, UNIT) + col, codes, mask=mask)


@triton.jit
def quantize_rows_stream(
    x_ptr, x_stride, q_ptr, q_stride, scale_ptr, length, eps, largest,
    POWER_OF_2: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr, GATED: tl.constexpr,
    PACKED: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of any length, read twice, the second time backwards."""
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + source_row(row, GATED) * divisible(x_stride, UNIT)
    q_row = q_ptr + row * divisible(q_stride, UNIT)
    length = divisible(length, UNIT)
    lane = tl.arange(0, BLOCK)
    most = tl.zeros([BLOCK], tl.int32)
    for start in range(0, length, BLOCK):
        col = start + lane
        x = load_source(x_row, col, x_stride, col < length, UNIT, GATED, PACKED)
        most = tl.maximum(most, magnitudes(x))
    scale = scale_of(tl.max(most, axis=0), eps, largest, POWER_OF_2)
    tl.store(scale_ptr + row, scale)
    inverse = tl.div_rn(1.0, scale)
    for start in range(0, length, BLOCK):
        col = (tl.cdiv(length, BLOCK) * BLOCK - BLOCK - start) + lane
        x = load_source(x_row, col, x_stride, col < length, UNIT, GATED, PACKED).to(tl.float32)
        codes = encode(x * inverse, FORMAT, CONVERT)
        tl.store(q_row + col, codes, mask=col < length)


@triton.jit
def group_tile(groups, across, length, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The program's ROWS groups of BLOCK columns, and which of them there are; their rows, which have
    `across` of them; their first columns, the columns from there, and which of these there are."""
    group = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = group < groups
    row = group // across
    first = (group - row * across).to(tl.int64) * BLOCK
    row = row.to(tl.int64)
    lane = tl.arange(0, BLOCK)[None, :]
    mask = there[:, None] & (first[:, None] + lane < divisible(length, UNIT))
    return group, there, row, first[:, None], lane, mask


@triton.jit
def store_pairs(
    q_row, first, length, there, codes, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Stores codes of 4 bits of `group_tile`'s groups, two in a byte, the first in the lower half; with the
    last of a row of an odd length goes the code of a 0."""
    low, high = tl.split(codes.reshape(ROWS, BLOCK // 2, 2))  # pyright: ignore[reportOperatorIssue]
    pair = tl.arange(0, BLOCK // 2)[None, :]  # pyright: ignore[reportOperatorIssue]
    mask = there[:, None] & (first + 2 * pair < divisible(length, UNIT))
    tl.store(q_row + first // 2 + pair, low | (high << 4), mask=mask)


@triton.jit
def quantize_groups(
    x_ptr, x_stride, q_ptr, q_stride, scale_ptr, groups, across, length, eps, largest,
    POWER_OF_2: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr, GATED: tl.constexpr,
    PACKED: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS of the `groups`, of BLOCK columns each; a row of x has `across` of them."""
    group, there, row, first, lane, mask = group_tile(groups, across, length, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    start = row_starts(x_ptr, source_row(row, GATED), x_stride, UNIT) + first
    x = load_source(start, lane, x_stride, mask, UNIT, GATED, PACKED)
    scale = scale_of(tl.max(magnitudes(x), axis=1), eps, largest, POWER_OF_2)
    tl.store(scale_ptr + group, scale, mask=there)
    value = x.to(tl.float32) * tl.div_rn(1.0, scale)[:, None]
    codes = encode(value, FORMAT, CONVERT)
    tl.store(row_starts(q_ptr, row, q_stride, UNIT) + first + lane, codes, mask=mask)


@triton.jit
def quantize_tiles(
    x_ptr, x_stride, q_ptr, q_stride, scale_ptr, height, length, down, across, eps, largest,
    POWER_OF_2: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A tile of ROWS x BLOCK; a matrix of `height` rows has `down` x `across` of them."""
    tile = tl.program_id(0)
    line = tile // across
    matrix = (line // down).to(tl.int64)
    top = (line % down).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = ((tile % across).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[None, :]
    row = matrix * height + top
    mask = (top < height)[:, None] & (col < divisible(length, UNIT))
    x = tl.load(row_starts(x_ptr, row, x_stride, UNIT) + col, mask=mask, other=0.0)
    scale = scale_of(tl.max(tl.max(magnitudes(x), axis=1), axis=0), eps, largest, POWER_OF_2)
    tl.store(scale_ptr + tile, scale)
    value = x.to(tl.float32) * tl.div_rn(1.0, scale)
    codes = encode(value, FORMAT, CONVERT)
    tl.store(row_starts(q_ptr, row, q_stride, UNIT) + col, codes, mask=mask)


@triton.jit
def quantize_tiles_stream(
    x_ptr, x_stride, q_ptr, q_stride, scale_ptr, height, length, down, across, eps, largest,
    POWER_OF_2: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr,
    SIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A tile of SIDE x BLOCK, ROWS at a time, read twice: for rows at any address."""
    tile = tl.program_id(0)
    line = tile // across
    top = (line % down).to(tl.int64) * SIDE
    first = (line // down).to(tl.int64) * height + top
    below = tl.minimum(height - top, SIDE).to(tl.int32)
    col = ((tile % across).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[None, :]
    most = tl.zeros([ROWS, BLOCK], tl.int32)
    for start in range(0, SIDE, ROWS):
        place = start + tl.arange(0, ROWS)
        mask = (place < below)[:, None] & (col < length)
        x = tl.load(row_starts(x_ptr, first + place, x_stride, 1) + col, mask=mask, other=0.0)
        most = tl.maximum(most, magnitudes(x))
    scale = scale_of(tl.max(tl.max(most, axis=1), axis=0), eps, largest, POWER_OF_2)
    tl.store(scale_ptr + tile, scale)
    inverse = tl.div_rn(1.0, scale)
    for start in range(0, SIDE, ROWS):
        place = start + tl.arange(0, ROWS)
        mask = (place < below)[:, None] & (col < length)
        x = tl.load(row_starts(x_ptr, first + place, x_stride, 1) + col, mask=mask, other=0.0)
        codes = encode(x.to(tl.float32) * inverse, FORMAT, CONVERT)
        tl.store(row_starts(q_ptr, first + place, q_stride, 1) + col, codes, mask=mask)


@triton.jit
def column_amax(
    x_ptr, x_stride, amax_ptr, height, length, down, across, slab,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The bits of the greatest magnitudes of BLOCK columns of a slab of rows, ROWS at a time."""
    pid = tl.program_id(0)
    line = pid // across
    first = (line // down).to(tl.int64) * height
    top = (line % down).to(tl.int64) * slab
    col = (pid % across).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    most = tl.zeros([ROWS, BLOCK], tl.int32)
    for start in range(0, slab, ROWS):
        row = top + start + tl.arange(0, ROWS)
        mask = (row < height)[:, None] & (col < divisible(length, UNIT))[None, :]
        x = tl.load(row_starts(x_ptr, first + row, x_stride, UNIT) + col[None, :], mask=mask, other=0.0)
        most = tl.maximum(most, magnitudes(x))
    tl.store(amax_ptr + line.to(tl.int64) * length + col, tl.max(most, axis=0), mask=col < length)


@triton.jit
def quantize_columns(
    x_ptr, x_stride, q_ptr, scale_ptr, amax_ptr, height, length, down, across, slab, eps, largest,
    POWER_OF_2: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr,
    UNIT: tl.constexpr, ROW_UNIT: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The codes of such columns as rows, whose length ROW_UNIT divides, of at most PARTS slabs. Backwards:
    what was read last may still be in the L2 cache."""
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    line = pid // across
    matrix = (line // down).to(tl.int64)
    top = (line % down).to(tl.int64) * slab
    col = (pid % across).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = col < length
    part = tl.arange(0, PARTS)[:, None]
    parts = amax_ptr + (matrix * down + part) * length + col[None, :]
    most = tl.max(tl.load(parts, mask=(part < down) & there[None, :], other=0), axis=0)
    scale = scale_of(most, eps, largest, POWER_OF_2)
    tl.store(scale_ptr + matrix * length + col, scale, mask=there & (top == 0))
    inverse = tl.div_rn(1.0, scale)[None, :]
    for start in range(0, slab, ROWS):
        row = top + start + tl.arange(0, ROWS)
        mask = (row < height)[:, None] & (col < divisible(length, UNIT))[None, :]
        place = row_starts(x_ptr, matrix * height + row, x_stride, UNIT) + col[None, :]
        x = tl.load(place, mask=mask, other=0.0)
        codes = tl.trans(encode(x.to(tl.float32) * inverse, FORMAT, CONVERT))
        target = row_starts(q_ptr, matrix * length + col, height, ROW_UNIT) + row[None, :]
        tl.store(target, codes, mask=there[:, None] & (row < divisible(height, ROW_UNIT))[None, :])


@triton.jit
def quantize_elements(
    x_ptr, x_stride, q_ptr, q_stride, count, length, chunks, scale_ptr,
    FORMAT: tl.constexpr, CONVERT: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile by a given scale."""
    row, col, mask = element_tile(count, length, chunks, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    x = tl.load(row_starts(x_ptr, row, x_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    value = x * tl.div_rn(1.0, tl.load(scale_ptr))
    codes = encode(value, FORMAT, CONVERT)
    tl.store(row_starts(q_ptr, row, q_stride, UNIT) + col, codes, mask=mask)


@triton.jit
def amax_slices(
    x_ptr, x_stride, amax_ptr, count, length, chunks, tiles,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The bits of the greatest magnitude of every num_programs-th tile, of `chunks` tiles a row."""
    lane = tl.arange(0, BLOCK)[None, :]
    most = tl.zeros([ROWS, BLOCK], tl.int32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = (tile // chunks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        start = (tile % chunks).to(tl.int64) * BLOCK
        left = tl.minimum(length - start, BLOCK).to(tl.int32)
        mask = (row < count)[:, None] & (lane < divisible(left, UNIT))
        x = tl.load(row_starts(x_ptr, row, x_stride, UNIT) + start + lane, mask=mask, other=0.0)
        most = tl.maximum(most, magnitudes(x))
    tl.store(amax_ptr + tl.program_id(0), tl.max(tl.max(most, axis=1), axis=0))


@triton.jit
def amax_blocks(
    amax_ptr, scale_ptr, blocks, eps, largest, POWER_OF_2: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The scale from the bits of `blocks` parts' greatest magnitudes."""
    place = tl.arange(0, BLOCK)
    most = tl.max(tl.load(amax_ptr + place, mask=place < blocks, other=0), axis=0)
    tl.store(scale_ptr, scale_of(most, eps, largest, POWER_OF_2))


def code_constants(call: Call) -> tuple[tuple[str, Any], ...]:
    """POWER_OF_2, and the two constants of `encode`."""
    power = ("POWER_OF_2", bool(call.params.get("power_of_2", False)))
    dtype = call["q"].dtype
    return (power, ("FORMAT", format_of(dtype)), ("CONVERT", converts(call.device, dtype)))


def _numbers(call: Call) -> list[tuple[str, Argument]]:
    most = call.params["largest"] if "largest" in call.params else largest(call["q"].dtype)
    return [("eps", Scalar("f32", call.params["eps"])), ("largest", Scalar("f32", most))]


def _gated(call: Call, gated: bool) -> tuple[tuple[str, Any], ...]:
    """GATED, and PACKED of `rounded`."""
    return (("GATED", gated), ("PACKED", gated and call.device.vendor == "cuda"))


def _aligned(call: Call) -> tuple[int, list[tuple[str, Argument]]]:
    """The elements that divide rows of x and q, and the arguments of both and of the scales, which
    are bytes too where they have 8 bits."""
    names = ("x", "q")
    unit = unit_of(call, names, names, call["x"].shape[-1])
    of_scales = "uint8" if itemsize(call["scale"].dtype) == 1 else None
    scale = Pointer("scale", dtype=of_scales)
    return unit, [*as_bytes(row_args(call, names, unit > 1)), ("scale_ptr", scale)]


def as_bytes(args: Iterable[tuple[str, Argument]]) -> list[tuple[str, Argument]]:
    """The same, with q as bytes."""
    return [
        (name, replace(arg, dtype="uint8") if name == "q_ptr" and isinstance(arg, Pointer) else arg)
        for name, arg in args
    ]


def row(call: Call) -> Plan | Rejected:
    """q and scale from x: one launch."""
    return plan_rows(call)


def plan_rows(call: Call, gated: bool = False) -> Plan | Rejected:
    """q and a scale per row of x, or of what two rows of x make: one launch."""
    count, length, _ = rows(call["q"])
    unit, args = _aligned(call)
    tile = row_tile(call, length, unit, RESIDENT, RESIDENT_AMD)
    if gated and unit == 1 and not tile.streams:
        threads = tile.rows * tile.block // GATED_ELEMENTS
        tile = replace(tile, num_warps=max(tile.num_warps, warps(call.device, threads)))
    if rejected := too_large(count, length, tile):
        return rejected
    if not tile.streams:
        args.append(("count", Scalar("i64", count)))
    args += [("length", Scalar("i32", length)), *_numbers(call)]
    function = quantize_rows_stream if tile.streams else quantize_rows
    constants = (*code_constants(call), *_gated(call, gated))
    return Plan((tile_launch(call, tile, function, args, count, *constants),))


def groups(call: Call, gated: bool = False) -> Plan | Rejected:
    """q and a scale per 128 columns of x, or of what two rows of x make: one launch."""
    constants = (*code_constants(call), *_gated(call, gated))
    narrow = gated and call.device.vendor == "cuda" and itemsize(call["x"].dtype) == 2
    options = (*UNFUSED, ("maxnreg", GATED_REGISTERS)) if narrow else UNFUSED
    return plan_groups(call, quantize_groups, GROUP, constants, _numbers(call), options)


def plan_groups(
    call: Call,
    function: Any,
    width: int,
    constants: Iterable[tuple[str, Any]],
    numbers: Iterable[tuple[str, Argument]] = (),
    options: tuple[tuple[str, Any], ...] = UNFUSED,
) -> Plan | Rejected:
    """q and a scale per `width` columns by `function`: one launch. x may have two rows for each of q's."""
    count, (lines, length, stride) = rows(call["q"]).count, rows(call["x"])
    unit, args = _aligned(call)
    across = ceil_div(length, width)
    size, per_thread = setting(call, "TILE"), ELEMENTS if unit > 1 else ELEMENTS // 2
    tile = RowTile(size // width, width, unit, warps(call.device, size // per_thread), False)
    if count * across > MAX_GRID - tile.rows:
        return Rejected(f"{count * across} groups: more than {MAX_GRID}")
    groups = count * across
    if length % width == 0 and stride == length and lines == count:  # one long row
        across, length = groups, count * length
    args += [
        ("groups", Scalar("i32", groups)),
        ("across", Scalar("i32", max(across, 1))),
        ("length", Scalar("i64", length)),
        *numbers,
    ]
    kernel = tile.kernel(function, *constants, options=options)
    return Plan((Launch(kernel, (ceil_div(groups, tile.rows), 1, 1), tuple(args)),))


def tiles(call: Call) -> Plan | Rejected:
    """q and a scale per 128x128: one launch, of a program a tile."""
    height = call["x"].shape[-2]
    count, length, _ = rows(call["x"])
    unit, args = _aligned(call)
    down, across = ceil_div(height, GROUP), ceil_div(length, GROUP)
    grid = count // max(height, 1) * down * across
    if grid > MAX_GRID:
        return Rejected(f"{grid} tiles: more than {MAX_GRID}")
    args += [
        ("height", Scalar("i64", height)),
        ("length", Scalar("i64", length)),
        ("down", Scalar("i32", down)),
        ("across", Scalar("i32", across)),
        *_numbers(call),
    ]
    if unit == 1:
        tile = RowTile(SLAB, GROUP, unit, warps(call.device, SLAB * GROUP * 2 // ELEMENTS), False)
        kernel = tile.kernel(quantize_tiles_stream, *code_constants(call), ("SIDE", GROUP))
    else:
        tile = RowTile(GROUP, GROUP, unit, warps(call.device, GROUP * GROUP // TILE_ELEMENTS), False)
        kernel = tile.kernel(quantize_tiles, *code_constants(call))
    return Plan((Launch(kernel, (grid, 1, 1), tuple(args)),))


def columns(call: Call) -> Plan | Rejected:
    """q and a scale per column: the greatest magnitudes of slabs of rows, then the codes."""
    height, length = call["x"].shape[-2:]
    matrices = math.prod(call["x"].shape[:-2])
    unit = unit_of(call, ("x",), ("x",), length)
    across = ceil_div(length, STRIP)
    down, slab = slabs(call.device, across * matrices, height, SLABS, PARTS)
    grid = matrices * down * across
    if grid > MAX_GRID:
        return Rejected(f"{grid} strips: more than {MAX_GRID}")
    x: list[tuple[str, Argument]] = row_args(call, ("x",), unit > 1)
    amax: tuple[str, Argument] = ("amax_ptr", Pointer("amax", True))
    sizes: list[tuple[str, Argument]] = [
        ("height", Scalar("i64", height)),
        ("length", Scalar("i64", length)),
        ("down", Scalar("i32", down)),
        ("across", Scalar("i32", max(across, 1))),
        ("slab", Scalar("i32", slab, divisible=True)),
    ]
    row_unit = 16 if height % 16 == 0 and call["q"].alignment >= 16 else 1
    outputs = [("q_ptr", Pointer("q", row_unit > 1, dtype="uint8")), ("scale_ptr", Pointer("scale"))]
    whole = COLUMN_ELEMENTS if call.device.vendor == "cuda" else ELEMENTS
    tall, per_thread = (TALL, whole) if min(unit, row_unit) > 1 else (TALL // 4, ELEMENTS // 4)
    tile = RowTile(tall, STRIP, unit, warps(call.device, tall * STRIP // per_thread), False)
    constants = (*code_constants(call), ("ROW_UNIT", row_unit), ("PARTS", PARTS))
    codes = tile.kernel(quantize_columns, *constants)
    launches = (
        Launch(tile.kernel(column_amax), (grid, 1, 1), (*x, amax, *sizes)),
        Launch(codes, (grid, 1, 1), (*x, *outputs, amax, *sizes, *_numbers(call))),
    )
    return Plan(launches, (Workspace("amax", (matrices * down * length,), "int32"),))


def static(call: Call) -> Plan | Rejected:
    """q from x and a scale: one launch."""
    format_ = code_constants(call)[1:]
    plan = plan_elementwise(
        call, ("x", "q"), quantize_elements, *format_, options=WITH_SUBNORMALS, accesses=STATIC_ACCESSES
    )
    if isinstance(plan, Rejected):
        return plan
    (launch,) = plan.launches
    args = (*as_bytes(launch.args), ("scale_ptr", Pointer("scale")))
    return Plan((replace(launch, args=args),))


def amax_scale(call: Call) -> Plan | Rejected:
    """The scale of x: the greatest magnitude of each program's part, then of the programs."""
    count, length, stride = rows(call["x"])
    size = setting(call, "TILE")
    if stride == length:
        count, length, stride = 1, count * length, 0
    per_thread = 16 // itemsize(call["x"].dtype)
    unit = per_thread if call["x"].alignment >= 16 and not (length | stride) % per_thread else 1
    block = size if count == 1 else min(size, max(16, next_power_of_2(length)))
    tile = RowTile(size // block, block, unit, warps(call.device, size // (2 * per_thread)), length > block)
    chunks = ceil_div(length, block)
    parts = chunks * ceil_div(count, tile.rows)
    if parts > MAX_GRID // 2:
        return Rejected(f"{parts} tiles of {size} elements: more than {MAX_GRID // 2}")
    programs = max(min(ceil_div(parts, LEAST_TILES), PROGRAMS * call.device.multiprocessors), 1)
    first: list[tuple[str, Argument]] = [
        ("x_ptr", Pointer("x", unit > 1)),
        ("x_stride", Scalar("i64", stride)),
        ("amax_ptr", Pointer("amax", True)),
        ("count", Scalar("i64", count)),
        ("length", Scalar("i64", length)),
        ("chunks", Scalar("i32", max(chunks, 1))),
        ("tiles", Scalar("i32", parts)),
    ]
    last: list[tuple[str, Argument]] = [
        ("amax_ptr", Pointer("amax", True)),
        ("scale_ptr", Pointer("scale")),
        ("blocks", Scalar("i32", programs)),
        *_numbers(call),
    ]
    power = ("POWER_OF_2", bool(call.params["power_of_2"]))
    merge = TritonKernel(amax_blocks, (power, ("BLOCK", next_power_of_2(programs))), 4, options=UNFUSED)
    launches = (
        Launch(tile.kernel(amax_slices), (programs, 1, 1), tuple(first)),
        Launch(merge, (1, 1, 1), tuple(last)),
    )
    return Plan(launches, (Workspace("amax", (programs,), "int32"),))
