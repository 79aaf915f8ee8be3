"""int4_mm in Triton on Hopper, of many rows: the weight's numbers are made once, in memory, and come by TMA.

A code less its zero point is exact in 16 bits; a group's scale stays in float32 and multiplies the sum of the
group's products, or of a part of them, as in `triton_impl.py`, which makes the numbers for each tile again.
Programs of the product are persistent."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from portable.kernels._lib.triton.pdl import enter_pdl, pdl_constant
from portable.kernels._lib.triton.rows import MAX_GRID
from portable.kernels.int4_mm.reference import ZERO_POINT
from portable.kernels.int4_mm.triton_impl import TILE, biased
from portable.kernels.matmul.problem import Operand
from portable.kernels.matmul.triton.descriptors import (
    RESERVED,
    descriptor,
    epilogue,
    promotion,
    resident,
    tma_supported,
    uses_pdl,
)
from portable.kernels.matmul.triton.plan import COMPILER
from portable.kernels.matmul.triton.tile import tile_starts
from portable.layout import ceil_div, rows
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel, Workspace

FEWEST_ROWS = 1024
"""H200, 2026-11-27, 14336x4096: 2048 rows 563 us, 660 where tiles make the numbers; by these times the
first launch costs more than it saves with fewer than some 700."""
NUMBERS, SCALES = "numbers", "scales"
"""Workspaces: codes less their zero points [N, K]; float32 scales [G, N]."""
CHUNK = 64
"""Bytes of a group of which a program of the first launch makes numbers at a time."""
CODE_ROWS = 16
SUBTILE = 64
"""Columns of y that a program stores at a time."""


@triton.jit
def int4_numbers(
    w_ptr, s_ptr, s_row, s_col, z_ptr, z_row, z_col, numbers_ptr, scales_ptr, N, G, P,
    ZERO: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One group of ROWS rows of the weight: its numbers, and its scales in float32."""
    enter_pdl(PDL)
    row, group = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1).to(tl.int64)
    there = row < N
    dtype: tl.constexpr = numbers_ptr.dtype.element_ty
    scale = tl.load(s_ptr + row.to(tl.int64) * s_row + group * s_col, mask=there, other=0.0)
    tl.store(scales_ptr + group * N + row, scale.to(tl.float32), mask=there)
    zero = biased(tl.full((ROWS,), ZERO, tl.int16), dtype)
    if z_ptr is not None:
        points = tl.load(z_ptr + row.to(tl.int64) * z_row + group * z_col, mask=there, other=0)
        zero = biased(points.to(tl.int16), dtype)
    first = (row.to(tl.int64) * G + group) * P
    byte, column = tl.arange(0, BLOCK), tl.arange(0, 2 * BLOCK)
    for start in range(0, P, BLOCK):
        codes = tl.load(w_ptr + (first + start)[:, None] + byte[None, :], mask=there[:, None], other=0)
        codes = codes.to(tl.int16)
        low, high = biased(codes & 15, dtype) - zero[:, None], biased(codes >> 4, dtype) - zero[:, None]
        numbers = tl.join(low, high).reshape(ROWS, 2 * BLOCK)
        tl.store(numbers_ptr + 2 * (first + start)[:, None] + column[None, :], numbers, mask=there[:, None])


@triton.jit
def int4_widened(
    x, numbers, y, scales_ptr, bias_ptr, M, N, K, group, work, programs,
    EPILOGUE_SUBTILE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """y = x @ w.T + bias by tiles; x, numbers and y are descriptors, BLOCK_K divides a `group` of k."""
    enter_pdl(PDL)
    for pid in tl.range(tl.program_id(0), work, programs, flatten=True):
        start_m, start_n = tile_starts(pid, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        offs_n = start_n + tl.arange(0, BLOCK_N)
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in tl.range(0, K, BLOCK_K):
            part = tl.dot(x.load([start_m, k]), numbers.load([start_n, k]).T)
            place = tl.cast(k // group, tl.int64) * N
            total += part * tl.load(scales_ptr + place + offs_n, mask=offs_n < N, other=0.0)[None, :]
        epilogue(
            y, None, 0, None, None, bias_ptr, total, 0, 0, start_m, start_n, M, N,
            None, False, EPILOGUE_SUBTILE,
        )  # fmt: skip


def plan(call: Call) -> Plan | Rejected:
    """`int4_numbers` and `int4_widened`."""
    view, (N, G, P) = rows(call["x"]), call["weight"].shape
    M, K, dtype = view.count, 2 * G * P, call["x"].dtype
    config, device = call.config, call.device
    block_m, block_n, block_k = (config[name] for name in TILE[:3])
    if M < FEWEST_ROWS:
        return Rejected(f"{M} rows: fewer than {FEWEST_ROWS} do not pay for numbers in memory")
    if call.has("offset"):
        return Rejected("an offset: the kernel of tiles adds its part")
    if min(N, K) == 0 or P % CHUNK or (2 * P) % block_k:
        return Rejected(f"groups of {2 * P} k: not a multiple of {max(2 * CHUNK, block_k)}")
    x = Operand("x", dtype, view.stride, 1, (0, 0), call["x"].alignment)
    numbers = Operand(NUMBERS, dtype, K, 1, (0, 0), 16)
    y = Operand("y", dtype, N, 1, (0, 0), call["y"].alignment)
    for operand, lines, length in ((x, M, K), (y, M, N)):
        if not tma_supported(operand, lines, length):
            return Rejected(f"TMA cannot reach {operand.tensor}")
    needed = (block_m + block_n) * block_k * 2 * config["num_stages"] + block_m * SUBTILE * 2 + RESERVED
    if needed > device.shared_memory:
        return Rejected(
            f"the config needs {needed} bytes of shared memory; {device.arch} has {device.shared_memory}"
        )
    work = ceil_div(M, block_m) * ceil_div(N, block_n)
    # A thread has a part's sums beside the total.
    programs = min(work, device.multiprocessors * resident(config, 2 * block_n, needed, device))
    if max(M, N, K, work + programs) > MAX_GRID - 256:
        return Rejected("row, column and tile indices exceed 32 bits")
    args = descriptor("x", x, M, K, (1, 1), (block_m, block_k), promotion(x, block_m))
    args += descriptor("numbers", numbers, N, K, (1, 1), (block_n, block_k), promotion(numbers, block_m))
    args += descriptor("y", y, M, N, (1, 1), (block_m, min(block_n, SUBTILE)))
    args.append((f"{SCALES}_ptr", Pointer(SCALES, True)))
    if call.has("bias"):
        args.append(("bias_ptr", Pointer("bias")))
    sizes = {"M": M, "N": N, "K": K, "group": 2 * P, "work": work, "programs": programs}
    args += [(name, Scalar("i32", size, name == "N" and size % 16 == 0)) for name, size in sizes.items()]
    constants: tuple[tuple[str, Any], ...] = (
        *(() if call.has("bias") else (("bias_ptr", None),)),
        ("EPILOGUE_SUBTILE", max(1, block_n // SUBTILE)),
        *((name, config[name]) for name in TILE),
        ("PDL", uses_pdl(device, needed)),
    )
    warps, stages = (config[name] for name in COMPILER)
    product = Launch(TritonKernel(int4_widened, constants, warps, stages), (programs, 1, 1), tuple(args))
    spaces = Workspace(NUMBERS, (N, K), dtype), Workspace(SCALES, (G, N), "float32")
    return Plan((_numbers(call, N, G, P), product), spaces)


def _numbers(call: Call, N: int, G: int, P: int) -> Launch:
    constants: list[tuple[str, Any]] = []
    if not call.has("zero_point"):
        constants += [("z_ptr", None), ("z_row", 0), ("z_col", 0)]
    constants += [
        ("ZERO", ZERO_POINT),
        ("ROWS", CODE_ROWS),
        ("BLOCK", CHUNK),
        pdl_constant(call.device),
    ]
    args: list[tuple[str, Argument]] = [("w_ptr", Pointer("weight", call["weight"].alignment >= 16))]
    for name, tensor in (("s", "scale"), ("z", "zero_point")):
        if call.has(tensor):
            row, col = call[tensor].strides
            args += [(f"{name}_ptr", Pointer(tensor))]
            args += [(f"{name}_row", Scalar("i64", row)), (f"{name}_col", Scalar("i64", col))]
    args += [("numbers_ptr", Pointer(NUMBERS, True)), ("scales_ptr", Pointer(SCALES, True))]
    args += [(name, Scalar("i32", value, name == "P")) for name, value in (("N", N), ("G", G), ("P", P))]
    kernel = TritonKernel(int4_numbers, tuple(constants), 4)
    return Launch(kernel, (ceil_div(N, CODE_ROWS), G, 1), tuple(args))
