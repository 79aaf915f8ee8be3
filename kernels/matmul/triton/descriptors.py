"""The matrix product in Triton with TMA (sm_90 on).

A descriptor of each operand, encoded on the host, replaces the pointers of `plan.matmul_tile`: no address
arithmetic and no masks; TMA loads zeros for what is out of bounds and does not store it. Programs are
persistent, so that a tile's first loads overlap the epilogue of the tile before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import triton
import triton.language as tl

from portable.kernels._lib.triton.pdl import enter_pdl, supports_pdl
from portable.kernels._lib.triton.rows import MAX_GRID
from portable.kernels.matmul.problem import Operand, Problem
from portable.kernels.matmul.sm90.tma_descriptors import SECTOR, tma_unsupported
from portable.kernels.matmul.triton.tile import activate, bias_of, tile_starts
from portable.layout import ceil_div
from portable.plan import (
    Argument,
    Call,
    Device,
    Launch,
    Plan,
    Pointer,
    Rejected,
    Scalar,
    TritonDescriptor,
    TritonKernel,
    Workspace,
)

TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")
SWIZZLE = 128  # bytes of a TMA box's innermost dimension
PARTIALS = "partials"  # the workspace of split-K
REDUCE_BLOCK = 512
RESERVED = 1024  # bytes of shared memory for barriers


@triton.jit
def load_tile(x, outer, inner, row, col, ROWS: tl.constexpr, COLS: tl.constexpr, BATCHED: tl.constexpr):
    """The tile of a descriptor's matrix (outer, inner) that starts at (row, col)."""
    if BATCHED:
        return x.load([outer, inner, row, col]).reshape(ROWS, COLS)
    else:
        return x.load([row, col])


@triton.jit
def load_b(
    b, outer, inner, k, start_n,
    B_UNIT: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, BATCHED: tl.constexpr,
):  # fmt: skip
    """b's tile, [BLOCK_K, BLOCK_N]."""
    if B_UNIT == "col":
        return load_tile(b, outer, inner, k, start_n, BLOCK_K, BLOCK_N, BATCHED)
    else:
        return load_tile(b, outer, inner, start_n, k, BLOCK_N, BLOCK_K, BATCHED).T


@triton.jit
def epilogue(
    c, c_ptr, c_row, z, z_ptr, bias_ptr, total, outer, inner, start_m, start_n, M, N,
    ACTIVATION: tl.constexpr, BATCHED: tl.constexpr, EPILOGUE_SUBTILE: tl.constexpr,
):  # fmt: skip
    """Bias, activation and the store to c (and of the preactivation to z, which has c's layout), in
    EPILOGUE_SUBTILE groups of columns one after the other: each needs fewer registers and less shared
    memory."""
    rows: tl.constexpr = total.shape[0]
    columns: tl.constexpr = total.shape[1]
    if EPILOGUE_SUBTILE > 1:
        half: tl.constexpr = columns // 2
        left, right = tl.split(tl.permute(tl.reshape(total, (rows, 2, half)), (0, 2, 1)))
        epilogue(c, c_ptr, c_row, z, z_ptr, bias_ptr, left, outer, inner, start_m, start_n, M, N,
               ACTIVATION, BATCHED, EPILOGUE_SUBTILE // 2)  # fmt: skip
        epilogue(c, c_ptr, c_row, z, z_ptr, bias_ptr, right, outer, inner, start_m, start_n + half, M, N,
               ACTIVATION, BATCHED, EPILOGUE_SUBTILE // 2)  # fmt: skip
    else:
        offs_n = start_n + tl.arange(0, columns)
        if bias_ptr is not None:
            total += bias_of(bias_ptr, offs_n, N)[None, :]
        if c is not None:
            if z is not None:
                z.store([start_m, start_n], total.to(z.dtype))
            result = activate(total, ACTIVATION, c.dtype).to(c.dtype)
            if BATCHED:
                c.store([outer, inner, start_m, start_n], result.reshape(1, 1, rows, columns))
            else:
                c.store([start_m, start_n], result)
        else:
            dtype: tl.constexpr = c_ptr.dtype.element_ty
            offs_m = start_m + tl.arange(0, rows)
            within = (offs_m.to(tl.int64) * c_row)[:, None] + offs_n[None, :]
            inside = (offs_m < M)[:, None] & (offs_n < N)[None, :]
            if z_ptr is not None:
                tl.store(z_ptr + within, total.to(dtype), mask=inside)
            tl.store(c_ptr + within, activate(total, ACTIVATION, dtype).to(dtype), mask=inside)


@triton.jit
def matmul_descriptors(
    a, b, c, c_ptr, c_row, c_outer, c_inner, z, z_ptr, bias_ptr,
    M, N, K, k_splits, k_per_split, tiles, inner_batch, work, programs,
    A_UNIT: tl.constexpr, B_UNIT: tl.constexpr, STEPS: tl.constexpr,
    BATCHED: tl.constexpr, ACTIVATION: tl.constexpr, EPILOGUE_SUBTILE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PDL: tl.constexpr, GATED: tl.constexpr, CLAMP_M: tl.constexpr, CLAMP_N: tl.constexpr,
):  # fmt: skip
    """c = activation(a @ b + bias), or, GATED, activation(a @ gate) * (a @ up), b's two matrices along its
    outer dimension: where b's rows are contiguous, one load brings both and one dot multiplies both. A_UNIT
    and B_UNIT name the index with unit stride; the bits of STEPS, from the lowest, say whether a has an outer
    and an inner batch stride, then b. With k_splits > 1 (split-K), matrix s of c is the product over the s-th
    `k_per_split` of K. CLAMP_M, CLAMP_N: a tile that would reach beyond the last row or column starts
    earlier, so that it ends there; what two tiles compute they store with the same bits."""
    enter_pdl(PDL)
    GATE_BESIDE_UP: tl.constexpr = GATED and B_UNIT == "row"
    # Of a flattened loop with two dots ptxas serialises the wgmmas (C7515).
    ONE_DOT: tl.constexpr = GATE_BESIDE_UP or not GATED
    A_OUTER: tl.constexpr = STEPS % 2
    A_INNER: tl.constexpr = STEPS // 2 % 2
    B_OUTER: tl.constexpr = STEPS // 4 % 2
    B_INNER: tl.constexpr = STEPS // 8 % 2
    for pid in tl.range(tl.program_id(0), work, programs, flatten=ONE_DOT):
        split = pid % k_splits
        tile = pid // k_splits
        outer, inner = 0, 0
        if BATCHED:
            outer = tile // tiles // inner_batch
            inner = tile // tiles % inner_batch
            tile = tile % tiles
        start_m, start_n = tile_starts(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        if CLAMP_M:
            start_m = tl.minimum(start_m, M - BLOCK_M)
        if CLAMP_N:
            start_n = tl.minimum(start_n, N - BLOCK_N)
        total = tl.zeros((BLOCK_M, 2 * BLOCK_N if GATE_BESIDE_UP else BLOCK_N), dtype=tl.float32)
        if GATED and not GATE_BESIDE_UP:
            total_up = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(split * k_per_split, tl.minimum(split * k_per_split + k_per_split, K), BLOCK_K):
            if A_UNIT == "col":
                x = load_tile(a, outer * A_OUTER, inner * A_INNER, start_m, k, BLOCK_M, BLOCK_K, BATCHED)
            else:
                x = load_tile(a, outer * A_OUTER, inner * A_INNER, k, start_m, BLOCK_K, BLOCK_M, BATCHED).T
            if GATE_BESIDE_UP:
                y = b.load([0, 0, start_n, k]).reshape(2 * BLOCK_N, BLOCK_K).T
            else:
                y = load_b(
                    b, outer * B_OUTER, inner * B_INNER, k, start_n, B_UNIT, BLOCK_K, BLOCK_N,
                    BATCHED or GATED,
                )  # fmt: skip
            total = tl.dot(x, y, total)
            if GATED and not GATE_BESIDE_UP:
                y = load_b(b, 1, 0, k, start_n, B_UNIT, BLOCK_K, BLOCK_N, True)
                total_up = tl.dot(x, y, total_up)
        to_ptr = c_ptr
        if c is None and BATCHED:
            to_ptr += tl.cast(outer, tl.int64) * c_outer + tl.cast(inner, tl.int64) * c_inner
        elif c is None:
            to_ptr += tl.cast(split, tl.int64) * c_inner
        if GATE_BESIDE_UP:
            total, total_up = tl.split(tl.permute(tl.reshape(total, (BLOCK_M, 2, BLOCK_N)), (0, 2, 1)))
        if GATED:
            total = activate(total, ACTIVATION, b.dtype) * total_up
        epilogue(
            c, to_ptr, c_row, z, z_ptr, bias_ptr, total, outer, inner, start_m, start_n, M, N,
            None if GATED else ACTIVATION, BATCHED, EPILOGUE_SUBTILE,
        )  # fmt: skip


@triton.jit
def splitk_reduce(
    partials_ptr, bias_ptr, c_ptr, c_row, z_ptr, M, N, k_splits,
    ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """c = activation(the sum of the partial products, in order, + bias) for BLOCK columns of one row, and the
    optional preactivation z."""
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offs_n < N
    partials_ptrs = partials_ptr + row * N + offs_n
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(k_splits):
        total += tl.load(partials_ptrs, mask=inside, other=0.0)
        partials_ptrs += M.to(tl.int64) * N
    if bias_ptr is not None:
        total += bias_of(bias_ptr, offs_n, N)
    dtype: tl.constexpr = c_ptr.dtype.element_ty
    if z_ptr is not None:
        tl.store(z_ptr + row * c_row + offs_n, total.to(dtype), mask=inside)
    tl.store(c_ptr + row * c_row + offs_n, activate(total, ACTIVATION, dtype).to(dtype), mask=inside)


def c_columns(problem: Problem, config: Mapping[str, Any]) -> int:
    """Columns of c in a tile of BLOCK_N columns of the product, 16 at least: half of them are gate's, half
    up's."""
    return max(16, config["BLOCK_N"] // 2) if problem.gated else config["BLOCK_N"]


def unfit(problem: Problem, call: Call) -> str | None:
    """Why TMA does not load this problem's a and b, or None."""
    if not call.device.arch.startswith("sm_9"):
        return f"{call.device.arch} has no TMA, or this was not measured on it"
    if problem.dtype == "float32":
        return "float32 products read their operands into registers"
    if problem.K == 0:
        return "K = 0: nothing to load"
    if problem.gated and not problem.b.batch[0]:
        return "gate and up are one matrix in memory"
    if problem.c.unit_stride != "col":
        return "c's rows are not contiguous"
    for x, rows, cols in ((problem.a, problem.M, problem.K), (problem.b, problem.K, problem.N)):
        if not tma_supported(x, rows, cols):
            return f"TMA cannot load {x.tensor}"
    sides = (call.config["BLOCK_M"], c_columns(problem, call.config), call.config["BLOCK_K"])
    if min(sides) * problem.a.itemsize < SWIZZLE:
        return f"a tile's rows are shorter than the swizzle of {SWIZZLE} bytes"
    return None


def tma_supported(x: Operand, rows: int, cols: int) -> bool:
    """Whether TMA can load x: 16-byte aligned rows that do not overlap."""
    return x.unit_stride is not None and tma_unsupported(x, rows, cols) is None


def descriptor(
    name: str,
    x: Operand,
    rows: int,
    cols: int,
    batch: tuple[int, int],
    block: tuple[int, int],
    promotion: int = 256,
    matrices: int = 1,
) -> list[tuple[str, Argument]]:
    """Arguments of one operand: its descriptor, of rank 4 if there is more than one matrix, and the sizes and
    strides that Triton passes beside it. A broadcast batch dimension has size 1. `matrices`: of the outer
    batch dimension, in one load."""
    sizes: tuple[int, ...] = (cols, rows)
    if x.unit_stride == "row":
        sizes, block = (rows, cols), (block[1], block[0])
    steps: tuple[int, ...] = (x.leading,)
    box: tuple[int, ...] = (min(block[1], SWIZZLE // x.itemsize), block[0])
    tile: tuple[int, ...] = block
    if batch != (1, 1):
        outer, inner = x.batch
        sizes += (batch[1] if inner else 1, batch[0] if outer else 1)
        steps += (inner or x.leading, outer or x.leading)
        box, tile = (*box, 1, matrices), (matrices, 1, *block)
    strides = tuple(step * x.itemsize for step in steps)
    return TritonDescriptor(x.tensor, x.dtype, sizes, strides, box, promotion, block=tile).arguments(name)


def promotion(x: Operand, block_m: int) -> int:
    """Bytes that a load brings to L2. H200: with few rows, which are memory-bound, 128 are 0 to 3 % faster
    than 256 (2026-11-22), with lines at no multiple of a sector 12 to 19 % (2026-11-27)."""
    return 128 if block_m <= 64 or x.leading * x.itemsize % SECTOR else 256


def plan_descriptors(problem: Problem, call: Call) -> Plan | Rejected:
    """One launch for a problem that is not `unfit`, or two with split-K."""
    config, device = call.config, call.device
    config = {**config, "BLOCK_N": c_columns(problem, config)}
    block_m, block_n, block_k = (config[name] for name in TILE[:3])
    M, N, K, a, b, c = problem.M, problem.N, problem.K, problem.a, problem.b, problem.c
    tiles = ceil_div(M, block_m) * ceil_div(N, block_n)
    k_per_split = k_per_split_of(problem, tiles, block_k, device)
    k_splits = ceil_div(K, k_per_split)
    work = tiles * problem.batches * k_splits
    by_tma = k_splits == 1 and tma_supported(c, M, N)
    # With 128 columns c's staging leaves room for 4 stages of 128x256x64. Through pointers its addresses and
    # masks take registers: with 128 columns activations spilled up to 264 bytes; with z and 64 columns 80.
    subtiles = max(1, block_n // (128 if by_tma else 32 if problem.preactivation else 64))
    columns = 2 * block_n if problem.gated else block_n
    needed = (block_m + columns) * block_k * config["num_stages"] + by_tma * block_m * block_n // subtiles
    needed = needed * a.itemsize + RESERVED
    if needed > device.shared_memory:
        most = device.shared_memory
        return Rejected(f"the config needs {needed} bytes of shared memory; {device.arch} has {most}")
    programs = min(work, device.multiprocessors * resident(config, columns, needed, device))
    if max(M, N, K, work + programs, k_per_split + K) > MAX_GRID - 256:
        return Rejected("row, column and tile indices exceed 32 bits")

    pdl = k_splits == 1 and uses_pdl(device, needed)
    args = descriptor("a", a, M, K, problem.batch, (block_m, block_k), promotion(a, block_m))
    matrices = 2 if problem.gated and b.unit_stride == "row" else 1
    args += descriptor("b", b, K, N, problem.batch_of(b), (block_k, block_n), promotion(b, block_m), matrices)
    constants: list[tuple[str, Any]] = []
    if by_tma:
        args += descriptor("c", c, M, N, problem.batch, (block_m, block_n // subtiles))
        constants += [("c_ptr", None), ("c_row", 0), ("c_outer", 0), ("c_inner", 0), ("z_ptr", None)]
        if problem.preactivation:
            z = replace(c, tensor=problem.preactivation)
            args += descriptor("z", z, M, N, problem.batch, (block_m, block_n // subtiles))
        else:
            constants.append(("z", None))
    else:
        to = Operand(PARTIALS, "float32", N, 1, (0, M * N), 16) if k_splits > 1 else c
        constants += [("c", None), ("z", None)]
        args.append(("c_ptr", Pointer(to.tensor, to.alignment >= 16)))
        strides = {"c_row": to.row, "c_outer": to.batch[0], "c_inner": to.batch[1]}
        args += [(name, Scalar("i64", step, step % 16 == 0)) for name, step in strides.items()]
        if problem.preactivation and k_splits == 1:
            args.append(("z_ptr", Pointer(problem.preactivation, c.alignment >= 16)))
        else:
            constants.append(("z_ptr", None))
    if problem.bias and k_splits == 1:
        args.append(("bias_ptr", Pointer(problem.bias, problem.bias_alignment >= 16)))
    else:
        constants.append(("bias_ptr", None))
    sizes = {"M": M, "N": N, "K": K, "k_splits": k_splits, "k_per_split": k_per_split, "tiles": tiles}
    sizes |= {"inner_batch": problem.batch[1], "work": work, "programs": programs}
    if k_splits == 1:
        constants.append(("k_splits", sizes.pop("k_splits")))
    args += [(name, Scalar("i32", size, name == "N" and size % 16 == 0)) for name, size in sizes.items()]
    batched = problem.batches > 1
    constants += [
        ("A_UNIT", a.unit_stride),
        ("B_UNIT", b.unit_stride),
        ("STEPS", sum(bool(step) << bit for bit, step in enumerate((*a.batch, *b.batch))) if batched else 0),
        ("BATCHED", batched),
        ("ACTIVATION", problem.activation if k_splits == 1 else None),
        ("EPILOGUE_SUBTILE", subtiles),
        *((name, config[name]) for name in TILE),
        ("PDL", pdl),
        ("GATED", problem.gated),
        # Lines outside an operand take TMA longer than those inside it. 2026-11-27, H200, 72x4096x4096: in
        # tiles of 64 rows 13.7 us, in one of 128 22.0; 4000x12000x5000 with a K-major b 1.7 % faster.
        ("CLAMP_M", a.unit_stride == "col" and block_m < M and M % block_m > 0),
        ("CLAMP_N", b.unit_stride == "row" and block_n < N and N % block_n > 0),
    ]
    warps, stages = config["num_warps"], config["num_stages"]
    kernel = TritonKernel(matmul_descriptors, tuple(constants), warps, stages)
    product = Launch(kernel, (programs, 1, 1), tuple(args))
    if k_splits == 1:
        return Plan((product,))
    return Plan(
        (product, plan_reduce(problem, k_splits)), (Workspace(PARTIALS, (k_splits, M, N), "float32"),)
    )


def k_per_split_of(problem: Problem, tiles: int, block_k: int, device: Device) -> int:
    """K per split: all of it, without split-K, unless the tiles leave more than half of the multiprocessors
    idle.

    2026-11-21: 128x2048x8192 1.10 of torch with 4 splits, 0.46 without; 128x8192x8192, whose tiles fill the
    GPU, 0.74 with 2 splits and 0.92 without: the partial sums and the second launch take 4 us."""
    steps = ceil_div(problem.K, block_k)
    k_splits = min(device.multiprocessors // max(tiles, 1), steps // 4, 16)
    if problem.batches > 1 or problem.gated or steps < 16 or k_splits < 2:
        k_splits = 1
    return ceil_div(steps, k_splits) * block_k


def uses_pdl(device: Device, needed: int) -> bool:
    """Whether blocks that need this much shared memory use programmatic dependent launch: on Hopper with one
    block a multiprocessor. With several, the next launch's blocks would crowd on the multiprocessors that are
    free first."""
    return supports_pdl(device) and 2 * needed > device.shared_memory


def resident(config: Mapping[str, Any], columns: int, needed: int, device: Device) -> int:
    """Blocks that fit a multiprocessor, by shared memory and, roughly, by registers."""
    threads = config["num_warps"] * device.warp_size
    registers = config["BLOCK_M"] * columns // threads + 56
    return max(1, min((device.shared_memory + 1024) // (needed + 1024), 65536 // (threads * registers)))


def plan_reduce(problem: Problem, k_splits: int) -> Launch:
    """The launch that adds the partial sums, in order, with bias and activation."""
    M, N, c = problem.M, problem.N, problem.c
    args: list[tuple[str, Argument]] = [(f"{PARTIALS}_ptr", Pointer(PARTIALS, True))]
    constants: list[tuple[str, Any]] = [("ACTIVATION", problem.activation), ("BLOCK", REDUCE_BLOCK)]
    if problem.bias:
        args.append(("bias_ptr", Pointer(problem.bias, problem.bias_alignment >= 16)))
    else:
        constants.append(("bias_ptr", None))
    args.append(("c_ptr", Pointer(c.tensor, c.alignment >= 16)))
    args.append(("c_row", Scalar("i64", c.row, c.row % 16 == 0)))
    if problem.preactivation:
        args.append(("z_ptr", Pointer(problem.preactivation, c.alignment >= 16)))
    else:
        constants.append(("z_ptr", None))
    sizes = {"M": M, "N": N, "k_splits": k_splits}
    args += [(name, Scalar("i32", size, name == "N" and size % 16 == 0)) for name, size in sizes.items()]
    kernel = TritonKernel(splitk_reduce, tuple(constants), num_warps=4, num_stages=1)
    return Launch(kernel, (M, ceil_div(N, REDUCE_BLOCK), 1), tuple(args))
