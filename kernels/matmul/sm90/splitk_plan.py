"""Split-K: where the output tiles do not fill the GPU, wgmma.cu computes them in parts along K. Either the
blocks of a cluster share a tile and add their sums in shared memory; or the tiles of the last wave, or all,
are divided among all multiprocessors, and splitk_reduce.cu adds the partial sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from portable import dtypes
from portable.kernels.matmul.launch_args import (
    ACTIVATIONS,
    bias,
    ceil,
    pointer,
    preactivation_define,
    sizes,
    z_pointer,
)
from portable.kernels.matmul.problem import Problem, for_call
from portable.kernels.matmul.sm90.realigned_plan import Realigned, realigned
from portable.kernels.matmul.sm90.wgmma_plan import (
    Costs,
    SplitK,
    WgmmaTile,
    few_columns,
    group_m_of,
    is_long,
    launch,
    maybe_swap_ab,
    strip_in_l2,
    unsuited,
    wgmma_tile,
)
from portable.plan import (
    Argument,
    Call,
    Device,
    Launch,
    NativeKernel,
    Plan,
    Pointer,
    Rejected,
    Scalar,
    Workspace,
)

_SOURCE = Path(__file__).with_name("splitk_reduce.cu")
_SHAPES = (
    WgmmaTile(256, 0, 2, 1),
    WgmmaTile(128, 0, 2, 1),
    WgmmaTile(256, 0),
    WgmmaTile(128, 0),
    WgmmaTile(128, 0, m=64),
    WgmmaTile(64, 0),
)
_MIN_STEPS, _MAX_K_SPLITS = 4, 32  # steps of 64 k in a split
_MIN_CLUSTER_STEPS = 16
# Measured 2026-11-22. Clocks of the reduction's launch, bytes of partial sums written and read per clock,
# splits the reduction reads at once, and clocks of every further read.
REDUCE, BYTES, _AT_ONCE, _FURTHER_READ = 2600.0, 1300.0, 8, 6000.0
_WORTH = 0.9  # of the time without split-K
# Split-K in a cluster, measured 2026-11-27. The share of the multiprocessors that clusters of so many blocks
# fill at once (an H200's GPCs differ: 32 clusters of 4 took two waves, 28 one); clocks of the exchange of
# sums for each block, and bytes that a block reads of others' per clock. Clusters of 8 were slower than both.
_CLUSTER_N = (64, 96, 128, 160, 192, 224, 256)
_CLUSTER_ROOM = {2: 1.0, 4: 112 / 132}
_CLUSTER_SUM, _EXCHANGED = 200.0, 29.0
_OF_WHOLE, _OF_SPLIT = 0.94, 0.98  # of the time of whole tiles, and of other split-K
# Clocks per 128-byte row that a multiprocessor writes to or reads from its shared memory, with all at work:
# 1024x1024x8192, tiles of 128x128 in two parts 31 us, of 64x256 27; of the tensor cores' clocks both are 20.
_SHARED_ROW = 1.27
# The same of long products' last wave. 2026-11-27, under load: 28672x4096x8192 tn, 0.975 by `clocks`, 2.2 %
# faster; 32000x4096x8192 tn, 0.982, the same. (Two unequal parts of a wave that is mostly full, the second
# ones by the clusters that it leaves: 8192x4096x14336 nt, 8192x4096x28672 nn, 8192x4096x32000 nn, 7.8 waves
# for 8, 0.7 to 3 % slower.)
_LONG_WORTH = 0.98
_REDUCE_THREADS, _MAX_RESIDENT = 256, 8


def _of_part(costs: Costs, tile: WgmmaTile) -> float:
    """Clocks of a tile's part along K by the rows of shared memory that it writes and reads."""
    rows = tile.m + tile.n + tile.m // 64 * (64 + tile.n)
    return max(costs.of_tile(tile), costs.steps * rows * _SHARED_ROW)


class SplitKConfig(NamedTuple):
    """`whole` tiles of clusters are computed at once, the others in `k_splits` parts; `clusters` are
    launched."""

    tile: WgmmaTile
    whole: int
    k_splits: int
    clusters: int

    def blocks(self, problem: Problem) -> int:
        """Blocks that compute a part of K."""
        return (self.tile.clusters(problem) - self.whole) * self.k_splits * self.tile.cluster

    def elements(self, problem: Problem) -> int:
        """Partial sums."""
        return self.blocks(problem) * self.tile.m * self.tile.n

    def clocks(
        self,
        problem: Problem,
        device: Device,
        of_part: Callable[[Costs, WgmmaTile], float] = Costs.of_tile,
    ) -> float:
        costs = Costs(problem, device)
        whole = ceil(self.whole, self.clusters) * costs.of_tile(self.tile)
        costs.steps = ceil(costs.steps, self.k_splits)
        added = self.elements(problem) * 4 / BYTES + (ceil(self.k_splits, _AT_ONCE) - 1) * _FURTHER_READ
        return whole + of_part(costs, self.tile) + REDUCE + added


class ClusterSplitK(NamedTuple):
    """The blocks of a cluster compute a tile in `k_splits` parts; all tiles at once."""

    tile: WgmmaTile
    k_splits: int

    def clocks(self, problem: Problem, device: Device) -> float:
        costs = Costs(problem, device)
        costs.steps = ceil(costs.steps, self.k_splits)
        exchanged = self.tile.m * self.tile.n * 4 * (self.k_splits - 1) / self.k_splits
        return _of_part(costs, self.tile) + _CLUSTER_SUM * self.k_splits + exchanged / _EXCHANGED


def _cluster_splits(problem: Problem, device: Device) -> list[ClusterSplitK]:
    """Every split-K in clusters whose tiles are one wave."""
    if problem.preactivation is not None:
        return []
    # Tiles of 64 rows would each load all of a b that is most of the data.
    heights = (128,) if 64 < problem.M <= 128 or problem.N > 8 * problem.M else (64, 128)
    tiles = [WgmmaTile(n, 0, m=m).filling(device) for m in heights for n in _CLUSTER_N]
    return [
        ClusterSplitK(tile.deepest(device), k_splits)
        for tile in tiles
        if tile.misfit(problem, device) is None
        for k_splits in _CLUSTER_ROOM
        if tile.n % (16 * k_splits) == 0
        and ceil(problem.K, 64) >= _MIN_CLUSTER_STEPS * k_splits
        and tile.clusters(problem) * k_splits <= device.multiprocessors * _CLUSTER_ROOM[k_splits]
    ]


def _splits(problem: Problem, device: Device, tile: WgmmaTile) -> list[SplitKConfig]:
    """Split-K of the last, partly filled wave. Every tile has the same number of splits: blocks of the same k
    then read the same data at the same time.

    2026-11-22, 512x8192x28672: stream-K (equal runs of steps for all multiprocessors) 410 us, data-parallel
    tiles 320."""
    tiles, room = tile.clusters(problem), device.multiprocessors // tile.cluster
    left = tiles % room
    limit = min(room // left if left else 0, ceil(problem.K, 64) // _MIN_STEPS, _MAX_K_SPLITS)
    if tiles > room:
        return [SplitKConfig(tile, tiles - left, limit, room)] if limit > 1 else []
    return [SplitKConfig(tile, 0, k_splits, left * k_splits) for k_splits in range(2, limit + 1)]


def splitk_config(problem: Problem, call: Call) -> SplitKConfig | ClusterSplitK | None:
    """The fastest split-K, or None where the product is faster without."""
    device = call.device
    tiles = [tile.filling(device) for tile in _SHAPES if tile.misfit(problem, device) is None]
    splits = [split for tile in tiles for split in _splits(problem, device, tile)]
    clusters = _cluster_splits(problem, device)
    other = problem.transposed() if few_columns(problem) else problem
    whole = Costs(other, device).total(wgmma_tile(other, device, {}))
    best = min(splits, key=lambda split: split.clocks(problem, device), default=None)
    if best is not None and best.clocks(problem, device) >= _WORTH * whole:
        best = None
    if clusters:
        cluster = min(clusters, key=lambda split: split.clocks(problem, device))
        if best:
            bar = _OF_SPLIT * best.clocks(problem, device, _of_part)
        else:
            other, tile = maybe_swap_ab(problem, call)
            bar = _OF_WHOLE * Costs(other, device).total(tile)
        if cluster.clocks(problem, device) < bar:
            return cluster
    return best


def long_config(problem: Problem, device: Device, tile: WgmmaTile) -> SplitKConfig | None:
    """Split-K of a long product's last wave, with the tile that it has without; None where it is as fast
    without."""
    if tile.n_tail or not tile.overlaps_store or strip_in_l2(problem, tile):
        return None
    options = _splits(problem, device, tile)
    best = min(options, key=lambda option: option.clocks(problem, device), default=None)
    whole = Costs(problem, device).total(tile)
    return best if best is not None and best.clocks(problem, device) < _LONG_WORTH * whole else None


def plan_splitk(problem: Problem, call: Call) -> Plan | Rejected:
    """wgmma.cu with split-K; operands that are not 16-byte aligned are realigned first."""
    if problem.c.unit_stride == "row" and problem.bias is None:
        problem = problem.transposed()
    copies = realigned(problem, call)
    if isinstance(copies, Rejected):
        return copies
    problem = copies.problem
    if (reason := unsuited(problem)) is not None:
        return reason
    split = splitk_config(problem, call)
    if split is None and is_long(problem):
        problem, tile = maybe_swap_ab(problem, call)
        split = long_config(problem, call.device, tile)
    if split is None:
        tile = wgmma_tile(problem, call.device, {})
        tiles = tile.clusters(problem) * tile.cluster
        return Rejected(f"split-K not needed: {tiles} output tiles for {call.device.multiprocessors} SMs")
    return planned(copies, problem, call, split)


plan = for_call(plan_splitk)


def _even_occupancy(blocks: int, device: Device) -> int:
    """Shared memory that keeps the blocks of a PDL launch from crowding on the first free multiprocessors."""
    each = min(ceil(blocks, device.multiprocessors), _MAX_RESIDENT)
    return (device.shared_memory // each - 1024) // 1024 * 1024


def reduction(
    tile: WgmmaTile,
    tiles: int,
    dtype: str,
    device: Device,
    defines: Sequence[tuple[str, int]],
    args: Sequence[tuple[str, Argument]],
) -> Launch:
    """splitk_reduce.cu over the partial sums of so many tiles, where a wgmma kernel's threads hold them as
    wgmma.cu's do; `defines` and `args`: those behind the tile's and behind the partial sums."""
    grid = (tiles, tile.m * tile.n // 4 // _REDUCE_THREADS, 1)
    kernel = NativeKernel(
        _SOURCE,
        "matmul_splitk_reduce",
        threads=_REDUCE_THREADS,
        defines=(
            ("ELEMENT", dtypes.of(dtype).c),
            ("TILE_M", tile.m),
            ("TILE_N", tile.n),
            ("CLUSTER_M", tile.cluster_m),
            ("CLUSTER_N", tile.cluster_n),
            ("GROUP_M", tile.group_m),
            ("THREADS", _REDUCE_THREADS),
            *defines,
        ),
        shared=_even_occupancy(grid[0] * grid[1], device),
        pdl=True,
    )
    return Launch(kernel, grid, (("partials", Pointer("partials", True)), *args))


def planned(copies: Realigned, problem: Problem, call: Call, split: SplitKConfig | ClusterSplitK) -> Plan:
    if isinstance(split, ClusterSplitK):
        product = launch(problem, call, split.tile, True, cluster_k=split.k_splits)
        return Plan((*copies.launches, product), copies.workspaces)
    tile = split.tile._replace(group_m=group_m_of(problem))
    defines = (
        ("C_CONTIGUOUS", int(problem.c.col == 1)),
        ("BIAS", int(problem.bias is not None)),
        ("ACTIVATION", ACTIVATIONS[problem.activation]),
        *preactivation_define(problem),
    )
    counts = (("whole", Scalar("i32", split.whole)), ("k_splits", Scalar("i32", split.k_splits)))
    outputs = (("c", pointer(problem.c)), *z_pointer(problem))
    args = (("bias", bias(problem)), *outputs, *counts, *sizes(problem))
    tiles = split.blocks(problem) // split.k_splits
    launches = (
        *copies.launches,
        launch(problem, call, tile, False, SplitK(split.whole, split.k_splits, split.clusters)),
        reduction(tile, tiles, problem.dtype, call.device, defines, args),
    )
    return Plan(launches, (*copies.workspaces, Workspace("partials", (split.elements(problem),), "float32")))
