"""Both ops in Triton: silu_and_mul's tile, then quantize_fp8's scales and codes."""

from __future__ import annotations

from dataclasses import replace

import triton
import triton.language as tl

from portable.kernels._lib.minifloat import largest
from portable.kernels._lib.triton.activations import activate
from portable.kernels._lib.triton.minifloat import encode
from portable.kernels._lib.triton.rows import (
    divisible,
    row_args,
    row_starts,
    row_tile,
    tile_launch,
    too_large,
    unit_of,
    warps,
)
from portable.kernels.quantize_fp8.triton_impl import (
    GROUP,
    RESIDENT,
    RESIDENT_AMD,
    as_bytes,
    code_constants,
    group_tile,
    magnitudes,
    plan_groups,
    scale_of,
)
from portable.layout import rows
from portable.plan import Argument, Call, Plan, Pointer, Rejected, Scalar

ELEMENTS_UNALIGNED = 4
"""Elements of gate and of up that a thread has where each has a pointer and a mask of its own: of 8, short
rows of float32 spill on sm_90a."""


@triton.jit
def gated(gate_ptr, up_ptr, mask):
    """silu(gate) * up in float32, rounded to their type; 0 where there is nothing."""
    dtype = gate_ptr.dtype.element_ty
    WIDE: tl.constexpr = dtype.primitive_bitwidth > 16
    gate = tl.load(gate_ptr, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr, mask=mask, other=0.0).to(tl.float32)
    return (activate(gate, "silu", WIDE) * up).to(dtype)


@triton.jit
def gated_quantize_rows(
    x_ptr, x_stride, q_ptr, q_stride, scale_ptr, count, length, eps, largest,
    POWER_OF_2: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows of at most BLOCK elements; gate and up are two neighbouring rows of x."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < count
    col = tl.arange(0, BLOCK)[None, :]
    mask = there[:, None] & (col < divisible(length, UNIT))
    gate = row_starts(x_ptr, 2 * row, x_stride, UNIT) + col
    up = row_starts(x_ptr, 2 * row + 1, x_stride, UNIT) + col
    y = gated(gate, up, mask)
    scale = scale_of(tl.max(magnitudes(y), axis=1), eps, largest, POWER_OF_2)
    tl.store(scale_ptr + row, scale, mask=there)
    codes = encode(y.to(tl.float32) * tl.div_rn(1.0, scale)[:, None], FORMAT, CONVERT)
    tl.store(row_starts(q_ptr, row, q_stride, UNIT) + col, codes, mask=mask)


@triton.jit
def gated_quantize_stream(
    x_ptr, x_stride, q_ptr, q_stride, scale_ptr, length, eps, largest,
    POWER_OF_2: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr,
    UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of any length, read twice, the second time backwards."""
    row = tl.program_id(0).to(tl.int64)
    gate = x_ptr + 2 * row * divisible(x_stride, UNIT)
    up = gate + divisible(x_stride, UNIT)
    q_row = q_ptr + row * divisible(q_stride, UNIT)
    length = divisible(length, UNIT)
    lane = tl.arange(0, BLOCK)
    most = tl.zeros([BLOCK], tl.int32)
    for start in range(0, length, BLOCK):
        col = start + lane
        most = tl.maximum(most, magnitudes(gated(gate + col, up + col, col < length)))
    scale = scale_of(tl.max(most, axis=0), eps, largest, POWER_OF_2)
    tl.store(scale_ptr + row, scale)
    inverse = tl.div_rn(1.0, scale)
    for start in range(0, length, BLOCK):
        col = (tl.cdiv(length, BLOCK) * BLOCK - BLOCK - start) + lane
        y = gated(gate + col, up + col, col < length).to(tl.float32)
        tl.store(q_row + col, encode(y * inverse, FORMAT, CONVERT), mask=col < length)


@triton.jit
def gated_quantize_groups(
    x_ptr, x_stride, q_ptr, q_stride, scale_ptr, groups, across, length, eps, largest,
    POWER_OF_2: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS of the `groups`, of BLOCK columns each; a row of q has `across` of them."""
    group, there, row, first, lane, mask = group_tile(groups, across, length, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    gate = row_starts(x_ptr, 2 * row, x_stride, UNIT) + first + lane
    up = row_starts(x_ptr, 2 * row + 1, x_stride, UNIT) + first + lane
    y = gated(gate, up, mask)
    scale = scale_of(tl.max(magnitudes(y), axis=1), eps, largest, POWER_OF_2)
    tl.store(scale_ptr + group, scale, mask=there)
    codes = encode(y.to(tl.float32) * tl.div_rn(1.0, scale)[:, None], FORMAT, CONVERT)
    tl.store(row_starts(q_ptr, row, q_stride, UNIT) + first + lane, codes, mask=mask)


def _numbers(call: Call) -> list[tuple[str, Argument]]:
    most = largest(call["q"].dtype)
    return [("eps", Scalar("f32", call.params["eps"])), ("largest", Scalar("f32", most))]


def row(call: Call) -> Plan | Rejected:
    """q and scale from x, [*, 2, N]: one launch."""
    count, length, _ = rows(call["q"])
    names = ("x", "q")
    unit = unit_of(call, names, names, length)
    tile = row_tile(call, length, unit, RESIDENT, RESIDENT_AMD)
    if unit == 1 and not tile.streams:
        threads = tile.rows * tile.block // ELEMENTS_UNALIGNED
        tile = replace(tile, num_warps=max(tile.num_warps, warps(call.device, threads)))
    if rejected := too_large(count, length, tile):
        return rejected
    args = [*as_bytes(row_args(call, names, unit > 1)), ("scale_ptr", Pointer("scale"))]
    if not tile.streams:
        args.append(("count", Scalar("i64", count)))
    args += [("length", Scalar("i32", length)), *_numbers(call)]
    function = gated_quantize_stream if tile.streams else gated_quantize_rows
    return Plan((tile_launch(call, tile, function, args, count, *code_constants(call)),))


def groups(call: Call) -> Plan | Rejected:
    """q and a scale per 128 columns: one launch."""
    return plan_groups(call, gated_quantize_groups, GROUP, code_constants(call), _numbers(call))
