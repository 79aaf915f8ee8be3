"""wgmma.cu where whole tiles would leave multiprocessors idle: the last of them, or all, are divided along k,
and a second launch adds the parts."""

from __future__ import annotations

from typing import NamedTuple

from portable.kernels.matmul.launches import (
    ACTIVATIONS,
    ELEMENTS,
    HERE,
    bias,
    ceil,
    pointer,
    preactivation_define,
    sizes,
    z_pointer,
)
from portable.kernels.matmul.packed_plan import Packed, packing
from portable.kernels.matmul.problem import Problem
from portable.kernels.matmul.wgmma_plan import (
    Costs,
    Divided,
    WgmmaTile,
    band_of,
    launch,
    unsuited,
    wgmma_tile,
)
from portable.plan import Call, Device, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar, Workspace

_TILES = (
    WgmmaTile(256, 4, 2, 1),
    WgmmaTile(128, 6, 2, 1),
    WgmmaTile(256, 4),
    WgmmaTile(128, 6),
    WgmmaTile(128, 8, m=64),
    WgmmaTile(64, 8),
)
_LEAST_STEPS, _MOST_STEPS = 4, 2**31 - 1  # of 64 k in a part; of all divided tiles
# Clocks that the second launch takes, and how many bytes of sums it reads in one; how many of its own a
# multiprocessor writes in one.
_SECOND, _BYTES, _STORED = 3000.0, 2000.0, 40.0
_WORTH = 0.95  # of the time of whole tiles
_SUM_THREADS = 256


class Split(NamedTuple):
    """Clusters of whole tiles, and how many clusters of blocks share what is left."""

    tile: WgmmaTile
    whole: int
    clusters: int

    def divided(self, problem: Problem) -> int:
        return self.tile.clusters(problem) - self.whole

    def parts(self, problem: Problem) -> int:
        """Of all divided tiles."""
        count = self.divided(problem)
        return self.clusters if self.clusters % count == 0 else self.clusters + count - 1

    def clocks(self, problem: Problem, device: Device) -> float:
        costs, nbytes = Costs(problem, device), self.tile.m * self.tile.n * 4
        whole = ceil(self.whole, self.clusters) * costs.of_tile(self.tile)
        costs.steps = ceil(self.divided(problem) * costs.steps, self.clusters)
        parts = self.parts(problem)
        stored = ceil(parts, self.clusters) * nbytes / _STORED
        read = parts * self.tile.cluster * nbytes / _BYTES
        return whole + costs.of_tile(self.tile) + stored + _SECOND + read

    @property
    def elements(self) -> int:
        """Of the sums: a block has up to two parts."""
        return self.clusters * 2 * self.tile.cluster * self.tile.m * self.tile.n


def _splits(problem: Problem, device: Device, tile: WgmmaTile) -> list[Split]:
    """The last, partly filled wave divided among all clusters; without a full one, every tile in as many
    parts as the others or, again, among all."""
    tiles, room = tile.clusters(problem), device.multiprocessors // tile.cluster
    steps = ceil(problem.K, 64)
    left = tiles % room
    if not left or left * steps > _MOST_STEPS:
        return []
    most = left * steps // _LEAST_STEPS
    if tiles > room:
        return [Split(tile, tiles - left, room)] if room <= most else []
    every = min(room // left, steps // _LEAST_STEPS)
    counts = {left * parts for parts in range(2, every + 1)} | ({room} if room <= most else set())
    return [Split(tile, 0, count) for count in counts]


def split_of(problem: Problem, device: Device) -> Split | None:
    """What takes the least time, or None where all tiles are better left whole."""
    tiles = [tile for tile in _TILES if tile.misfit(problem, device) is None]
    options = [split for tile in tiles for split in _splits(problem, device, tile)]
    if not options:
        return None
    best = min(options, key=lambda option: option.clocks(problem, device))
    whole = Costs(problem, device).total(wgmma_tile(problem, device, {}))
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


def planned(packed: Packed, problem: Problem, call: Call, split: Split) -> Plan:
    tile = split.tile._replace(group=band_of(problem))
    kernel = NativeKernel(
        HERE / "wgmma_sum.cu",
        "matmul_wgmma_sum",
        threads=_SUM_THREADS,
        defines=(
            ("ELEMENT", ELEMENTS[problem.dtype]),
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
    )
    counts = (("whole", Scalar("i32", split.whole)), ("clusters", Scalar("i32", split.clusters)))
    outputs = (("c", pointer(problem.c)), *z_pointer(problem))
    args = (("sums", Pointer("sums", True)), ("bias", bias(problem)), *outputs, *counts, *sizes(problem))
    grid = (split.divided(problem) * tile.cluster, tile.m * tile.n // 4 // _SUM_THREADS, 1)
    launches = (
        *packed.launches,
        launch(problem, call, tile, False, Divided(split.whole, split.clusters)),
        Launch(kernel, grid, args),
    )
    return Plan(launches, (*packed.workspaces, Workspace("sums", (split.elements,), "float32")))
