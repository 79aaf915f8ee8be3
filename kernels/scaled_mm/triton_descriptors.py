"""Products of 8 bits in Triton with TMA on Hopper: scaled_mm, scaled_mm_block, int_mm and int8_scaled_mm of
operands along k, whose types wgmma multiplies.

Programs are persistent, as those of `kernels/matmul/triton/descriptors.py`. Triton 3.6 and 3.7 wait for a
product before they add it to a sum in float32, and run nothing beside it: two warpgroups of a program, or two
programs of a multiprocessor, fill a part of these gaps. With few rows the product is c.T = b.T @ a.T (swap
AB), as wgmma takes 64 rows at a time and TMA is slow with rows that are not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import triton
import triton.language as tl

from portable import dtypes
from portable.kernels._lib.triton.pdl import enter_pdl
from portable.kernels._lib.triton.rows import MAX_GRID, UNFUSED
from portable.kernels.matmul.problem import Problem
from portable.kernels.matmul.triton.descriptors import (
    RESERVED,
    SWIZZLE,
    TILE,
    descriptor,
    epilogue,
    promotion,
    tma_supported,
    uses_pdl,
)
from portable.kernels.matmul.triton.tile import tile_starts
from portable.kernels.scaled_mm.problem import BLOCK, OCP, Scale
from portable.layout import ceil_div
from portable.plan import Argument, Call, Device, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel

SWAPPED_ROWS = 32
"""Rows of a tile of a up to which AB are swapped; wgmma's other side takes 8 columns and more."""
FEW_ROWS = 64
"""Rows of a up to which a program has one tile, and scales of blocks come by the pipeline of the operands.
H200, 2026-11-27: 64x7168x16384 74 -> 44 us, 16x8192x8192 34 -> 24; large products lose 7 %."""
C_BUFFER = 16384
"""Bytes of shared memory for c on its way: two programs of 128x128 in three stages fit a multiprocessor."""


@triton.jit
def scaled_descriptors(
    a, b, c, c_ptr, c_row, sa_ptr, sa_outer, sa_inner, sb_ptr, sb_outer, sb_inner, bias_ptr,
    M, N, K, work, programs,
    INTEGER: tl.constexpr, BLOCKED: tl.constexpr, PROMOTE: tl.constexpr, SWAP: tl.constexpr,
    SCALE_STAGES: tl.constexpr, EPILOGUE_SUBTILE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """c = (a @ b) * scales + bias, by tiles, or a @ b where sa_ptr is None; a's and b's descriptors have k
    innermost.

    INTEGER: the operands are int8, and their sums int32.
    BLOCKED: the scales are those of the BLOCK_K along k and of the 128 columns that BLOCK_N divides.
    SCALE_STAGES: stages of the pipeline that brings them too; None: read where they are needed.
    PROMOTE: products along k that wgmma adds up before their sum goes to float32; None for all.
    SWAP: a tile's product is b.T @ a.T.
    """
    enter_pdl(PDL)
    for pid in tl.range(tl.program_id(0), work, programs, flatten=SCALE_STAGES is None):
        start_m, start_n = tile_starts(pid, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        offs_m = start_m + tl.arange(0, BLOCK_M)
        in_m = offs_m < M
        if sa_ptr is not None:
            sa_ptrs = sa_ptr + offs_m.to(tl.int64) * sa_outer
        if BLOCKED:
            sb_block = sb_ptr + (start_n // 128).to(tl.int64) * sb_inner
        if SWAP:
            total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.int32 if INTEGER else tl.float32)
        else:
            total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32 if INTEGER else tl.float32)
        for k in tl.range(0, K, BLOCK_K, num_stages=SCALE_STAGES):
            if SWAP:
                x = b.load([start_n, k])
                y = a.load([start_m, k]).T
            else:
                x = a.load([start_m, k])
                y = b.load([start_n, k]).T
            if BLOCKED:
                part = tl.dot(x, y)
                block = tl.cast(k // BLOCK_K, tl.int64)
                scales = tl.load(sa_ptrs + block * sa_inner, mask=in_m, other=0.0)
                scales *= tl.load(sb_block + block * sb_outer)
                if SWAP:
                    total += part * scales[None, :]
                else:
                    total += part * scales[:, None]
            elif INTEGER:
                total = tl.dot(x, y, total, out_dtype=tl.int32)
            else:
                total = tl.dot(x, y, total, max_num_imprecise_acc=PROMOTE)
        if SWAP:
            total = total.T
        if sa_ptr is not None and not BLOCKED:
            offs_n = start_n + tl.arange(0, BLOCK_N)
            scale_b = tl.load(sb_ptr + offs_n.to(tl.int64) * sb_inner, mask=offs_n < N, other=0.0)
            total = total.to(tl.float32) * tl.load(sa_ptrs, mask=in_m, other=0.0)[:, None] * scale_b[None, :]
        epilogue(
            c, c_ptr, c_row, None, None, bias_ptr, total, 0, 0, start_m, start_n, M, N,
            None, False, EPILOGUE_SUBTILE,
        )  # fmt: skip


def unfit(product: Problem, call: Call, blocked: bool = False) -> str | None:
    """Why this kernel does not take a product, or None."""
    config, types = call.config, {product.a.dtype, product.b.dtype}
    if not call.device.arch.startswith("sm_9"):
        return f"{call.device.arch} has no TMA, or this was not measured on it"
    if not types <= {*OCP} and types != {"int8"}:
        return f"wgmma does not multiply {' and '.join(sorted(types))}"
    if product.K == 0:
        return "K = 0: nothing to load"
    for x, along, rows, cols in (
        (product.a, "col", product.M, product.K),
        (product.b, "row", product.K, product.N),
    ):
        if x.unit_stride != along:
            return f"wgmma reads 8 bits along K; {x.tensor} does not lie along it"
        if not tma_supported(x, rows, cols):
            return f"TMA cannot load {x.tensor}"
    if product.c.unit_stride != "col":
        return "c's rows are not contiguous"
    if config["BLOCK_K"] < SWIZZLE or (blocked and (config["BLOCK_K"] != BLOCK or config["BLOCK_N"] > BLOCK)):
        return "the config's tile is not of TMA's rows, or of a scale"
    return None


def plan_descriptors(
    product: Problem,
    call: Call,
    scales: tuple[Scale, ...],
    blocked: bool = False,
    fast: bool = False,
) -> Plan | Rejected:
    """One launch for a product that is not `unfit`, with the scales of a and b or none; `fast` allows sums in
    less than float32 to their end."""
    config, device = call.config, call.device
    M, N, K, c = product.M, product.N, product.K, product.c
    block_m, block_n, block_k = (config[name] for name in TILE[:3])
    work = ceil_div(M, block_m) * ceil_div(N, block_n)
    by_tma = tma_supported(c, M, N)
    columns = C_BUFFER // (block_m * dtypes.itemsize(call["c"].dtype)) if by_tma else 64
    subtiles = max(1, block_n // columns)
    needed = (block_m + block_n) * block_k * config["num_stages"] + by_tma * C_BUFFER + RESERVED
    if needed > device.shared_memory:
        return Rejected(
            f"the config needs {needed} bytes of shared memory; {device.arch} has {device.shared_memory}"
        )
    programs = min(work, device.multiprocessors * _resident(config, needed, device))
    if max(M, N, K, work + programs) > MAX_GRID - 256:
        return Rejected("row, column and tile indices exceed 32 bits")

    pdl = uses_pdl(device, needed)
    args = descriptor("a", product.a, M, K, (1, 1), (block_m, block_k), promotion(product.a, block_m))
    args += descriptor("b", product.b, K, N, (1, 1), (block_k, block_n), promotion(product.b, block_m))
    constants: list[tuple[str, Any]] = []
    if by_tma:
        args += descriptor("c", c, M, N, (1, 1), (block_m, block_n // subtiles))
        constants += [("c_ptr", None), ("c_row", 0)]
    else:
        constants.append(("c", None))
        args += [("c_ptr", Pointer("c", c.alignment >= 16)), ("c_row", Scalar("i64", c.row, c.row % 16 == 0))]
    args += scale_args(scales)
    if not scales:
        constants += [(f"{name}_{part}", 0) for name in ("sa", "sb") for part in ("outer", "inner")]
        constants += [("sa_ptr", None), ("sb_ptr", None)]
    if product.bias:
        args.append(("bias_ptr", Pointer("bias", product.bias_alignment >= 16)))
    else:
        constants.append(("bias_ptr", None))
    sizes = {"M": M, "N": N, "K": K, "work": work, "programs": programs}
    args += [(name, Scalar("i32", size, name == "N" and size % 16 == 0)) for name, size in sizes.items()]
    integer = product.dtype == "int8"
    constants += [
        ("INTEGER", integer),
        ("BLOCKED", blocked),
        ("PROMOTE", None if blocked or fast or integer else BLOCK),
        ("SCALE_STAGES", config["num_stages"] if blocked and M <= FEW_ROWS else None),
        ("SWAP", block_m <= SWAPPED_ROWS),
        ("EPILOGUE_SUBTILE", subtiles),
        *((name, config[name]) for name in TILE),
        ("PDL", pdl),
    ]
    options = UNFUSED if integer else ()  # whose roundings are the reference's
    warps, stages = config["num_warps"], config["num_stages"]
    kernel = TritonKernel(scaled_descriptors, tuple(constants), warps, stages, options)
    return Plan((Launch(kernel, (programs, 1, 1), tuple(args)),))


def scale_args(scales: Iterable[Scale], dtype: str | None = None) -> list[tuple[str, Argument]]:
    """Pointers and strides of the scales of a and b, whose elements the kernel takes for `dtype`."""
    args: list[tuple[str, Argument]] = []
    for name, scale in zip(("sa", "sb"), scales, strict=False):
        args.append((f"{name}_ptr", Pointer(scale.tensor, dtype=dtype)))
        args += [(f"{name}_outer", Scalar("i64", scale.outer)), (f"{name}_inner", Scalar("i64", scale.inner))]
    return args


def _resident(config: Mapping[str, Any], needed: int, device: Device) -> int:
    """Blocks that fit a multiprocessor, by shared memory and, roughly, by registers: of the total, and of the
    products that go to it."""
    threads = config["num_warps"] * device.warp_size
    registers = min(255, 2 * config["BLOCK_M"] * config["BLOCK_N"] // threads + 56)
    return max(1, min((device.shared_memory + 1024) // (needed + 1024), 65536 // (threads * registers)))
