"""The plans of simt.cu and simt_bulk.cu: float32 on the vector units, of any vendor and of Hopper."""

from __future__ import annotations

from typing import NamedTuple

from portable.kernels.matmul.launches import (
    HERE,
    along_k,
    bias,
    ceil,
    common_defines,
    oriented,
    plan,
    pointer,
    pointers,
    row_vectors,
    unfit,
    z_pointer,
)
from portable.kernels.matmul.operand_map import no_map, tensor_map
from portable.kernels.matmul.problem import Problem
from portable.plan import Argument, Call, Device, NativeKernel, Plan, Rejected


class SimtTile(NamedTuple):
    """What a block computes, its threads along M and N, and the rate of a device full of such
    blocks, as a share of the best."""

    m: int
    n: int
    k: int
    threads_m: int
    threads_n: int
    rate: float


# Rates measured on an H200, 2026-11-21 and 22. 8 x 16 sums a thread fit CUDA's 255 registers without spills;
# clang for AMD spills them on gfx11 and gfx12, and has 8 x 8.
_WIDE = SimtTile(128, 256, 8, 16, 16, 1.0)
_TALL = SimtTile(256, 128, 8, 32, 8, 1.0)
_SQUARE = SimtTile(128, 128, 8, 16, 8, 0.95)
_SMALL = SimtTile(64, 64, 16, 16, 8, 0.72)
# simt_bulk.cu's.
_BULK = SimtTile(128, 256, 32, 16, 16, 1.08)
_STAGES = 4
_SQUARE_HIP = SimtTile(128, 128, 8, 16, 16, 0.95)
_SMALL_HIP = SimtTile(64, 64, 16, 16, 16, 0.72)


def _bulk_fits(problem: Problem, device: Device) -> bool:
    """Whether simt_bulk.cu can multiply this: Hopper's copy engine walks both operands."""
    operands = (problem.a, problem.M, problem.K), (problem.b, problem.K, problem.N)
    return device.arch == "sm_90a" and problem.K > 0 and not any(no_map(*operand) for operand in operands)


def _tile(problem: Problem, device: Device, aligned: bool) -> SimtTile:
    """The tile whose waves of blocks take the least time."""
    tiles = (_SQUARE_HIP, _SMALL_HIP)
    if device.vendor == "cuda":
        # With 256 columns of b loaded one by one, 4095 x 4097 x 4099 ran at 0.77 of torch, not 0.93; with b
        # contiguous along k, tall tiles are 1 % ahead, else wide ones 2 %.
        large = _WIDE if aligned and problem.b.unit == "col" else _TALL
        tiles = (_BULK if _bulk_fits(problem, device) else large, _SQUARE, _SMALL)

    def time(tile: SimtTile) -> float:
        blocks = ceil(problem.M, tile.m) * ceil(problem.N, tile.n) * problem.batches
        return ceil(blocks, device.multiprocessors) * tile.m * tile.n / tile.rate

    return min(tiles, key=time)


def plan_simt(problem: Problem, call: Call) -> Plan | Rejected:
    """float32 with IEEE products on the vector units."""
    if problem.dtype != "float32" or problem.precision == "tf32":
        return Rejected(f"{problem.dtype} with {problem.precision} products is for matrix cores")
    problem = oriented(problem)
    if (reason := unfit(problem)) is not None:
        return reason
    a_aligned, b_aligned = problem.a.aligned_to(16), problem.b.aligned_to(16)
    tile = _tile(problem, call.device, a_aligned and b_aligned)
    blocks = ceil(problem.M, tile.m) * ceil(problem.N, tile.n) * problem.batches
    threads = tile.threads_m * tile.threads_n
    defines = (
        ("TILE_M", tile.m),
        ("TILE_N", tile.n),
        ("TILE_K", tile.k),
        ("THREADS_M", tile.threads_m),
        ("THREADS_N", tile.threads_n),
        ("C_VECTOR", int(row_vectors(problem.c))),
        *common_defines(problem),
    )
    if tile == _BULK:
        defines = (("ELEMENT", "f32"), ("STAGES", _STAGES), *defines)
        shared = 1024 + _STAGES * ((tile.m + tile.n) * tile.k * 4 + 16)
        source = HERE / "simt_bulk.cu"
        kernel = NativeKernel(source, "matmul_simt_bulk", threads + 128, defines, shared, early=True)
        return plan(kernel, blocks, problem, _maps(problem, tile))
    defines = (("A_BYTES", 16 if a_aligned else 4), ("B_BYTES", 16 if b_aligned else 4), *defines)
    kernel = NativeKernel(HERE / "simt.cu", "matmul_simt", threads, defines)
    return plan(kernel, blocks, problem, pointers(problem))


def _maps(problem: Problem, tile: SimtTile) -> tuple[tuple[str, Argument], ...]:
    M, N, K, batch = problem.M, problem.N, problem.K, problem.batch
    a_along_k, b_along_k = along_k(problem)
    map_a = tensor_map(problem.a, M, K, batch, tile.m if a_along_k else tile.k)
    map_b = tensor_map(problem.b, K, N, batch, tile.n if b_along_k else tile.k)
    outputs = (("c", pointer(problem.c)), *z_pointer(problem))
    return ("map_a", map_a), ("map_b", map_b), ("bias", bias(problem)), *outputs
