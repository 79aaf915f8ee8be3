"""wgmma.cu where whole tiles would leave multiprocessors idle: the last of them, or all, are divided along k,
and a second launch adds the parts."""

from __future__ import annotations

from typing import NamedTuple

from portable import dtypes
from portable.kernels.matmul.launch_args import (
    ACTIVATIONS,
    HERE,
    bias,
    ceil,
    pointer,
    preactivation_define,
    sizes,
    z_pointer,
)
from portable.kernels.matmul.problem import Problem
from portable.kernels.matmul.sm90.realigned_plan import Packed, packing
from portable.kernels.matmul.sm90.wgmma_plan import (
    Costs,
    Divided,
    WgmmaTile,
    band_of,
    few_columns,
    launch,
    unsuited,
    wgmma_tile,
)
from portable.plan import Call, Device, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar, Workspace

_SHAPES = (
    WgmmaTile(256, 0, 2, 1),
    WgmmaTile(128, 0, 2, 1),
    WgmmaTile(256, 0),
    WgmmaTile(128, 0),
    WgmmaTile(128, 0, m=64),
    WgmmaTile(64, 0),
)
_LEAST_STEPS, _MOST_PARTS = 4, 32  # of 64 k in a part
# Measured 2026-11-22. Clocks that the second launch takes, bytes of sums that are written and read in one,
# how many parts it reads at once, and what every further read costs.
_SECOND, _BYTES, _AT_ONCE, _AGAIN = 2600.0, 1300.0, 8, 6000.0
_WORTH = 0.9  # of the time of whole tiles
_SUM_THREADS, _MOST_RESIDENT = 256, 8


class Split(NamedTuple):
    """Clusters of whole tiles, the parts of each other one, and how many clusters of blocks there are."""

    tile: WgmmaTile
    whole: int
    parts: int
    clusters: int

    def blocks(self, problem: Problem) -> int:
        """That multiply parts."""
        return (self.tile.clusters(problem) - self.whole) * self.parts * self.tile.cluster

    def elements(self, problem: Problem) -> int:
        """Of the sums."""
        return self.blocks(problem) * self.tile.m * self.tile.n

    def clocks(self, problem: Problem, device: Device) -> float:
        costs = Costs(problem, device)
        whole = ceil(self.whole, self.clusters) * costs.of_tile(self.tile)
        costs.steps = ceil(costs.steps, self.parts)
        added = self.elements(problem) * 4 / _BYTES + (ceil(self.parts, _AT_ONCE) - 1) * _AGAIN
        return whole + costs.of_tile(self.tile) + _SECOND + added


def _splits(problem: Problem, device: Device, tile: WgmmaTile) -> list[Split]:
    """The last, partly filled wave divided. As many parts of each tile as of any other: blocks that multiply
    the same k then read the same lines at the same time.

    2026-11-22, 512x8192x28672: equal runs of steps for all multiprocessors 410 us, whole tiles 320."""
    tiles, room = tile.clusters(problem), device.multiprocessors // tile.cluster
    left = tiles % room
    most = min(room // left if left else 0, ceil(problem.K, 64) // _LEAST_STEPS, _MOST_PARTS)
    if tiles > room:
        return [Split(tile, tiles - left, most, room)] if most > 1 else []
    return [Split(tile, 0, parts, left * parts) for parts in range(2, most + 1)]


def split_of(problem: Problem, device: Device) -> Split | None:
    """What takes the least time, or None where all tiles are better left whole."""
    tiles = [tile.filling(device) for tile in _SHAPES if tile.misfit(problem, device) is None]
    options = [split for tile in tiles for split in _splits(problem, device, tile)]
    if not options:
        return None
    best = min(options, key=lambda option: option.clocks(problem, device))
    other = problem.transposed() if few_columns(problem) else problem
    whole = Costs(other, device).total(wgmma_tile(other, device, {}))
    return best if best.clocks(problem, device) < _WORTH * whole else None


def plan_split(problem: Problem, call: Call) -> Plan | Rejected:
    """wgmma.cu in parts of k, its operands packed first where they are not aligned."""
    if problem.c.unit == "row" and problem.bias is None:
        problem = problem.transposed()
    packed = packing(problem, call)
    if isinstance(packed, Rejected):
        return packed
    problem = packed.problem
    if (reason := unsuited(problem)) is not None:
        return reason
    split = split_of(problem, call.device)
    if split is None:
        return Rejected("its tiles keep the card busy without parts of k")
    return planned(packed, problem, call, split)


def _even(blocks: int, device: Device) -> int:
    """Shared memory that keeps the blocks of a PDL launch from crowding on the first free multiprocessors."""
    each = min(ceil(blocks, device.multiprocessors), _MOST_RESIDENT)
    return (device.shared_memory // each - 1024) // 1024 * 1024


def planned(packed: Packed, problem: Problem, call: Call, split: Split) -> Plan:
    tile = split.tile._replace(group=band_of(problem))
    grid = (split.blocks(problem) // split.parts, tile.m * tile.n // 4 // _SUM_THREADS, 1)
    blocks = grid[0] * grid[1]
    kernel = NativeKernel(
        HERE / "sm90/splitk_reduce.cu",
        "matmul_wgmma_sum",
        threads=_SUM_THREADS,
        defines=(
            ("ELEMENT", dtypes.of(problem.dtype).c),
            ("TILE_M", tile.m),
            ("TILE_N", tile.n),
            ("CLUSTER_M", tile.cluster_m),
            ("CLUSTER_N", tile.cluster_n),
            ("GROUP", tile.group),
            ("THREADS", _SUM_THREADS),
            ("C_TOUCHES", int(problem.c.col == 1)),
            ("BIAS", int(problem.bias is not None)),
            ("ACTIVATION", ACTIVATIONS[problem.activation]),
            *preactivation_define(problem),
        ),
        shared=_even(blocks, call.device),
        pdl=True,
    )
    counts = (("whole", Scalar("i32", split.whole)), ("parts", Scalar("i32", split.parts)))
    outputs = (("c", pointer(problem.c)), *z_pointer(problem))
    args = (("sums", Pointer("sums", True)), ("bias", bias(problem)), *outputs, *counts, *sizes(problem))
    launches = (
        *packed.launches,
        launch(problem, call, tile, False, Divided(split.whole, split.parts, split.clusters)),
        Launch(kernel, grid, args),
    )
    return Plan(launches, (*packed.workspaces, Workspace("sums", (split.elements(problem),), "float32")))
