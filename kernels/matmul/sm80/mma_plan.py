"""The plan of mma.cu: mma.sync, on Ampere and later."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from portable import dtypes
from portable.kernels.matmul.launch_args import (
    ceil,
    common_defines,
    maybe_swap_ab,
    pointers,
    row_vectors,
    single_launch,
    size_class,
    unfit,
)
from portable.kernels.matmul.problem import Problem, for_call
from portable.plan import Call, Device, NativeKernel, Plan, Rejected

_SOURCE = Path(__file__).with_name("mma.cu")


class MmaTile(NamedTuple):
    """What a block of mma.cu computes, its warps along M and N, and its pipeline depth."""

    m: int
    n: int
    k: int
    warps_m: int
    warps_n: int
    stages: int

    def shared(self, itemsize: int) -> int:
        return self.stages * (self.m + self.n) * self.k * itemsize


_MMA_16BIT = (MmaTile(128, 256, 32, 2, 4, 4), MmaTile(128, 128, 32, 2, 2, 4), MmaTile(64, 64, 64, 2, 2, 4))
_MMA_16BIT_FLAT = MmaTile(16, 64, 128, 1, 4, 4)
# A warp's columns are at least 16 of gate and 16 of up.
_MMA_GATED_FLAT = MmaTile(16, 128, 64, 1, 4, 4)
_MMA_TF32 = (MmaTile(128, 128, 32, 2, 4, 3), MmaTile(64, 64, 32, 2, 2, 4))
_MMA_TF32_FLAT = MmaTile(16, 64, 64, 1, 4, 4)


def mma_tile(problem: Problem, device: Device) -> MmaTile:
    """The largest tile that still gives every multiprocessor one; 16 rows where there are no more."""
    wide = problem.dtype == "float32"
    M, N = size_class(problem.M), size_class(problem.product.N)
    if M <= 16 and problem.gated:
        return _MMA_GATED_FLAT
    if M <= 16:
        return _MMA_TF32_FLAT if wide else _MMA_16BIT_FLAT
    tiles = _MMA_TF32 if wide else _MMA_16BIT
    for tile in tiles[:-1]:
        blocks = ceil(M, tile.m) * ceil(N, tile.n) * problem.batches
        if tile.m <= M and blocks >= device.multiprocessors:
            return tile
    return tiles[-1]


def plan_mma(problem: Problem, call: Call) -> Plan | Rejected:
    """mma.sync: bfloat16, float16, and float32 with TF32 products; any alignment."""
    if problem.dtype == "float32" and problem.precision != "tf32":
        return Rejected('float32 products are IEEE unless precision="tf32" is given')
    problem = maybe_swap_ab(problem)
    if (reason := unfit(problem)) is not None:
        return reason
    tile = mma_tile(problem, call.device)
    itemsize = problem.a.itemsize
    widths = (16, 4) if itemsize == 4 else (16, 4, 2)
    kernel = NativeKernel(
        _SOURCE,
        "matmul_mma",
        threads=32 * tile.warps_m * tile.warps_n,
        defines=(
            ("ELEMENT", dtypes.of(problem.dtype).c),
            ("TILE_M", tile.m),
            ("TILE_N", tile.n),
            ("TILE_K", tile.k),
            ("WARPS_M", tile.warps_m),
            ("WARPS_N", tile.warps_n),
            ("STAGES", tile.stages),
            ("A_BYTES", next(width for width in widths if problem.a.aligned_to(width))),
            ("B_BYTES", next(width for width in widths if problem.b.aligned_to(width))),
            ("C_VECTOR", int(row_vectors(problem.c))),
            *common_defines(problem),
        ),
        shared=tile.shared(itemsize),
    )
    blocks = ceil(problem.M, tile.m) * ceil(problem.product.N, tile.n) * problem.batches
    return single_launch(kernel, blocks, problem, pointers(problem))


plan = for_call(plan_mma)
