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
    size_class,
    unfit,
)
from portable.kernels.matmul.problem import Problem
from portable.plan import Call, NativeKernel, Plan, Rejected


class SimtTile(NamedTuple):
    """What a block of simt.cu computes, and its threads along M and N."""

    m: int
    n: int
    k: int
    threads_m: int
    threads_n: int


# 8 x 16 sums a thread fit CUDA's 255 registers without spills; clang for AMD spills them on gfx11 and
# gfx12, and has 8 x 8 in 216 registers.
_SIMT_LARGE = SimtTile(128, 128, 8, 16, 8)
_SIMT_LARGE_HIP = SimtTile(128, 128, 8, 16, 16)
_SIMT_SMALL = SimtTile(64, 64, 16, 16, 16)


def plan_simt(problem: Problem, call: Call) -> Plan | Rejected:
    """float32 with IEEE products on the vector units."""
    if problem.dtype != "float32" or problem.precision == "tf32":
        return Rejected(f"{problem.dtype} with {problem.precision} products is for matrix cores")
    problem = oriented(problem)
    if (reason := unfit(problem)) is not None:
        return reason
    M, N = size_class(problem.M), size_class(problem.N)
    large = ceil(M, 128) * ceil(N, 128) * problem.batches >= call.device.multiprocessors
    tile = _SIMT_SMALL
    if large and M > 64:
        tile = _SIMT_LARGE if call.device.vendor == "cuda" else _SIMT_LARGE_HIP
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
            ("A_BYTES", 16 if problem.a.aligned_to(16) else 4),
            ("B_BYTES", 16 if problem.b.aligned_to(16) else 4),
            ("C_VECTOR", int(row_vectors(problem.c))),
            *common_defines(problem),
        ),
    )
    blocks = ceil(problem.M, tile.m) * ceil(problem.N, tile.n) * problem.batches
    return plan(kernel, blocks, problem, pointers(problem))
