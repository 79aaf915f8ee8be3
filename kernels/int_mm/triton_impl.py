"""int_mm and int8_scaled_mm in Triton, for every layout and vendor.

Where TMA can load the operands, scaled_mm's `triton_descriptors.py` plans the call. Elsewhere each program of
`int_tile` computes one BLOCK_M x BLOCK_N tile, with loads through pointers; the matrix cores of all GPUs that
are supported add products of int8 in int32. The sums over k of b's columns, for zero points, are taken from
the tiles on their way.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from portable.kernels._lib.triton.pdl import enter_pdl
from portable.kernels._lib.triton.rows import UNFUSED
from portable.kernels.matmul.problem import Problem
from portable.kernels.matmul.triton.descriptors import uses_pdl
from portable.kernels.matmul.triton.plan import (
    COMPILER,
    TILE,
    arch_number,
    layout_constants,
    operand_args,
    shared_bytes,
    too_large,
    unit_of,
)
from portable.kernels.matmul.triton.tile import bias_of, tile_starts
from portable.kernels.scaled_mm.problem import Scale, product_of
from portable.kernels.scaled_mm.triton_descriptors import plan_descriptors, unfit
from portable.kernels.scaled_mm.triton_impl import at_tile, fitted
from portable.layout import ceil_div
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel

LONGEST = 131071
"""Products of two int8 whose sum is below 2^31, whatever they are."""
SCALES = {"sa": ("scale_a", 0), "sb": ("scale_b", 1), "zero": ("a_zero_point", 0)}
"""By the kernel's name of a vector, its tensor and which of that tensor's strides it has."""


@triton.jit
def int_tile(
    a_ptr, a_row, a_col, b_ptr, b_row, b_col, c_ptr, c_row, c_col,
    sa_ptr, sa_step, sb_ptr, sb_step, zero_ptr, zero_step, bias_ptr, M, N, K,
    A_UNIT: tl.constexpr, B_UNIT: tl.constexpr, C_UNIT: tl.constexpr,
    UNIT: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr, LONG: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One tile of c. A_UNIT, B_UNIT and C_UNIT name the index with unit stride ("row", "col" or None), whose
    stride is the constant 1. Without scales (sa_ptr is None) c is the sums themselves. LONG: sums of 65536
    products, which no instruction saturates, are added up modulo 2^32."""
    enter_pdl(PDL)
    start_m, start_n = tile_starts(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    a_ptr, a_row, a_col, a_step, b_ptr, b_row, b_col, b_step, c_ptr, c_row, c_col, M, N, K = at_tile(
        a_ptr, a_row, a_col, b_ptr, b_row, b_col, c_ptr, c_row, c_col, start_m, start_n, M, N, K,
        A_UNIT, B_UNIT, C_UNIT, UNIT, WIDE, BLOCK_K,
    )  # fmt: skip
    offs_m = tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    in_m = offs_m < M - start_m
    in_n = offs_n < N - start_n
    a_ptrs = a_ptr + (offs_m[:, None] * a_row + offs_k[None, :] * a_col)
    b_ptrs = b_ptr + (offs_k[:, None] * b_row + offs_n[None, :] * b_col)

    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    part = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    of_columns = tl.zeros((BLOCK_N,), dtype=tl.int32)
    for start in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_ptrs, mask=in_m[:, None], other=0)
            b = tl.load(b_ptrs, mask=in_n[None, :], other=0)
        else:
            in_k = offs_k < K - start
            a = tl.load(a_ptrs, mask=in_m[:, None] & in_k[None, :], other=0)
            b = tl.load(b_ptrs, mask=in_n[None, :] & in_k[:, None], other=0)
        part = tl.dot(a, b, part, out_dtype=tl.int32)
        if LONG:  # noqa: SIM102 (only this one is known when it is compiled)
            if (start + BLOCK_K) % 65536 == 0:
                total += part
                part = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
        if zero_ptr is not None:
            of_columns += tl.sum(b.to(tl.int32), axis=0)
        a_ptrs += a_step
        b_ptrs += b_step

    total += part
    rows = (start_m + offs_m).to(tl.int64)
    if zero_ptr is not None:
        total -= tl.load(zero_ptr + rows * zero_step, mask=in_m, other=0)[:, None] * of_columns[None, :]
    within = offs_m[:, None] * c_row + offs_n[None, :] * c_col
    if sa_ptr is None:
        tl.store(c_ptr + within, total, mask=in_m[:, None] & in_n[None, :])
    else:
        columns = (start_n + offs_n).to(tl.int64)
        scale_b = tl.load(sb_ptr + columns * sb_step, mask=in_n, other=0.0)
        scale_a = tl.load(sa_ptr + rows * sa_step, mask=in_m, other=0.0)
        value = total.to(tl.float32) * scale_a[:, None] * scale_b[None, :]
        if bias_ptr is not None:
            value += bias_of(bias_ptr + start_n, offs_n, N - start_n)[None, :]
        tl.store(c_ptr + within, value.to(c_ptr.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


def int_mm(call: Call) -> Plan | Rejected:
    """Plan c [M, N] = a [M, K] @ b [K, N]."""
    return _plan(call, product_of(call, "a", "b"), ())


def int8_scaled_mm(call: Call) -> Plan | Rejected:
    """Plan c [M, N] of mat_a, mat_b, scale_a [M, 1], scale_b [1, N] and, where they are there, bias [N] and
    a_zero_point [M, 1]."""
    scales = tuple(Scale(name, *call[name].strides) for name in ("scale_a", "scale_b"))
    return _plan(call, product_of(call), scales)


def _plan(call: Call, product: Problem, scales: tuple[Scale, ...]) -> Plan | Rejected:
    """One launch, with the tile and compiler options of `call.config`: by TMA where it loads the operands and
    no sums of b's columns are needed."""
    if not call.has("a_zero_point") and unfit(product, call) is None:
        return plan_descriptors(product, call, scales)
    M, N, K, device = product.M, product.N, product.K, call.device
    if None in (product.a.unit_stride, product.b.unit_stride):
        return Rejected("an operand has no unit stride")
    unit = unit_of(product)
    config = fitted(call.config, unit, device, native=True)
    needed = shared_bytes(product, config, device)
    block_m, block_n, block_k = (config[name] for name in TILE[:3])
    tiles = ceil_div(M, block_m) * ceil_div(N, block_n)
    if rejected := too_large((product.M, product.N, product.K), tiles, needed, device):
        return rejected

    pdl = uses_pdl(device, needed)
    args: list[tuple[str, Argument]] = []
    constants: list[tuple[str, Any]] = [
        *layout_constants(product, unit, block_k),
        # mma.sync, with which Triton multiplies tiles of few rows and on GPUs before Hopper, saturates.
        ("LONG", K > LONGEST and arch_number(device) > 0),
        *((name, config[name]) for name in TILE),
        ("PDL", pdl),
    ]
    for name, x in (("a", product.a), ("b", product.b), ("c", product.c)):
        without = (f"{name}_outer", f"{name}_inner")  # there is no batch
        args += [each for each in operand_args(name, x, unit > 1) if each[0] not in without]
    for name, (tensor, axis) in SCALES.items():
        if call.has(tensor):
            args += [
                (f"{name}_ptr", Pointer(tensor)),
                (f"{name}_step", Scalar("i64", call[tensor].strides[axis])),
            ]
        else:
            constants += [(f"{name}_ptr", None), (f"{name}_step", 0)]
    if product.bias:
        args.append(("bias_ptr", Pointer("bias", unit > 1)))
    else:
        constants.append(("bias_ptr", None))
    args += [(name, Scalar("i32", value)) for name, value in (("M", M), ("N", N), ("K", K))]
    warps, stages = (config[name] for name in COMPILER)
    if device.arch.startswith("gfx11"):
        stages = 1  # of two, Triton 3.7 leaves out the wait for the stores to LDS (docs/found/)
    options = tuple((name, value) for name, value in config.items() if name not in TILE + COMPILER)
    kernel = TritonKernel(int_tile, tuple(constants), warps, stages, (*options, *UNFUSED))
    return Plan((Launch(kernel, (tiles, 1, 1), tuple(args)),))
