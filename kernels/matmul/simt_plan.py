"""The plan of simt.cu: float32 on the vector units of any vendor."""

from __future__ import annotations

from typing import NamedTuple

from portable.kernels.matmul.launches import (
    HERE,
    ceil,
    common_defines,
    oriented,
    plan,
    pointers,
    row_vectors,
    unfit,
)
from portable.kernels.matmul.problem import Problem
from portable.plan import Call, Device, NativeKernel, Plan, Rejected


class SimtTile(NamedTuple):
    """What a block of simt.cu computes, its threads along M and N, and the rate of a device full of such
    blocks, as a share of the best."""

    m: int
    n: int
    k: int
    threads_m: int
    threads_n: int
    rate: float


# Rates measured on an H200, 2026-11-21. 8 x 16 sums a thread fit CUDA's 255 registers without spills; clang
# for AMD spills them on gfx11 and gfx12, and has 8 x 8.
_WIDE = SimtTile(128, 256, 8, 16, 16, 1.0)
_TALL = SimtTile(256, 128, 8, 32, 8, 1.0)
_SQUARE = SimtTile(128, 128, 8, 16, 8, 0.95)
_SMALL = SimtTile(64, 64, 16, 16, 8, 0.72)
_SQUARE_HIP = SimtTile(128, 128, 8, 16, 16, 0.95)
_SMALL_HIP = SimtTile(64, 64, 16, 16, 16, 0.72)


def _tile(problem: Problem, device: Device, aligned: bool) -> SimtTile:
    """The tile whose waves of blocks take the least time."""
    tiles = (_SQUARE_HIP, _SMALL_HIP)
    if device.vendor == "cuda":
        # With 256 columns of b loaded one by one, 4095 x 4097 x 4099 ran at 0.77 of torch, not 0.93; with b
        # contiguous along k, tall tiles are 1 % ahead, else wide ones 2 %.
        large = _WIDE if aligned and problem.b.unit == "col" else _TALL
        tiles = (large, _SQUARE, _SMALL)

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
    kernel = NativeKernel(
        HERE / "simt.cu",
        "matmul_simt",
        threads=tile.threads_m * tile.threads_n,
        defines=(
            ("TILE_M", tile.m),
            ("TILE_N", tile.n),
            ("TILE_K", tile.k),
            ("THREADS_M", tile.threads_m),
            ("THREADS_N", tile.threads_n),
            ("A_BYTES", 16 if a_aligned else 4),
            ("B_BYTES", 16 if b_aligned else 4),
            ("C_VECTOR", int(row_vectors(problem.c))),
            *common_defines(problem),
        ),
    )
    blocks = ceil(problem.M, tile.m) * ceil(problem.N, tile.n) * problem.batches
    return plan(kernel, blocks, problem, pointers(problem))
