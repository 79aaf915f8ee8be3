"""Gradients of rms_norm and layer_norm in Triton, deterministic: no atomics.

With h = (x - mean) * r, r = rsqrt(mean((x - mean)^2) + eps) and g = dy * w:

    dx = r * (g - mean(g) - h * mean(g * h)),  dw = sum over rows of dy * h,  db = sum over rows of dy

where rms_norm (not CENTERED) has mean = 0 and no mean(g) term. The number of programs is fixed by the
device; each adds up dw and db of its rows in registers and writes them as one line of a workspace, and a
second kernel adds the lines in a fixed order. Rows too long for registers get their statistics from a
kernel of their own, so that programs can take a range of columns each.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from portable.kernels._common.triton_rows import (
    MAX_GRID,
    RowTile,
    divisible,
    row_args,
    row_starts,
    row_tile,
    too_large,
    unit_of,
    setting,
    warps,
)
from portable.layout import rows
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel, Workspace

RESIDENT = 8192
PARTIAL_TILE = (512, 16)  # lines and columns of the workspace that one step of sum_partials adds
COLUMNS = 2048  # columns of one program for rows longer than RESIDENT


@triton.jit
def add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def norm_backward_rows(
    dy_ptr, dy_stride, x_ptr, x_stride, w_ptr, dx_ptr, dx_stride, dw_ptr, db_ptr, count, length, eps,
    CENTERED: tl.constexpr, AHEAD: tl.constexpr, RELOAD: tl.constexpr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Every num_programs-th tile of ROWS rows of at most BLOCK elements, held in registers.

    If AHEAD, the next tile's loads are under way while a tile is worked on. `dw_ptr` and `db_ptr` are
    float32 [programs, length], or None where that gradient is not wanted.
    """
    pid = tl.program_id(0)
    col = tl.arange(0, BLOCK)[None, :]
    inside = col < divisible(length, UNIT)
    n = length.to(tl.float32)
    if w_ptr is not None:
        if not RELOAD:
            w = tl.load(w_ptr + col, mask=inside, other=0.0).to(tl.float32)
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
                w = tl.load(w_ptr + col, mask=inside, other=0.0).to(tl.float32)
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
        tl.store(row_starts(dx_ptr, row, dx_stride, UNIT) + col, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        if dw_ptr is not None:
            dw = tl.fma(dy, h, dw)
        if db_ptr is not None:
            db += dy
    line = pid.to(tl.int64) * divisible(length, UNIT) + col
    if dw_ptr is not None:
        tl.store(dw_ptr + line, tl.sum(dw, axis=0, keep_dims=True), mask=inside)
    if db_ptr is not None:
        tl.store(db_ptr + line, tl.sum(db, axis=0, keep_dims=True), mask=inside)


@triton.jit
def norm_backward_parts(
    dy_ptr, dy_stride, x_ptr, x_stride, w_ptr, dx_ptr, dx_stride, dw_ptr, db_ptr, count, length, eps,
    CENTERED: tl.constexpr, PARTS: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Every num_programs-th row of at most PARTS x BLOCK elements, read twice: for its statistics, and while
    it is still in the nearest cache for dx. The sums over rows alone stay in registers.

    Sums are of x - s, where each lane's s is its first x, so that a common offset cancels nothing.
    """
    n = length.to(tl.float32)
    length = divisible(length, UNIT)
    lane = tl.arange(0, BLOCK)
    dw = ()
    db = ()
    for part in tl.static_range(PARTS):
        dw = dw + (tl.zeros([BLOCK], tl.float32),)
        db = db + (tl.zeros([BLOCK], tl.float32),)
    for row in range(tl.program_id(0).to(tl.int64), count, tl.num_programs(0)):
        x_row = x_ptr + row * divisible(x_stride, UNIT)
        dy_row = dy_ptr + row * divisible(dy_stride, UNIT)
        dx_row = dx_ptr + row * divisible(dx_stride, UNIT)
        squares = tl.zeros([BLOCK], tl.float32)
        products = tl.zeros([BLOCK], tl.float32)
        sums = tl.zeros([BLOCK], tl.float32)
        g_sums = tl.zeros([BLOCK], tl.float32)
        if CENTERED:
            shift = tl.load(x_row + lane, mask=lane < length, other=0.0).to(tl.float32)
        for part in tl.range(0, PARTS, loop_unroll_factor=1 if CENTERED else PARTS):
            col = part * BLOCK + lane
            inside = col < length
            x = tl.load(x_row + col, mask=inside, other=0.0).to(tl.float32)
            g = tl.load(dy_row + col, mask=inside, other=0.0).to(tl.float32)
            if w_ptr is not None:
                g *= tl.load(w_ptr + col, mask=inside, other=0.0).to(tl.float32)
            if CENTERED:
                x = tl.where(inside, x - shift, 0.0)
                sums += x
                g_sums += g
            squares = tl.fma(x, x, squares)
            products = tl.fma(g, x, products)
        mean = 0.0
        g_mean = 0.0
        if CENTERED:
            held = tl.where(lane < length % BLOCK, 1.0, 0.0) + (length // BLOCK).to(tl.float32)
            mean, g_mean = tl.reduce((tl.fma(shift, held, sums), g_sums), 0, add_pairs)
            mean /= n
            g_mean /= n
            shift -= mean
            squares = tl.fma(shift, tl.fma(held, shift, 2.0 * sums), squares)
            products = tl.fma(shift, g_sums, products)
        total, product = tl.reduce((squares, products), 0, add_pairs)
        r = tl.rsqrt(total / n + eps)
        scale = product * r / n
        new_dw = ()
        new_db = ()
        for part in tl.static_range(PARTS):
            col = part * BLOCK + lane
            inside = col < length
            x = tl.load(x_row + col, mask=inside, other=0.0).to(tl.float32)
            dy = tl.load(dy_row + col, mask=inside, other=0.0).to(tl.float32)
            g = dy
            if w_ptr is not None:
                g = dy * tl.load(w_ptr + col, mask=inside, other=0.0).to(tl.float32)
            h = (x - mean) * r
            dx = tl.fma(h, -scale, g - g_mean) * r
            tl.store(dx_row + col, dx.to(dx_ptr.dtype.element_ty), mask=inside)
            new_dw = new_dw + (tl.fma(dy, h, dw[part]),)
            new_db = new_db + (db[part] + dy,)
        dw = new_dw
        db = new_db
    line = tl.program_id(0).to(tl.int64) * length + lane
    for part in tl.static_range(PARTS):
        inside = part * BLOCK + lane < length
        if dw_ptr is not None:
            tl.store(dw_ptr + line + part * BLOCK, dw[part], mask=inside)
        if db_ptr is not None:
            tl.store(db_ptr + line + part * BLOCK, db[part], mask=inside)


@triton.jit
def norm_backward_stats(
    dy_ptr, dy_stride, x_ptr, x_stride, w_ptr, stats_ptr, length, eps,
    CENTERED: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of one row of any length, in one pass: mean, r, mean(g) and mean(g * h) into stats, float32 [rows, 4].

    Sums are of x - s, where each lane's s is its first x, so that a common offset cancels nothing.
    """
    row = tl.program_id(0).to(tl.int64)
    dy_row = dy_ptr + row * divisible(dy_stride, UNIT)
    x_row = x_ptr + row * divisible(x_stride, UNIT)
    n = length.to(tl.float32)
    length = divisible(length, UNIT)
    lane = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    gx_sums = tl.zeros([BLOCK], tl.float32)
    if CENTERED:
        shift = tl.load(x_row + lane, mask=lane < length, other=0.0).to(tl.float32)
        sums = tl.zeros([BLOCK], tl.float32)
        g_sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        col = start + lane
        inside = col < length
        x = tl.load(x_row + col, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(dy_row + col, mask=inside, other=0.0).to(tl.float32)
        if w_ptr is not None:
            g *= tl.load(w_ptr + col, mask=inside, other=0.0).to(tl.float32)
        if CENTERED:
            x = tl.where(inside, x - shift, 0.0)
            sums += x
            g_sums += g
        squares = tl.fma(x, x, squares)
        gx_sums = tl.fma(g, x, gx_sums)
    mean = 0.0
    g_mean = 0.0
    if CENTERED:
        held = ((length - lane + BLOCK - 1) // BLOCK).to(tl.float32)
        mean = tl.sum(tl.fma(shift, held, sums), axis=0) / n
        g_mean = tl.sum(g_sums, axis=0) / n
        shift -= mean
        squares = tl.fma(shift, tl.fma(held, shift, 2.0 * sums), squares)
        gx_sums = tl.fma(shift, g_sums, gx_sums)
    r = tl.rsqrt(tl.sum(squares, axis=0) / n + eps)
    stats = stats_ptr + row * 4
    tl.store(stats, mean)
    tl.store(stats + 1, r)
    tl.store(stats + 2, g_mean)
    tl.store(stats + 3, tl.sum(gx_sums, axis=0) / n * r)


@triton.jit
def norm_backward_columns(
    dy_ptr, dy_stride, x_ptr, x_stride, w_ptr, stats_ptr, dx_ptr, dx_stride, dw_ptr, db_ptr,
    count, length, chunks, lines,
    CENTERED: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK columns of every `lines`-th row; `dw_ptr` and `db_ptr` are float32 [lines, length] or None."""
    pid = tl.program_id(0)
    slot = pid // chunks
    length = divisible(length, UNIT)
    col = (pid % chunks) * BLOCK + tl.arange(0, BLOCK)
    inside = col < length
    if w_ptr is not None:
        w = tl.load(w_ptr + col, mask=inside, other=0.0).to(tl.float32)
    dw = tl.zeros([BLOCK], tl.float32)
    db = tl.zeros([BLOCK], tl.float32)
    for place in range(slot.to(tl.int64), count, lines):
        row = count - 1 - place  # what the statistics read last may still be near
        stats = stats_ptr + row * 4
        r = tl.load(stats + 1)
        x = tl.load(x_ptr + row * divisible(x_stride, UNIT) + col, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * divisible(dy_stride, UNIT) + col, mask=inside, other=0.0).to(tl.float32)
        h = (x - tl.load(stats)) * r
        g = dy
        if w_ptr is not None:
            g = dy * w
        dx = tl.fma(h, -tl.load(stats + 3), g - tl.load(stats + 2)) * r
        tl.store(dx_ptr + row * divisible(dx_stride, UNIT) + col, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        if dw_ptr is not None:
            dw = tl.fma(dy, h, dw)
        if db_ptr is not None:
            db += dy
    line = slot.to(tl.int64) * length + col
    if dw_ptr is not None:
        tl.store(dw_ptr + line, dw, mask=inside)
    if db_ptr is not None:
        tl.store(db_ptr + line, db, mask=inside)


@triton.jit
def sum_partials(
    dw_ptr, dweight_ptr, db_ptr, dbias_ptr, lines, length,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dweight and dbias, each where present: the `lines` lines of float32 partials, in a fixed order."""
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


def plan_norm_backward(call: Call, centered: bool) -> Plan | Rejected:
    """Plan dx, dweight and dbias of layer_norm (`centered`) or dx and dweight of rms_norm.

    dy, x, dx are [*, N] of one dtype; weight, dweight, bias, dbias [N] of another, each pair or none.
    """
    count, length, _ = rows(call["x"])
    w = [name for name in ("weight", "dweight") if call.has("weight")]
    b = ["dbias"] if call.has("bias") else []
    unit = unit_of(call, ["dy", "x", "dx", *w, *b], ["dy", "x", "dx"], length)
    tile = row_tile(call, length, unit, setting(call, "BACK_RESIDENT"))
    if rejected := too_large(count, length, tile):
        return rejected
    from dataclasses import replace
    tile = replace(tile, ahead=setting(call, "AHEAD"))
    pack = _Packer(call, tile, centered, bool(w), bool(b))
    if tile.streams:
        if unit > 1 and length <= setting(call, "PARTS_RESIDENT"):
            block = setting(call, "PART")
            pack.tile = tile = RowTile(1, block, unit, warps(call.device, block // setting(call, "PART_ELEMENTS")), False, parts=triton.next_power_of_2(length) // block)
            threads = tile.num_warps * call.device.warp_size
            lines = min(call.device.multiprocessors * max(1, setting(call, "THREADS") // threads), count)
            args = [*pack.inputs(), *pack.dx(), *pack.partials(), *pack.sizes(count, length), pack.eps()]
            first = Launch(pack.kernel(norm_backward_parts), (lines, 1, 1), tuple(args))
            return pack.with_sums((first,), (), lines, length)
        return pack.streaming(count, length)
    threads = tile.num_warps * call.device.warp_size
    programs = call.device.multiprocessors * max(1, setting(call, "THREADS") // threads)
    lines = min(programs, triton.cdiv(count, tile.rows))
    args = [*pack.inputs(), *pack.dx(), *pack.partials(), *pack.sizes(count, length), pack.eps()]
    first = Launch(pack.kernel(norm_backward_rows), (lines, 1, 1), tuple(args))
    return pack.with_sums((first,), (), lines, length)


class _Packer:
    """Arguments, constants and workspaces that the kernels of one backward pass share."""

    def __init__(self, call: Call, tile: RowTile, centered: bool, has_w: bool, has_b: bool):
        self.call, self.tile, self.centered = call, tile, centered
        self.present = {"w_ptr": has_w, "dw_ptr": has_w, "db_ptr": has_b}
        self.present |= {"dweight_ptr": has_w, "dbias_ptr": has_b}
        self.aligned = tile.unit > 1

    def optional(self, arg: str, tensor: str) -> list[tuple[str, Argument]]:
        return [(arg, Pointer(tensor, self.aligned))] if self.present[arg] else []

    def inputs(self) -> list[tuple[str, Argument]]:
        return row_args(self.call, ("dy", "x"), self.aligned) + self.optional("w_ptr", "weight")

    def dx(self) -> list[tuple[str, Argument]]:
        return row_args(self.call, ("dx",), self.aligned)

    def partials(self) -> list[tuple[str, Argument]]:
        return self.optional("dw_ptr", "dweight_partials") + self.optional("db_ptr", "dbias_partials")

    def sizes(self, count: int, length: int) -> list[tuple[str, Argument]]:
        return [("count", Scalar("i64", count)), ("length", Scalar("i32", length))]

    def eps(self) -> tuple[str, Argument]:
        return ("eps", Scalar("f32", self.call.params["eps"]))

    def kernel(self, function: Any, tile: RowTile | None = None) -> TritonKernel:
        absent = [arg for arg, there in self.present.items() if not there and arg in function.arg_names]
        centered = [("CENTERED", self.centered)] if "CENTERED" in function.arg_names else []
        if "AHEAD" in function.arg_names:
            centered += [(name, setting(self.call, name)) for name in ("RELOAD",)]
        return (tile or self.tile).kernel(function, *((arg, None) for arg in absent), *centered)

    def streaming(self, count: int, length: int) -> Plan | Rejected:
        """The plan for rows longer than RESIDENT: statistics, then ranges of columns."""
        device = self.call.device
        chunks = triton.cdiv(length, COLUMNS)
        lines = min(max(1, device.multiprocessors // 4, setting(self.call, "COLUMN_PROGRAMS") * device.multiprocessors // chunks), count)
        if count > MAX_GRID or chunks * lines > MAX_GRID:
            return Rejected(f"{count} rows of {length} elements: more than {MAX_GRID} programs")
        stats: list[tuple[str, Argument]] = [("stats_ptr", Pointer("row_statistics", self.aligned))]
        wide = RowTile(1, setting(self.call, "CHUNK"), self.tile.unit, warps(device, setting(self.call, "CHUNK") // setting(self.call, "CHUNK_ELEMENTS")), True)
        part = RowTile(1, COLUMNS, self.tile.unit, warps(device, COLUMNS // 16), True)
        first_args = [*self.inputs(), *stats, ("length", Scalar("i32", length)), self.eps()]
        first = Launch(self.kernel(norm_backward_stats, wide), (count, 1, 1), tuple(first_args))
        args = [*self.inputs(), *stats, *self.dx(), *self.partials(), *self.sizes(count, length)]
        args += [("chunks", Scalar("i32", chunks)), ("lines", Scalar("i32", lines))]
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
        step, block = setting(self.call, "PARTIAL")
        args = [
            *self.optional("dw_ptr", "dweight_partials"), *self.optional("dweight_ptr", "dweight"),
            *self.optional("db_ptr", "dbias_partials"), *self.optional("dbias_ptr", "dbias"),
            ("lines", Scalar("i32", lines)), ("length", Scalar("i32", length)),
        ]  # fmt: skip
        tile = RowTile(step, block, self.tile.unit, warps(self.call.device, step * block // setting(self.call, "PARTIAL_ELEMENTS")), False)
        last = Launch(self.kernel(sum_partials, tile), (triton.cdiv(length, block), 1, 1), tuple(args))
        return Plan((*launches, last), workspaces)
