"""The matrix product in Triton where a copy engine fetches whole tiles (TMA: sm_90 on).

A descriptor of each operand, encoded on the host, replaces the pointers of `triton_impl.matmul_tile`: no
address arithmetic and no masks; the engine fills what lies outside with zeros, or leaves it out. Programs
stay for several tiles, so that the first copies of a tile run under the epilogue of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import triton
import triton.language as tl

from portable.backends.cuda.tensor_map import TritonDescriptor
from portable.kernels._lib.triton.rows import MAX_GRID
from portable.kernels.matmul.problem import Operand, Problem
from portable.kernels.matmul.sm90.tma_descriptors import no_map
from portable.kernels.matmul.triton.tile import activate, bias_of, enter_pdl, tile_starts
from portable.plan import (
    Argument,
    Call,
    Device,
    Launch,
    Plan,
    Pointer,
    Rejected,
    Scalar,
    TritonKernel,
    Workspace,
)

TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")
SWIZZLE = 128  # bytes of a tile's line that the engine copies at a time
SUMS = "sums"  # the workspace of split products
SUM_BLOCK = 512
RESERVED = 1024  # bytes for barriers


@triton.jit
def fetch(x, outer, inner, row, col, ROWS: tl.constexpr, COLS: tl.constexpr, BATCHED: tl.constexpr):
    """The tile of a descriptor's matrix (outer, inner) that starts at (row, col)."""
    if BATCHED:
        return x.load([outer, inner, row, col]).reshape(ROWS, COLS)
    else:
        return x.load([row, col])


@triton.jit
def finish(
    c, c_ptr, c_row, z, z_ptr, bias_ptr, total, outer, inner, start_m, start_n, M, N,
    ACTIVATION: tl.constexpr, BATCHED: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Bias, activation and the way to c (and, before the activation, to a z that lies as c does), for PARTS
    groups of columns one after the other: each then needs fewer registers, and less shared memory on its way
    out."""
    rows: tl.constexpr = total.shape[0]
    columns: tl.constexpr = total.shape[1]
    if PARTS > 1:
        half: tl.constexpr = columns // 2
        left, right = tl.split(tl.permute(tl.reshape(total, (rows, 2, half)), (0, 2, 1)))
        finish(c, c_ptr, c_row, z, z_ptr, bias_ptr, left, outer, inner, start_m, start_n, M, N, ACTIVATION,
               BATCHED, PARTS // 2)  # fmt: skip
        finish(c, c_ptr, c_row, z, z_ptr, bias_ptr, right, outer, inner, start_m, start_n + half, M, N,
               ACTIVATION, BATCHED, PARTS // 2)  # fmt: skip
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
    M, N, K, splits, slice, tiles, inner_batch, work, programs,
    A_UNIT: tl.constexpr, B_UNIT: tl.constexpr, STEPS: tl.constexpr,
    BATCHED: tl.constexpr, ACTIVATION: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """c = activation(a @ b + bias). A_UNIT and B_UNIT say along which index neighbours touch; the bits of
    STEPS, from the lowest, whether a steps with outer, with inner, and b likewise. With more than one split,
    matrix s of c is the product over the s-th `slice` of K."""
    enter_pdl(PDL)
    A_OUTER: tl.constexpr = STEPS % 2
    A_INNER: tl.constexpr = STEPS // 2 % 2
    B_OUTER: tl.constexpr = STEPS // 4 % 2
    B_INNER: tl.constexpr = STEPS // 8 % 2
    for pid in tl.range(tl.program_id(0), work, programs, flatten=True):
        split = pid % splits
        tile = pid // splits
        outer, inner = 0, 0
        if BATCHED:
            outer = tile // tiles // inner_batch
            inner = tile // tiles % inner_batch
            tile = tile % tiles
        start_m, start_n = tile_starts(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(split * slice, tl.minimum(split * slice + slice, K), BLOCK_K):
            if A_UNIT == "col":
                x = fetch(a, outer * A_OUTER, inner * A_INNER, start_m, k, BLOCK_M, BLOCK_K, BATCHED)
            else:
                x = fetch(a, outer * A_OUTER, inner * A_INNER, k, start_m, BLOCK_K, BLOCK_M, BATCHED).T
            if B_UNIT == "col":
                y = fetch(b, outer * B_OUTER, inner * B_INNER, k, start_n, BLOCK_K, BLOCK_N, BATCHED)
            else:
                y = fetch(b, outer * B_OUTER, inner * B_INNER, start_n, k, BLOCK_N, BLOCK_K, BATCHED).T
            total = tl.dot(x, y, total)
        to_ptr = c_ptr
        if c is None and BATCHED:
            to_ptr += tl.cast(outer, tl.int64) * c_outer + tl.cast(inner, tl.int64) * c_inner
        elif c is None:
            to_ptr += tl.cast(split, tl.int64) * c_inner
        finish(c, to_ptr, c_row, z, z_ptr, bias_ptr, total, outer, inner, start_m, start_n, M, N, ACTIVATION,
               BATCHED, PARTS)  # fmt: skip


@triton.jit
def sum_splits(
    sums_ptr, bias_ptr, c_ptr, c_row, z_ptr, M, N, splits, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """c = activation(the splits' products, summed in their order, + bias) for BLOCK columns of one row, and z
    what the activation takes, if there is one."""
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offs_n < N
    sums_ptrs = sums_ptr + row * N + offs_n
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(splits):
        total += tl.load(sums_ptrs, mask=inside, other=0.0)
        sums_ptrs += M.to(tl.int64) * N
    if bias_ptr is not None:
        total += bias_of(bias_ptr, offs_n, N)
    dtype: tl.constexpr = c_ptr.dtype.element_ty
    if z_ptr is not None:
        tl.store(z_ptr + row * c_row + offs_n, total.to(dtype), mask=inside)
    tl.store(c_ptr + row * c_row + offs_n, activate(total, ACTIVATION, dtype).to(dtype), mask=inside)


def unfit(problem: Problem, call: Call) -> str | None:
    """Why the copy engine cannot fetch this problem's a and b, or None."""
    if not call.device.arch.startswith("sm_9"):
        return f"{call.device.arch} has no copy engine for tiles, or none that this was measured on"
    if problem.dtype == "float32":
        return "float32 products read their operands into registers"
    if problem.K == 0:
        return "an empty sum has nothing to copy"
    if problem.c.unit != "col":
        return "c's rows are not contiguous"
    for x, rows, cols in ((problem.a, problem.M, problem.K), (problem.b, problem.K, problem.N)):
        if not describable(x, rows, cols):
            return f"{x.tensor} has no lines of aligned, distinct elements"
    if min(call.config[name] for name in TILE[:3]) * problem.a.itemsize < SWIZZLE:
        return f"a tile's lines are shorter than {SWIZZLE} bytes"
    return None


def describable(x: Operand, rows: int, cols: int) -> bool:
    """Whether the copy engine can walk x: lines that start at multiples of 16 bytes and do not overlap."""
    return x.unit is not None and no_map(x, rows, cols) is None


def descriptor(
    name: str,
    x: Operand,
    rows: int,
    cols: int,
    batch: tuple[int, int],
    block: tuple[int, int],
    promotion: int = 256,
) -> list[tuple[str, Argument]]:
    """Arguments of one operand: its descriptor, of rank 4 if there is more than one matrix, and the sizes and
    strides that Triton passes beside it. Batch dimensions that do not step have size 1."""
    sizes: tuple[int, ...] = (cols, rows)
    if x.unit == "row":
        sizes, block = (rows, cols), (block[1], block[0])
    steps: tuple[int, ...] = (x.leading,)
    box: tuple[int, ...] = (min(block[1], SWIZZLE // x.itemsize), block[0])
    tile: tuple[int, ...] = block
    if batch != (1, 1):
        outer, inner = x.batch
        sizes += (batch[1] if inner else 1, batch[0] if outer else 1)
        steps += (inner or x.leading, outer or x.leading)
        box, tile = (*box, 1, 1), (1, 1, *block)
    strides = tuple(step * x.itemsize for step in steps)
    return TritonDescriptor(x.tensor, x.dtype, sizes, strides, box, promotion, block=tile).arguments(name)


def plan_descriptors(problem: Problem, call: Call) -> Plan | Rejected:
    """One launch for a problem that is not `unfit`, or two where K is split: then the second one sums."""
    config, device = call.config, call.device
    block_m, block_n, block_k = (config[name] for name in TILE[:3])
    M, N, K, a, b, c = problem.M, problem.N, problem.K, problem.a, problem.b, problem.c
    tiles = triton.cdiv(M, block_m) * triton.cdiv(N, block_n)
    slice = slice_of_k(problem, tiles, block_k, device)
    splits = triton.cdiv(K, slice)
    work = tiles * problem.batches * splits
    by_engine = splits == 1 and describable(c, M, N)
    # c on its way out then leaves room for 4 stages of 128x256x64. Through pointers its addresses and masks
    # take registers: with 128 columns at a time, activations spilled up to 264 bytes; with z beside c and 64
    # columns 80.
    parts = max(1, block_n // (128 if by_engine else 32 if problem.preactivation else 64))
    needed = (block_m + block_n) * block_k * config["num_stages"] + by_engine * block_m * block_n // parts
    needed = needed * a.itemsize + RESERVED
    if needed > device.shared_memory:
        most = device.shared_memory
        return Rejected(f"config needs {needed} bytes of shared memory, {device.arch} has {most}")
    programs = min(work, device.multiprocessors * resident(config, needed, device))
    if max(M, N, K, work + programs, slice + K) > MAX_GRID - 256:
        return Rejected("row, column and tile numbers of 32 bits do not hold this size")

    pdl = splits == 1 and uses_pdl(device, needed)
    # 2026-11-22: with few rows, which are bound by memory, 128 bytes a miss are 0 to 3 % faster.
    promotion = 128 if block_m <= 64 else 256
    args = descriptor("a", a, M, K, problem.batch, (block_m, block_k), promotion)
    args += descriptor("b", b, K, N, problem.batch, (block_k, block_n), promotion)
    constants: list[tuple[str, Any]] = []
    if by_engine:
        args += descriptor("c", c, M, N, problem.batch, (block_m, block_n // parts))
        constants += [("c_ptr", None), ("c_row", 0), ("c_outer", 0), ("c_inner", 0), ("z_ptr", None)]
        if problem.preactivation:
            z = replace(c, tensor=problem.preactivation)
            args += descriptor("z", z, M, N, problem.batch, (block_m, block_n // parts))
        else:
            constants.append(("z", None))
    else:
        to = Operand(SUMS, "float32", N, 1, (0, M * N), 16) if splits > 1 else c
        constants += [("c", None), ("z", None)]
        args.append(("c_ptr", Pointer(to.tensor, to.alignment >= 16)))
        strides = {"c_row": to.row, "c_outer": to.batch[0], "c_inner": to.batch[1]}
        args += [(name, Scalar("i64", step, step % 16 == 0)) for name, step in strides.items()]
        if problem.preactivation and splits == 1:
            args.append(("z_ptr", Pointer(problem.preactivation, c.alignment >= 16)))
        else:
            constants.append(("z_ptr", None))
    if problem.bias and splits == 1:
        args.append(("bias_ptr", Pointer(problem.bias, problem.bias_alignment >= 16)))
    else:
        constants.append(("bias_ptr", None))
    sizes = {"M": M, "N": N, "K": K, "splits": splits, "slice": slice, "tiles": tiles}
    sizes |= {"inner_batch": problem.batch[1], "work": work, "programs": programs}
    if splits == 1:
        constants.append(("splits", sizes.pop("splits")))
    args += [(name, Scalar("i32", size, name == "N" and size % 16 == 0)) for name, size in sizes.items()]
    batched = problem.batches > 1
    constants += [
        ("A_UNIT", a.unit),
        ("B_UNIT", b.unit),
        ("STEPS", sum(bool(step) << bit for bit, step in enumerate((*a.batch, *b.batch))) if batched else 0),
        ("BATCHED", batched),
        ("ACTIVATION", problem.activation if splits == 1 else None),
        ("PARTS", parts),
        *((name, config[name]) for name in TILE),
        ("PDL", pdl),
    ]
    warps, stages = config["num_warps"], config["num_stages"]
    kernel = TritonKernel(matmul_descriptors, tuple(constants), warps, stages, pdl=pdl)
    product = Launch(kernel, (programs, 1, 1), tuple(args))
    if splits == 1:
        return Plan((product,))
    return Plan((product, plan_sum(problem, splits)), (Workspace(SUMS, (splits, M, N), "float32"),))


def slice_of_k(problem: Problem, tiles: int, block_k: int, device: Device) -> int:
    """How much of K one program takes: all of it unless the tiles leave more than half of the card idle.

    2026-11-21: 128x2048x8192 1.10 of torch with 4 splits, 0.46 without; 128x8192x8192, whose tiles fill the
    card, 0.74 with 2 splits and 0.92 without: the sums' way through memory and the second launch take 4 us.
    """
    steps = triton.cdiv(problem.K, block_k)
    splits = min(device.multiprocessors // max(tiles, 1), steps // 4, 16)
    if problem.batches > 1 or steps < 16 or splits < 2:
        splits = 1
    return triton.cdiv(steps, splits) * block_k


def uses_pdl(device: Device, needed: int) -> bool:
    """Whether blocks that need this much shared memory start before the kernel before has ended: where Hopper
    has one a multiprocessor. Of several, the next call's would crowd on those that are free first."""
    return device.arch.startswith("sm_9") and 2 * needed > device.shared_memory


def resident(config: Mapping[str, Any], needed: int, device: Device) -> int:
    """Blocks that one multiprocessor holds, by shared memory and, roughly, by registers."""
    threads = config["num_warps"] * device.warp_size
    registers = config["BLOCK_M"] * config["BLOCK_N"] // threads + 56
    return max(1, min((device.shared_memory + 1024) // (needed + 1024), 65536 // (threads * registers)))


def plan_sum(problem: Problem, splits: int) -> Launch:
    """The launch that adds the splits' products up, in one order, with bias and activation."""
    M, N, c = problem.M, problem.N, problem.c
    args: list[tuple[str, Argument]] = [(f"{SUMS}_ptr", Pointer(SUMS, True))]
    constants: list[tuple[str, Any]] = [("ACTIVATION", problem.activation), ("BLOCK", SUM_BLOCK)]
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
    sizes = {"M": M, "N": N, "splits": splits}
    args += [(name, Scalar("i32", size, name == "N" and size % 16 == 0)) for name, size in sizes.items()]
    kernel = TritonKernel(sum_splits, tuple(constants), num_warps=4, num_stages=1)
    return Launch(kernel, (M, triton.cdiv(N, SUM_BLOCK), 1), tuple(args))
