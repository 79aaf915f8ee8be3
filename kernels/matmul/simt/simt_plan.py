"""The plans of simt.cu (any vendor) and simt_tma.cu (Hopper): IEEE float32 on the vector units."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from portable.kernels.matmul.launch_args import (
    bias,
    ceil,
    common_defines,
    maybe_swap_ab,
    pointer,
    pointers,
    row_vectors,
    single_launch,
    unfit,
    z_pointer,
)
from portable.kernels.matmul.problem import Problem, for_call
from portable.kernels.matmul.sm90.tma_descriptors import tma_descriptor, tma_unsupported
from portable.kernels.matmul.sm90.transpose_plan import Transposed, transposed_operands
from portable.plan import Call, Device, NativeKernel, Plan, Rejected


class SimtTile(NamedTuple):
    """A block's tile, its threads along M and N, and the throughput of a full device as a share of simt.cu's
    best."""

    m: int
    n: int
    k: int
    threads_m: int
    threads_n: int
    rate: float

    def blocks(self, problem: Problem) -> int:
        return ceil(problem.M, self.m) * ceil(problem.N, self.n) * problem.batches

    def time(self, problem: Problem, device: Device) -> float:
        """Estimated microseconds."""
        waves = ceil(self.blocks(problem), device.multiprocessors)
        return waves * self.m * self.n * problem.K / self.rate / _FMA_PER_US


_FOLDER = Path(__file__).parent
# Rates measured on an H200, 2026-11-21 and 22. 8 x 16 sums a thread fit CUDA's 255 registers without spills;
# clang for AMD spills them on gfx11 and gfx12, and has 8 x 8.
_FMA_PER_US = 196e3  # of a multiprocessor
_WIDE = SimtTile(128, 256, 8, 16, 16, 1.0)
_TALL = SimtTile(256, 128, 8, 32, 8, 0.98)
_SQUARE = SimtTile(128, 128, 8, 16, 8, 0.95)
_SMALL = SimtTile(64, 64, 16, 16, 8, 0.72)
_SQUARE_HIP = SimtTile(128, 128, 8, 16, 16, 0.95)
_SMALL_HIP = SimtTile(64, 64, 16, 16, 16, 0.72)
# simt_tma.cu's.
_TMA = SimtTile(128, 256, 32, 16, 16, 1.06)
_STAGES = 4
_MAX_BYTES = 1 << 32  # of transposed operands


def _tile(problem: Problem, device: Device, aligned: bool) -> SimtTile:
    """simt.cu's tile whose waves take the least time."""
    tiles = (_SQUARE_HIP, _SMALL_HIP)
    if device.vendor == "cuda":
        # With 256 columns of b loaded one by one, 4095 x 4097 x 4099 ran at 0.77 of torch, not 0.93; with b
        # contiguous along k, tall tiles are 1 % ahead, else wide ones 2 %.
        tiles = (_WIDE if aligned and problem.b.unit_stride == "col" else _TALL, _SQUARE, _SMALL)
    return min(tiles, key=lambda tile: tile.time(problem, device))


def _defines(problem: Problem, tile: SimtTile) -> tuple[tuple[str, int | str], ...]:
    return (
        ("TILE_M", tile.m),
        ("TILE_N", tile.n),
        ("TILE_K", tile.k),
        ("THREADS_M", tile.threads_m),
        ("THREADS_N", tile.threads_n),
        ("C_VECTOR", int(row_vectors(problem.c))),
        *common_defines(problem),
    )


def plan_simt(problem: Problem, call: Call) -> Plan | Rejected:
    """float32 with IEEE products on the vector units."""
    if problem.dtype != "float32" or problem.precision == "tf32":
        return Rejected(
            f"{problem.dtype} with precision {problem.precision} runs on matrix cores, not vector units"
        )
    problem = maybe_swap_ab(problem)
    if (reason := unfit(problem)) is not None:
        return reason
    a_aligned, b_aligned = problem.a.aligned_to(16), problem.b.aligned_to(16)
    tile = _tile(problem, call.device, a_aligned and b_aligned)
    for_tma = _for_tma(problem, call.device)
    if for_tma is not None and for_tma.time + _TMA.time(problem, call.device) < tile.time(
        problem, call.device
    ):
        return plan_tma(for_tma)
    loads = (("A_BYTES", 16 if a_aligned else 4), ("B_BYTES", 16 if b_aligned else 4))
    threads = tile.threads_m * tile.threads_n
    kernel = NativeKernel(_FOLDER / "simt.cu", "matmul_simt", threads, (*loads, *_defines(problem, tile)))
    return single_launch(kernel, tile.blocks(problem), problem, pointers(problem))


def _for_tma(problem: Problem, device: Device) -> Transposed | None:
    """The problem with K-major operands transposed, for simt_tma.cu; None where TMA cannot load an
    operand."""
    operands = (problem.a, problem.M, problem.K), (problem.b, problem.K, problem.N)
    if device.arch != "sm_90a" or problem.K == 0 or any(tma_unsupported(*operand) for operand in operands):
        return None
    found = transposed_operands(problem)
    return None if found.nbytes > _MAX_BYTES else found


def plan_tma(for_tma: Transposed) -> Plan | Rejected:
    """simt_tma.cu, after the transposes of its operands."""
    problem, tile = for_tma.problem, _TMA
    M, N, K, batch = problem.M, problem.N, problem.K, problem.batch
    kernel = NativeKernel(
        _FOLDER / "simt_tma.cu",
        "matmul_simt_tma",
        threads=tile.threads_m * tile.threads_n + 128,
        defines=(("ELEMENT", "f32"), ("STAGES", _STAGES), *_defines(problem, tile)),
        shared=1024 + _STAGES * ((tile.m + tile.n) * tile.k * 4 + 16),
        pdl=True,
    )
    map_a = tma_descriptor(problem.a, M, K, batch, tile.k)
    map_b = tma_descriptor(problem.b, K, N, batch, tile.k)
    outputs = (("c", pointer(problem.c)), *z_pointer(problem))
    first = ("map_a", map_a), ("map_b", map_b), ("bias", bias(problem)), *outputs
    found = single_launch(kernel, tile.blocks(problem), problem, first)
    if isinstance(found, Rejected):
        return found
    return Plan((*for_tma.launches, *found.launches), for_tma.workspaces)


plan = for_call(plan_simt)
