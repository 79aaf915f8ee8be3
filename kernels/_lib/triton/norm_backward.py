"""Gradients of rms_norm and layer_norm in Triton, deterministic: no atomics.

With h = (x - mean) * r, r = rsqrt(mean((x - mean)^2) + eps) and g = dy * w:

    dx = r * (g - mean(g) - h * mean(g * h)),  dw = sum over rows of dy * h,  db = sum over rows of dy

where rms_norm (not CENTERED) has mean = 0 and no mean(g) term. `offset`, where it is not None, is added to w,
dw takes h as it met the weight, rounded to the rows' type if CAST, and rows of `a_ptr` are added to dx.

The number of programs is fixed by the
device; each adds up dw and db of its rows in registers and writes them as one line of a workspace, and a
second kernel adds the lines in a fixed order. Of rows too long for registers, rms_norm's sums may still fit;
others get their statistics from a kernel of their own, so that programs can take a range of columns each
(`triton_norm_columns`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import triton
import triton.language as tl

from portable.dtypes import itemsize
from portable.kernels._lib.triton.norm import before_weight, load_weight, weight_settings
from portable.kernels._lib.triton.norm_columns import norm_backward_columns, norm_backward_stats
from portable.kernels._lib.triton.pdl import enter_pdl, pdl_constant
from portable.kernels._lib.triton.rows import (
    MAX_GRID,
    RowTile,
    divisible,
    renamed_row_args,
    row_args,
    row_starts,
    row_tile,
    too_large,
    unit_of,
    warps,
)
from portable.layout import ceil_div, rows
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel, Workspace

RESIDENT = 8192
PARTS_RESIDENT = 16384
PART = 4096  # columns at a time of rows up to PARTS_RESIDENT
PARTIAL_TILE = (512, 16)  # lines and columns of the workspace that one step of sum_partials adds
STATISTICS = 4096  # columns at a time of the statistics of longer rows
COLUMNS = 2048  # columns of one program for them
COLUMN_PROGRAMS = 4  # and such programs per multiprocessor


@triton.jit
def add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def norm_backward_rows(
    dy_ptr, dy_stride, x_ptr, x_stride, w_ptr, dx_ptr, dx_stride, a_ptr, a_stride, dw_ptr, db_ptr,
    count, length, eps, offset,
    PDL: tl.constexpr, CENTERED: tl.constexpr, CAST: tl.constexpr, AHEAD: tl.constexpr, RELOAD: tl.constexpr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Every num_programs-th tile of ROWS rows of at most BLOCK elements, held in registers.

    If AHEAD, the next tile's loads are in flight while a tile is computed. `dw_ptr` and `db_ptr` are
    float32 [programs, length], or None where that gradient is not wanted.
    """
    enter_pdl(PDL)
    pid = tl.program_id(0)
    col = tl.arange(0, BLOCK)[None, :]
    inside = col < divisible(length, UNIT)
    n = length.to(tl.float32)
    if w_ptr is not None and not RELOAD:
        w = load_weight(w_ptr, col, inside, offset)
    dw = tl.zeros([ROWS, BLOCK], tl.float32)
    db = tl.zeros([ROWS, BLOCK], tl.float32)
    step = tl.num_programs(0) * ROWS
    row = pid.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    if AHEAD:
        mask = (row < count)[:, None] & inside
        x_next = tl.load(row_starts(x_ptr, row, x_stride, UNIT) + col, mask=mask, other=0.0)
        dy_next = tl.load(row_starts(dy_ptr, row, dy_stride, UNIT) + col, mask=mask, other=0.0)
    for start in range(pid.to(tl.int64) * ROWS, count, step):
        row = start + tl.arange(0, ROWS)
        mask = (row < count)[:, None] & inside
        if AHEAD:
            x = x_next.to(tl.float32)
            dy = dy_next.to(tl.float32)
            after = row + step
            more = (after < count)[:, None] & inside
            x_next = tl.load(row_starts(x_ptr, after, x_stride, UNIT) + col, mask=more, other=0.0)
            dy_next = tl.load(row_starts(dy_ptr, after, dy_stride, UNIT) + col, mask=more, other=0.0)
        else:
            x = tl.load(row_starts(x_ptr, row, x_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
            dy = tl.load(row_starts(dy_ptr, row, dy_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
        g = dy
        if w_ptr is not None:
            if RELOAD:
                w = load_weight(w_ptr, col, inside, offset)
            g = dy * w
        if CENTERED:
            x_sum, g_sum = tl.reduce((x, g), 1, add_pairs, keep_dims=True)
            x = tl.where(inside, x - x_sum / n, 0.0)
        squares, products = tl.reduce((x * x, g * x), 1, add_pairs, keep_dims=True)
        r = tl.rsqrt(squares / n + eps)
        h = x * r
        dx = tl.fma(h, -(products * r / n), g)
        if CENTERED:
            dx -= g_sum / n
        dx *= r
        if a_ptr is not None:
            dx += tl.load(row_starts(a_ptr, row, a_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
        tl.store(row_starts(dx_ptr, row, dx_stride, UNIT) + col, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        if dw_ptr is not None:
            dw = tl.fma(dy, before_weight(h, dx_ptr.dtype.element_ty, CAST), dw)
        if db_ptr is not None:
            db += dy
    line = pid.to(tl.int64) * divisible(length, UNIT) + col
    if dw_ptr is not None:
        tl.store(dw_ptr + line, tl.sum(dw, axis=0, keep_dims=True), mask=inside)
    if db_ptr is not None:
        tl.store(db_ptr + line, tl.sum(db, axis=0, keep_dims=True), mask=inside)


@triton.jit
def norm_backward_parts(
    dy_ptr, dy_stride, x_ptr, x_stride, w_ptr, dx_ptr, dx_stride, a_ptr, a_stride, dw_ptr,
    count, length, eps, offset,
    PDL: tl.constexpr, CAST: tl.constexpr, PARTS: tl.constexpr,
    UNROLL: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """rms_norm's: every num_programs-th row of at most PARTS x BLOCK elements, read twice: for its
    statistics, and while it is still in the nearest cache for dx. Only sums over rows stay in registers."""
    enter_pdl(PDL)
    n = length.to(tl.float32)
    length = divisible(length, UNIT)
    lane = tl.arange(0, BLOCK)
    dw = ()
    for _ in tl.static_range(PARTS):
        dw += (tl.zeros([BLOCK], tl.float32),)
    for row in range(tl.program_id(0).to(tl.int64), count, tl.num_programs(0)):
        x_row = x_ptr + row * divisible(x_stride, UNIT)
        dy_row = dy_ptr + row * divisible(dy_stride, UNIT)
        dx_row = dx_ptr + row * divisible(dx_stride, UNIT)
        if a_ptr is not None:
            a_row = a_ptr + row * divisible(a_stride, UNIT)
        squares = tl.zeros([BLOCK], tl.float32)
        products = tl.zeros([BLOCK], tl.float32)
        for part in tl.range(0, PARTS, loop_unroll_factor=UNROLL):
            col = part * BLOCK + lane
            inside = col < length
            x = tl.load(x_row + col, mask=inside, other=0.0).to(tl.float32)
            g = tl.load(dy_row + col, mask=inside, other=0.0).to(tl.float32)
            if w_ptr is not None:
                g *= load_weight(w_ptr, col, inside, offset)
            squares = tl.fma(x, x, squares)
            products = tl.fma(g, x, products)
        total, product = tl.reduce((squares, products), 0, add_pairs)
        r = tl.rsqrt(total / n + eps)
        scale = product * r / n
        sums = ()
        for part in tl.static_range(PARTS):
            col = part * BLOCK + lane
            inside = col < length
            h = tl.load(x_row + col, mask=inside, other=0.0).to(tl.float32) * r
            dy = tl.load(dy_row + col, mask=inside, other=0.0).to(tl.float32)
            g = dy
            if w_ptr is not None:
                g = dy * load_weight(w_ptr, col, inside, offset)
            dx = tl.fma(h, -scale, g) * r
            if a_ptr is not None:
                dx += tl.load(a_row + col, mask=inside, other=0.0).to(tl.float32)
            tl.store(dx_row + col, dx.to(dx_ptr.dtype.element_ty), mask=inside)
            sums += (tl.fma(dy, before_weight(h, dx_ptr.dtype.element_ty, CAST), dw[part]),)
        dw = sums
    if dw_ptr is not None:
        line = dw_ptr + tl.program_id(0).to(tl.int64) * length + lane
        for part in tl.static_range(PARTS):
            tl.store(line + part * BLOCK, dw[part], mask=part * BLOCK + lane < length)


@triton.jit
def sum_partials(
    dw_ptr, dweight_ptr, db_ptr, dbias_ptr, lines, length,
    PDL: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dweight and dbias, each where present: the `lines` lines of float32 partials, in a fixed order."""
    enter_pdl(PDL)
    length = divisible(length, UNIT)
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = col < length
    dw = tl.zeros([ROWS, BLOCK], tl.float32)
    db = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, lines, ROWS):
        line = start + tl.arange(0, ROWS)
        mask = (line < lines)[:, None] & inside[None, :]
        place = line.to(tl.int64)[:, None] * length + col[None, :]
        if dw_ptr is not None:
            dw += tl.load(dw_ptr + place, mask=mask, other=0.0)
        if db_ptr is not None:
            db += tl.load(db_ptr + place, mask=mask, other=0.0)
    if dw_ptr is not None:
        tl.store(dweight_ptr + col, tl.sum(dw, axis=0).to(dweight_ptr.dtype.element_ty), mask=inside)
    if db_ptr is not None:
        tl.store(dbias_ptr + col, tl.sum(db, axis=0).to(dbias_ptr.dtype.element_ty), mask=inside)


def plan_norm_backward(call: Call, centered: bool, added: str | None = None) -> Plan | Rejected:
    """Plan dx, dweight and dbias of layer_norm (`centered`) or dx and dweight of rms_norm.

    dy, x, dx are [*, N] of one dtype; weight, dweight, bias, dbias [N] of another, each pair or none. `added`
    names rows that are added to dx.
    """
    count, length, _ = rows(call["x"])
    w = [name for name in ("weight", "dweight") if call.has("weight")]
    b = ["dbias"] if call.has("bias") else []
    tensors = ["dy", "x", "dx", *([] if added is None else [added])]
    unit = unit_of(call, [*tensors, *w, *b], tensors, length)
    tile = row_tile(call, length, unit, RESIDENT)
    if rejected := too_large(count, length, tile):
        return rejected
    builder = _Builder(call, tile, centered, added)
    if not tile.streams:
        return builder.resident(count, length)
    if unit > 1 and not centered and length <= PARTS_RESIDENT:
        return builder.parts(count, length)
    return builder.streaming(count, length)


class _Builder:
    """Arguments, constants and workspaces that the kernels of one backward pass share."""

    def __init__(self, call: Call, tile: RowTile, centered: bool, added: str | None):
        self.call, self.tile, self.centered, self.added = call, tile, centered, added
        has_w, has_b = call.has("weight"), call.has("bias")
        self.offset, self.settings = weight_settings(call)
        self.present = {"w_ptr": has_w, "dw_ptr": has_w, "db_ptr": has_b}
        self.present |= {"dweight_ptr": has_w, "dbias_ptr": has_b}
        self.aligned = tile.unit > 1

    def optional(self, arg: str, tensor: str) -> list[tuple[str, Argument]]:
        return [(arg, Pointer(tensor, self.aligned))] if self.present[arg] else []

    def inputs(self) -> list[tuple[str, Argument]]:
        return row_args(self.call, ("dy", "x"), self.aligned) + self.optional("w_ptr", "weight")

    def dx(self) -> list[tuple[str, Argument]]:
        args = row_args(self.call, ("dx",), self.aligned)
        return (
            args if self.added is None else args + renamed_row_args(self.call, "a", self.added, self.aligned)
        )

    def partials(self) -> list[tuple[str, Argument]]:
        return self.optional("dw_ptr", "dweight_partials") + self.optional("db_ptr", "dbias_partials")

    def sizes(self, count: int, length: int) -> list[tuple[str, Argument]]:
        return [("count", Scalar("i64", count)), ("length", Scalar("i32", length))]

    def eps(self) -> list[tuple[str, Argument]]:
        return [("eps", Scalar("f32", self.call.params["eps"])), *self.offset]

    def kernel(self, function: Any, tile: RowTile | None = None, *constants: tuple[str, Any]) -> TritonKernel:
        absent = [(arg, None) for arg, there in self.present.items() if not there]
        if self.added is None:
            absent += [("a_ptr", None), ("a_stride", None)]
        fixed = (
            *absent,
            *self.settings,
            ("CENTERED", self.centered),
            *constants,
            pdl_constant(self.call.device),
        )
        return (tile or self.tile).kernel(function, *fixed)

    def resident(self, count: int, length: int) -> Plan:
        """The plan for rows held in registers."""
        tile = self.tile
        # Of 16-bit rows fewer bytes are in flight, and the next rows' fit beside them. The weight stays in
        # registers unless two sums, or a pointer and a mask for every element, are there as well.
        # A third tensor leaves no room for that: 8 bytes went to the stack on sm_90a, and 10 registers to
        # memory on gfx942 (compiled 2026-11-24).
        ahead = itemsize(self.call["x"].dtype) == 2 and self.added is None
        if self.added is not None and tile.unit == 1:
            threads = 2 * tile.num_warps * self.call.device.warp_size
            tile = replace(tile, num_warps=warps(self.call.device, threads))
        reload = tile.block >= 2048 and (self.present["db_ptr"] or tile.unit == 1)
        kernel = self.kernel(norm_backward_rows, tile, ("AHEAD", ahead), ("RELOAD", reload))
        return self.by_rows(kernel, tile.programs(self.call, count), count, length)

    def parts(self, count: int, length: int) -> Plan:
        """The plan for rows whose sums over rows alone are held in registers."""
        tile = RowTile(1, PART, self.tile.unit, warps(self.call.device, PART // 8), False)
        parts = PARTS_RESIDENT // PART
        # More loads of float32 at once would spill.
        unroll = parts if itemsize(self.call["x"].dtype) == 2 else 2
        kernel = self.kernel(norm_backward_parts, tile, ("PARTS", parts), ("UNROLL", unroll))
        return self.by_rows(kernel, tile.programs(self.call, count), count, length)

    def by_rows(self, kernel: TritonKernel, programs: int, count: int, length: int) -> Plan:
        args = [*self.inputs(), *self.dx(), *self.partials(), *self.sizes(count, length), *self.eps()]
        if "db_ptr" not in kernel.function.arg_names:
            args = [pair for pair in args if pair[0] != "db_ptr"]
        return self.with_sums((Launch(kernel, (programs, 1, 1), tuple(args)),), (), programs, length)

    def streaming(self, count: int, length: int) -> Plan | Rejected:
        """The plan for rows longer than RESIDENT: statistics, then ranges of columns."""
        device = self.call.device
        chunks = ceil_div(length, COLUMNS)
        lines = max(device.multiprocessors // 4, COLUMN_PROGRAMS * device.multiprocessors // chunks)
        lines = max(1, min(lines, count))
        if count > MAX_GRID or chunks * lines > MAX_GRID:
            return Rejected(f"{count} rows of {length} elements: more than {MAX_GRID} programs")
        stats: list[tuple[str, Argument]] = [("stats_ptr", Pointer("row_statistics", self.aligned))]
        wide = RowTile(1, STATISTICS, self.tile.unit, warps(device, STATISTICS // 16), True)
        part = RowTile(1, COLUMNS, self.tile.unit, warps(device, COLUMNS // 16), True)
        first_args = [*self.inputs(), *stats, ("length", Scalar("i32", length)), *self.eps()]
        first = Launch(self.kernel(norm_backward_stats, wide), (count, 1, 1), tuple(first_args))
        args = [*self.inputs(), *stats, *self.dx(), *self.partials(), *self.sizes(count, length)]
        args += [("chunks", Scalar("i32", chunks)), ("lines", Scalar("i32", lines)), *self.offset]
        second = Launch(self.kernel(norm_backward_columns, part), (chunks * lines, 1, 1), tuple(args))
        statistics = Workspace("row_statistics", (count, 4), "float32")
        return self.with_sums((first, second), (statistics,), lines, length)

    def with_sums(
        self, launches: tuple[Launch, ...], workspaces: tuple[Workspace, ...], lines: int, length: int
    ) -> Plan:
        """The plan of `launches`, which write `lines` lines of partials, followed by their sum."""
        partials = [arg.tensor for _, arg in self.partials() if isinstance(arg, Pointer)]
        if not partials:
            return Plan(launches, workspaces)
        workspaces += tuple(Workspace(name, (lines, length), "float32") for name in partials)
        step, block = PARTIAL_TILE
        args = [
            *self.optional("dw_ptr", "dweight_partials"), *self.optional("dweight_ptr", "dweight"),
            *self.optional("db_ptr", "dbias_partials"), *self.optional("dbias_ptr", "dbias"),
            ("lines", Scalar("i32", lines)), ("length", Scalar("i32", length)),
        ]  # fmt: skip
        tile = RowTile(step, block, self.tile.unit, warps(self.call.device, step * block // 32), False)
        last = Launch(self.kernel(sum_partials, tile), (ceil_div(length, block), 1, 1), tuple(args))
        return Plan((*launches, last), workspaces)
