"""Rows read, or added, by an index, in Triton: the kernels of gather_rows.cu and segmented_sum.cu."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from portable.kernels._lib.plans.segmented_sum_plan import PART
from portable.kernels._lib.triton.pdl import enter_pdl, pdl_constant
from portable.kernels._lib.triton.rows import (
    MAX_GRID,
    MIN_BLOCK,
    divisible,
    element_tile,
    row_starts,
    setting,
    unit_of,
    warps,
)
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

AHEAD = 4  # tokens of a segment that are loaded together
PER_THREAD = 8
UNALIGNED_TILE = 4  # as many times fewer elements where every one needs a mask of its own


@triton.jit
def gather_rows_elements(
    index_ptr, rows_ptr, rows_stride, y_ptr, y_stride, rows_count, count, length, chunks, scale,
    PDL: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, SCALE: tl.constexpr, OUTSIDE: tl.constexpr,
):  # fmt: skip
    """y[i] = rows[index[i]]; OUTSIDE where the index is outside the rows."""
    enter_pdl(PDL)
    row, col, mask = element_tile(count, length, chunks, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    own = tl.load(index_ptr + row, mask=row < count, other=-1).to(tl.int64)
    inside = (own >= 0) & (own < rows_count)
    source = row_starts(rows_ptr, tl.where(inside, own, 0), rows_stride, UNIT) + col
    x = tl.load(source, mask=mask & inside[:, None], other=OUTSIDE)
    if SCALE:
        x = (x.to(tl.float32) * scale).to(y_ptr.dtype.element_ty)
    tl.store(row_starts(y_ptr, row, y_stride, UNIT) + col, x, mask=mask)


@triton.jit
def add_tokens(
    source_ptr, source_stride, order_ptr, start, end, col, inside,
    UNIT: tl.constexpr, AHEAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The columns `col` of the rows order[start:end] of source, AHEAD of them at a time."""
    sums = tl.zeros([BLOCK], tl.float32)
    several = tl.arange(0, AHEAD)
    for first in range(start, end, AHEAD):
        there = first + several < end
        token = tl.load(order_ptr + first + several, mask=there, other=0)
        held = tl.load(
            row_starts(source_ptr, token, source_stride, UNIT) + col[None, :],
            mask=there[:, None] & inside[None, :],
            other=0.0,
        )
        sums += tl.sum(held.to(tl.float32), axis=0)
    return sums


@triton.jit
def segment_parts_rows(
    source_ptr, index_ptr, order_ptr, starts_ptr, ends_ptr, parts_ptr, tokens, count, length, source_stride,
    parts_stride, left_out, PDL: tl.constexpr, UNIT: tl.constexpr,
    AHEAD: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """The sums of the two parts of long segments that may begin within PART sorted tokens."""
    enter_pdl(PDL)
    pid = tl.program_id(0).to(tl.int64)
    window = pid // 2 * PART
    leaves = pid % 2
    at = window + leaves * (PART - 1)
    segment = tl.load(index_ptr + tl.load(order_ptr + at, mask=at < tokens, other=0)).to(tl.int64)
    real = (at < tokens) & (segment >= 0) & (segment < count) & (segment != left_out)
    start = tl.load(starts_ptr + segment, mask=real, other=0)
    end = tl.load(ends_ptr + segment, mask=real, other=0)
    behind = (tl.maximum(window - start, 0) + PART - 1) // PART * PART
    real &= (end - start > PART) & ((start >= window) == (leaves == 1)) & (start + behind < end)
    if real:
        col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = col < divisible(length, UNIT)
        begin = start + behind
        last = tl.minimum(begin + PART, end)
        sums = add_tokens(source_ptr, source_stride, order_ptr, begin, last, col, inside, UNIT, AHEAD, BLOCK)
        tl.store(parts_ptr + pid * parts_stride + col, sums, mask=inside)


@triton.jit
def segment_sums_rows(
    source_ptr, order_ptr, starts_ptr, ends_ptr, parts_ptr, input_ptr, y_ptr, length,
    source_stride, parts_stride, input_stride, y_stride, left_out, alpha,
    PDL: tl.constexpr, UNIT: tl.constexpr, AHEAD: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """A row's tokens one after the other, or the sums of its parts."""
    enter_pdl(PDL)
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < divisible(length, UNIT)
    start = tl.load(starts_ptr + row)
    end = tl.load(ends_ptr + row)
    end = tl.where(row == left_out, start, end)
    y = y_ptr + row * divisible(y_stride, UNIT) + col
    short = end
    if parts_ptr is not None:
        short = tl.where(end - start > PART, start, end)
    sums = add_tokens(source_ptr, source_stride, order_ptr, start, short, col, inside, UNIT, AHEAD, BLOCK)
    if parts_ptr is not None:
        for first in range(tl.where(end - start > PART, start, end), end, PART):
            slot = first // PART * 2 + (first == start)
            sums += tl.load(parts_ptr + slot * parts_stride + col, mask=inside, other=0.0)
    if input_ptr is not None:
        x = tl.load(input_ptr + row * divisible(input_stride, UNIT) + col, mask=inside, other=0.0)
        added = tl.fma(sums, alpha, x.to(tl.float32)).to(y_ptr.dtype.element_ty)
        # A row that nothing is added to keeps its bits.
        tl.store(y, tl.where(end > start, added, x), mask=inside)
    else:
        tl.store(y, sums.to(y_ptr.dtype.element_ty), mask=inside)


def gather_plan(
    call: Call, index: str, source: str, y: str, outside: float, scale: float | None = None
) -> Plan | Rejected:
    """y[i] = source[index[i]], times `scale`, with `outside` where the index is outside the rows."""
    given, made = rows(call[source]), rows(call[y])
    unit = _unit(call, (source, y), made.length)
    tile = setting(call, "TILE") // (1 if unit > 1 else UNALIGNED_TILE)
    block = min(tile, max(MIN_BLOCK, next_power_of_2(made.length)))
    chunks, each = ceil_div(made.length, block), tile // block
    programs = chunks * ceil_div(made.count, each)
    if programs > MAX_GRID:
        return Rejected(f"{programs} tiles of {tile} elements: more than {MAX_GRID}")
    constants = (
        *(("UNIT", unit), ("ROWS", each), ("BLOCK", block)),
        *(("SCALE", scale is not None), ("OUTSIDE", outside), pdl_constant(call.device)),
    )
    kernel = TritonKernel(gather_rows_elements, constants, warps(call.device, tile // PER_THREAD))
    args: tuple[tuple[str, Argument], ...] = (
        ("index_ptr", Pointer(index)),
        ("rows_ptr", Pointer(source, unit > 1)),
        ("rows_stride", Scalar("i64", given.stride)),
        ("y_ptr", Pointer(y, unit > 1)),
        ("y_stride", Scalar("i64", made.stride)),
        ("rows_count", Scalar("i64", given.count)),
        ("count", Scalar("i64", made.count)),
        ("length", Scalar("i64", made.length)),
        ("chunks", Scalar("i32", chunks)),
        ("scale", Scalar("f32", 1.0 if scale is None else scale)),
    )
    return Plan((Launch(kernel, (programs, 1, 1), args),))


def segmented_sum_plan(
    call: Call, source: str, y: str, input: str | None = None, left_out: int = -1, alpha: float = 1.0
) -> Plan | Rejected:
    """As of segmented_sum.cu: y[r] = the sum of the rows of `source` in segment r, or input[r] and alpha
    times that."""
    names = (source, y) if input is None else (source, input, y)
    given, made = rows(call[source]), rows(call[y])
    unit = _unit(call, names, made.length)
    most = setting(call, "TILE") // (1 if unit > 1 else UNALIGNED_TILE)
    block = min(most, max(MIN_BLOCK, next_power_of_2(made.length)))
    windows, across, long = ceil_div(given.count, PART), ceil_div(made.length, block), given.count > PART
    if made.length > 2**31 - 1 - block or across > 65535 or max(made.count, 2 * windows) > MAX_GRID:
        return Rejected(f"{made.count} rows of {made.length} elements: more programs than one launch takes")
    constants: tuple[tuple[str, Any], ...] = (
        *(("UNIT", unit), ("AHEAD", AHEAD)),
        *(("BLOCK", block), ("PART", PART), pdl_constant(call.device)),
    )
    # Warps lie along the columns, so that a thread adds up its own.
    number = max(1, min(4, block // (PER_THREAD * call.device.warp_size)))
    where = tuple((f"{name}_ptr", Pointer(name)) for name in ("order", "starts", "ends"))
    own = ("source_ptr", Pointer(source, unit > 1))
    source_stride = ("source_stride", Scalar("i64", given.stride))
    parts_stride = ("parts_stride", Scalar("i64", across * block))
    out = ("left_out", Scalar("i64", left_out))
    length = ("length", Scalar("i32", made.length))
    launches = []
    if long:
        args = (
            own, ("index_ptr", Pointer("index")), *where, ("parts_ptr", Pointer("parts", True)),
            ("tokens", Scalar("i64", given.count)), ("count", Scalar("i64", made.count)), length,
            source_stride, parts_stride, out,
        )  # fmt: skip
        kernel = TritonKernel(segment_parts_rows, constants, number)
        launches.append(Launch(kernel, (2 * windows, across, 1), args))
    absent = tuple(
        (name, None) for name, there in (("parts_ptr", long), ("input_ptr", input is not None)) if not there
    )
    args = (
        own,
        *where,
        *((("parts_ptr", Pointer("parts", True)),) if long else ()),
        *((("input_ptr", Pointer(input, unit > 1)),) if input is not None else ()),
        *(("y_ptr", Pointer(y, unit > 1)), length),
        *(source_stride, parts_stride),
        ("input_stride", Scalar("i64", 0 if input is None else rows(call[input]).stride)),
        *(("y_stride", Scalar("i64", made.stride)), out, ("alpha", Scalar("f32", alpha))),
    )
    kernel = TritonKernel(segment_sums_rows, (*constants, *absent), number)
    launches.append(Launch(kernel, (made.count, across, 1), args))
    spaces = (Workspace("parts", (2 * windows, across * block), "float32"),) if long else ()
    return Plan(tuple(launches), spaces)


def _unit(call: Call, names: tuple[str, ...], length: int) -> int:
    """Elements of 16 bytes where all rows can be accessed so, else 1."""
    return unit_of(call, names, names, length)
