"""linear in Triton: matmul's kernel with bias and activation; and the activation's gradient."""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.triton.activations import times_slope
from portable.kernels._lib.triton.norm_backward import sum_partials
from portable.kernels._lib.triton.pdl import enter_pdl, pdl_constant
from portable.kernels._lib.triton.rows import (
    MAX_GRID,
    MIN_BLOCK,
    UNFUSED,
    RowTile,
    divisible,
    element_tile,
    plan_elementwise,
    row_args,
    row_starts,
    unit_of,
    warps,
)
from portable.kernels.matmul.problem import from_linear
from portable.kernels.matmul.triton.plan import plan_problem
from portable.layout import ceil_div, next_power_of_2, rows
from portable.plan import Call, Launch, Plan, Pointer, Rejected, Scalar, Workspace

NAMES = ("dy", "z", "dz")
# Of a program that sums columns: columns, elements at a time, threads, and rows at least; programs per
# multiprocessor at most.
SUM_COLUMNS, SUM_TILE, SUM_THREADS, SUM_ROWS, SUM_PROGRAMS, SUM_STAGES = 256, 2048, 256, 64, 64, 1


@triton.jit
def activation_backward_elements(
    dy_ptr, dy_stride, z_ptr, z_stride, dz_ptr, dz_stride, count, length, chunks,
    PDL: tl.constexpr, ACTIVATION: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dz = dy * activation'(z) for one tile. relu' is 0 at 0 and 1 at NaN, as in torch."""
    enter_pdl(PDL)
    WIDE: tl.constexpr = dz_ptr.dtype.element_ty.primitive_bitwidth > 16
    row, col, mask = element_tile(count, length, chunks, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    dy = tl.load(row_starts(dy_ptr, row, dy_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    z = tl.load(row_starts(z_ptr, row, z_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    dz = times_slope(dy, z, ACTIVATION, WIDE)
    tl.store(row_starts(dz_ptr, row, dz_stride, UNIT) + col, dz.to(dz_ptr.dtype.element_ty), mask=mask)


@triton.jit
def activation_sums(
    dy_ptr, dy_stride, z_ptr, z_stride, dz_ptr, dz_stride, partial_ptr, count, length, chunks, most,
    PDL: tl.constexpr, ACTIVATION: tl.constexpr, STAGES: tl.constexpr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK columns of `most` rows: dz, and the sums of its columns before it is rounded, to a line of
    partial, float32 [groups, length]."""
    enter_pdl(PDL)
    WIDE: tl.constexpr = dz_ptr.dtype.element_ty.primitive_bitwidth > 16
    group = tl.program_id(0) // chunks
    length = divisible(length, UNIT)
    col = (tl.program_id(0) % chunks) * BLOCK + tl.arange(0, BLOCK)
    inside = col < length
    first = group.to(tl.int64) * most
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in tl.range(0, most, ROWS, num_stages=STAGES):
        row = first + start + tl.arange(0, ROWS)
        mask = (row < count)[:, None] & inside[None, :]
        dy = tl.load(row_starts(dy_ptr, row, dy_stride, UNIT) + col[None, :], mask=mask, other=0.0)
        z = tl.load(row_starts(z_ptr, row, z_stride, UNIT) + col[None, :], mask=mask, other=0.0)
        dz = times_slope(dy.to(tl.float32), z.to(tl.float32), ACTIVATION, WIDE)
        total += dz
        to = row_starts(dz_ptr, row, dz_stride, UNIT) + col[None, :]
        tl.store(to, dz.to(dz_ptr.dtype.element_ty), mask=mask)
    tl.store(partial_ptr + group.to(tl.int64) * length + col, tl.sum(total, axis=0), mask=inside)


def plan(call: Call) -> Plan | Rejected:
    """Plan y = activation(x @ weight.T + bias); x [*, K], weight [N, K], bias [N] or absent, y [*, N]."""
    problem = from_linear(call)
    return problem if isinstance(problem, Rejected) else plan_problem(problem, call)


def activation_backward(call: Call) -> Plan | Rejected:
    """Plan dz = dy * activation'(z); all are [*, N] of one dtype."""
    constant = ("ACTIVATION", call.params["activation"])
    options = UNFUSED if call["dz"].dtype == "float32" else ()
    return plan_elementwise(call, NAMES, activation_backward_elements, constant, options=options)


def activation_backward_sums(call: Call) -> Plan | Rejected:
    """Plan dz and dbias, the sums of dz's columns: the rows in groups, then their sums in one order."""
    count, length, _ = rows(call["dy"])
    unit = unit_of(call, NAMES, NAMES, length)
    block = min(SUM_COLUMNS, max(MIN_BLOCK, next_power_of_2(length)))
    tile = RowTile(SUM_TILE // block, block, unit, warps(call.device, SUM_THREADS), False)
    chunks = ceil_div(length, block)
    most = ceil_div(count, max(1, SUM_PROGRAMS * call.device.multiprocessors // chunks))
    most = ceil_div(max(most, SUM_ROWS), tile.rows) * tile.rows
    groups = ceil_div(count, most)
    if max(chunks * groups, length + block, most) > MAX_GRID:
        return Rejected(f"{count} rows of {length}: more than numbers of 32 bits hold")
    args = row_args(call, NAMES, aligned=unit > 1)
    args.append(("partial_ptr", Pointer("partial", True)))
    sizes = {"length": length, "chunks": chunks, "most": most}
    args += [("count", Scalar("i64", count)), *((name, Scalar("i32", size)) for name, size in sizes.items())]
    pdl = pdl_constant(call.device)
    constants = (("ACTIVATION", call.params["activation"]), ("STAGES", SUM_STAGES), pdl)
    kernel = tile.kernel(activation_sums, *constants)
    adding = RowTile(32, 64, unit, 4, False).kernel(sum_partials, ("db_ptr", None), ("dbias_ptr", None), pdl)
    adding_args = [("dw_ptr", Pointer("partial", True)), ("dweight_ptr", Pointer("dbias", unit > 1))]
    adding_args += [("lines", Scalar("i32", groups)), ("length", Scalar("i32", length))]
    launches = (
        Launch(kernel, (chunks * groups, 1, 1), tuple(args)),
        Launch(adding, (ceil_div(length, 64), 1, 1), tuple(adding_args)),
    )
    return Plan(launches, (Workspace("partial", (groups, length), "float32"),))
