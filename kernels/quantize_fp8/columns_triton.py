"""quantize_fp8_columns in Triton: q and a scale per column of x, as rows.

x is cut into strips of columns, and those into slabs of rows. A program finds the greatest magnitudes of a
slab, or makes its codes, once those of all slabs of the strip are there. On AMD GPUs these are two launches.
On NVIDIA's one launch does both, a few strips apart: the second read of x then comes from the L2 cache. What
a program does follows from a ticket, its place among the programs that have begun. All it may wait for has
lower tickets: programs that run, or have ended, and that wait for none after them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from portable.dtypes import itemsize
from portable.kernels._lib.triton.minifloat import encode
from portable.kernels._lib.triton.rows import (
    MAX_GRID,
    RowTile,
    divisible,
    row_args,
    row_starts,
    unit_of,
    warps,
)
from portable.kernels.quantize_fp8.slabs import TALL, slabs
from portable.kernels.quantize_fp8.triton_impl import (
    ELEMENTS,
    code_constants,
    magnitudes,
    numbers,
    scale_of,
)
from portable.layout import ceil_div
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel, Workspace

STRIP, SLABS, PARTS = 64, 24, 16
"""Columns of a strip; slabs that each multiprocessor gets, where there are so many; and the most slabs of a
strip, whose greatest magnitudes a program loads at once."""
AT_ONCE, AT_ONCE_ELEMENTS = ("cuda",), 32
"""Vendors whose GPUs take one launch for both; and the elements of a tile that a thread has there: with 16,
fewer bytes are on their way while the threads of a program wait for each other."""
WIDE, AHEAD = 8, 2
"""Strips of a band, 1024 bytes of a row in 16 bits: with one strip memory is slower. One launch finds
magnitudes of so many bands ahead that they fill a half of the L2 cache, or of one."""
ZEROED = 1024
"""Counters that a program of the first launch sets to 0."""


@triton.jit
def slab_amax(
    x_ptr, x_stride, amax_ptr, height, length, line, down, strip, slab,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The bits of the greatest magnitudes of a strip's BLOCK columns in a slab of rows, ROWS at a time;
    `line` counts the slabs of all matrices, each of which has `down`."""
    first = (line // down).to(tl.int64) * height
    top = (line % down).to(tl.int64) * slab
    col = strip.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    most = tl.zeros([ROWS, BLOCK], tl.int32)
    for start in range(0, slab, ROWS):
        row = top + start + tl.arange(0, ROWS)
        mask = (row < height)[:, None] & (col < divisible(length, UNIT))[None, :]
        x = tl.load(row_starts(x_ptr, first + row, x_stride, UNIT) + col[None, :], mask=mask, other=0.0)
        most = tl.maximum(most, magnitudes(x))
    tl.store(amax_ptr + line.to(tl.int64) * length + col, tl.max(most, axis=0), mask=col < length)


@triton.jit
def slab_codes(
    x_ptr, x_stride, q_ptr, scale_ptr, amax_ptr, height, length, line, down, strip, slab, eps, largest,
    POWER_OF_2: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr,
    UNIT: tl.constexpr, ROW_UNIT: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The codes of such columns as rows, whose length ROW_UNIT divides, of at most PARTS slabs."""
    matrix = (line // down).to(tl.int64)
    top = (line % down).to(tl.int64) * slab
    col = strip.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
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
def column_amax(
    x_ptr, x_stride, amax_ptr, height, length, down, across, slab,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`slab_amax` of every strip and slab."""
    pid = tl.program_id(0)
    slab_amax(
        x_ptr, x_stride, amax_ptr, height, length, pid // across, down, pid % across, slab, UNIT, ROWS, BLOCK
    )  # fmt: skip


@triton.jit
def quantize_columns(
    x_ptr, x_stride, q_ptr, scale_ptr, amax_ptr, height, length, down, across, slab, eps, largest,
    POWER_OF_2: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr,
    UNIT: tl.constexpr, ROW_UNIT: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`slab_codes` of every strip and slab. Backwards: what was read last may still be in the L2 cache."""
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    slab_codes(
        x_ptr, x_stride, q_ptr, scale_ptr, amax_ptr, height, length, pid // across, down, pid % across, slab,
        eps, largest, POWER_OF_2, FORMAT, CONVERT, UNIT, ROW_UNIT, PARTS, ROWS, BLOCK,
    )  # fmt: skip


@triton.jit
def zero_counters(done_ptr, count, BLOCK: tl.constexpr):
    """`count` counters of 0."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(done_ptr + place, tl.zeros([BLOCK], tl.int32), mask=place < count)


@triton.jit
def columns_at_once(
    x_ptr, x_stride, q_ptr, scale_ptr, amax_ptr, done_ptr, height, length, down, across, slab, strips, wide,
    bands, ahead, eps, largest,
    POWER_OF_2: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr,
    UNIT: tl.constexpr, ROW_UNIT: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Both, by tickets. A band is `wide` neighbours of all matrices' `strips`; of a band the programs take
    one slab of all strips after the other. The order: magnitudes of the first `ahead` bands; then in turn
    the codes of a band and magnitudes of the band that is `ahead` of it; at last the codes of the rest.
    done_ptr: the next ticket, then for each strip how many of its `down` slabs are there."""
    ticket = tl.atomic_add(done_ptr, 1, sem="relaxed")
    of_band = wide * down
    both = (bands - ahead) * 2 * of_band
    later = ticket - ahead * of_band
    if later < 0:
        finds, band, place = True, ticket // of_band, ticket % of_band
    elif later < both:
        finds, band, place = later % 2 == 1, later // 2 // of_band, later // 2 % of_band
        band += tl.where(finds, ahead, 0)
    else:
        finds, band, place = False, bands - ahead + (later - both) // of_band, (later - both) % of_band
    strip = band * wide + place % wide
    line, done = strip // across * down + place // wide, done_ptr + 1 + strip
    if strip >= strips:
        pass
    elif finds:
        slab_amax(
            x_ptr, x_stride, amax_ptr, height, length, line, down, strip % across, slab, UNIT, ROWS, BLOCK
        )  # fmt: skip
        tl.debug_barrier()  # all threads' magnitudes before one thread's count
        tl.atomic_add(done, 1, sem="release")
    else:
        while tl.atomic_add(done, 0, sem="acquire") < down:
            pass
        slab_codes(
            x_ptr, x_stride, q_ptr, scale_ptr, amax_ptr, height, length, line, down, strip % across, slab,
            eps, largest, POWER_OF_2, FORMAT, CONVERT, UNIT, ROW_UNIT, PARTS, ROWS, BLOCK,
        )  # fmt: skip


@dataclass(frozen=True)
class Columns:
    """A call of the op, cut into strips and slabs: what both ways of launching have in common."""

    call: Call
    matrices: int
    height: int
    across: int
    down: int
    slab: int
    tile: RowTile
    constants: tuple[tuple[str, Any], ...]

    @property
    def x(self) -> list[tuple[str, Argument]]:
        return row_args(self.call, ("x",), self.tile.unit > 1)

    @property
    def outputs(self) -> list[tuple[str, Argument]]:
        aligned = dict(self.constants)["ROW_UNIT"] > 1
        return [("q_ptr", Pointer("q", aligned, dtype="uint8")), ("scale_ptr", Pointer("scale"))]

    @property
    def sizes(self) -> list[tuple[str, Argument]]:
        """With the magnitudes before them."""
        return [
            ("amax_ptr", Pointer("amax", True)),
            ("height", Scalar("i64", self.height)),
            ("length", Scalar("i64", self.call["x"].shape[-1])),
            ("down", Scalar("i32", self.down)),
            ("across", Scalar("i32", max(self.across, 1))),
            ("slab", Scalar("i32", self.slab, divisible=True)),
        ]

    @property
    def workspace(self) -> Workspace:
        return Workspace("amax", (self.matrices * self.down * self.call["x"].shape[-1],), "int32")

    def in_two_launches(self) -> Plan:
        """Magnitudes, then codes."""
        grid = (self.matrices * self.down * self.across, 1, 1)
        find, code = self.tile.kernel(column_amax), self.tile.kernel(quantize_columns, *self.constants)
        codes = (*self.x, *self.outputs, *self.sizes, *numbers(self.call))
        return Plan(
            (Launch(find, grid, (*self.x, *self.sizes)), Launch(code, grid, codes)), (self.workspace,)
        )

    def at_once(self) -> Plan:
        """Counters of 0, then both."""
        strips = self.matrices * self.across
        wide = max(min(WIDE, strips), 1)
        bands = ceil_div(strips, wide)
        of_band = self.height * wide * STRIP * itemsize(self.call["x"].dtype)
        ahead = min(max(self.call.device.l2_bytes // AHEAD // max(of_band, 1), 1), bands)
        counters, done = 1 + strips, ("done_ptr", Pointer("done", True))
        zero = TritonKernel(zero_counters, (("BLOCK", ZEROED),), 4)
        clear = Launch(zero, (ceil_div(counters, ZEROED), 1, 1), (done, ("count", Scalar("i32", counters))))
        amax, *sizes = self.sizes
        order = {"strips": strips, "wide": wide, "bands": bands, "ahead": ahead}
        of_order = [(name, Scalar("i32", value)) for name, value in order.items()]
        args = (*self.x, *self.outputs, amax, done, *sizes, *of_order, *numbers(self.call))
        both = Launch(
            self.tile.kernel(columns_at_once, *self.constants), (2 * self.down * bands * wide, 1, 1), args
        )
        return Plan((clear, both), (self.workspace, Workspace("done", (counters,), "int32")))


def columns(call: Call) -> Plan | Rejected:
    """q and a scale per column."""
    height, length = call["x"].shape[-2:]
    matrices = math.prod(call["x"].shape[:-2])
    unit = unit_of(call, ("x",), ("x",), length)
    across = ceil_div(length, STRIP)
    down, slab = slabs(call.device, across * matrices, height, SLABS, PARTS)
    if 2 * (matrices * across + WIDE) * down > MAX_GRID:
        return Rejected(f"{matrices * down * across} strips: more than {MAX_GRID // 2}")
    row_unit = 16 if height % 16 == 0 and call["q"].alignment >= 16 else 1
    at_once = call.device.vendor in AT_ONCE
    whole = AT_ONCE_ELEMENTS if at_once else ELEMENTS
    tall, per_thread = (TALL, whole) if min(unit, row_unit) > 1 else (TALL // 4, ELEMENTS // 4)
    tile = RowTile(tall, STRIP, unit, warps(call.device, tall * STRIP // per_thread), False)
    constants = (*code_constants(call), ("ROW_UNIT", row_unit), ("PARTS", PARTS))
    cut = Columns(call, matrices, height, across, down, slab, tile, constants)
    return cut.at_once() if at_once else cut.in_two_launches()
