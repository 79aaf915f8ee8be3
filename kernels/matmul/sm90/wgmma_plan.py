"""The plan of wgmma.cu: Hopper's tensor cores by warpgroup, fed by the bulk copy engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from portable import dtypes
from portable.kernels.matmul.launch_args import (
    BAND,
    HERE,
    MOST_TILES,
    along_k,
    bias,
    ceil,
    common_defines,
    pointer,
    sizes,
    unfit,
    z_pointer,
)
from portable.kernels.matmul.problem import Problem
from portable.kernels.matmul.sm90.tma_descriptors import no_map, tensor_map
from portable.plan import Argument, Call, Device, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar


class WgmmaTile(NamedTuple):
    """Columns of a block's tile in wgmma.cu, pipeline depth, the cluster's shape in tiles, how many rows of
    clusters are walked together, the tile's rows, and the columns of narrow tiles at the product's edge."""

    n: int
    stages: int
    cluster_m: int = 1
    cluster_n: int = 1
    group: int = BAND
    m: int = 128
    edge: int = 0

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def width(self) -> int:
        return self.n * self.cluster_n

    @property
    def threads(self) -> int:
        return 2 * self.m + (128 if self.m > 64 else 32)

    def deepest(self, device: Device) -> WgmmaTile:
        """With as many stages as fit where a block has one tile."""
        free = device.shared_memory - self._replace(stages=0).shared(True)
        return self._replace(stages=free // self._stage)

    def filling(self, device: Device) -> WgmmaTile:
        """With as many as fit where it walks, 8 at most."""
        free = device.shared_memory - self._replace(stages=0).shared(False)
        return self._replace(stages=min(free // self._stage, _MOST_STAGES))

    @property
    def step(self) -> float:
        """Clocks of 64 k: the tensor cores take 4 a column of 128 rows, and some more where columns are few
        (measured: 256 1024, 192 776, 160 660, 128 538, 96 430); lines of 128 bytes arrive one at a time,
        whether the block asks for them or its cluster."""
        products = (4 * self.n + (256 - self.n) ** 2 / 600) * self.m / 128
        return max(products, (self.m + self.n) * _LINE)

    @property
    def loaded(self) -> float:
        """Lines of a step that a block asks for."""
        return self.m / self.cluster_n + self.n / self.cluster_m

    @property
    def between(self) -> int:
        return _BETWEEN + (_BY_THREADS if self.n % 64 else 0) + (0 if self.holds else _NOT_HELD)

    @property
    def holds(self) -> bool:
        """Whether a thread has registers for a finished tile beside the next one's sums."""
        return self.m <= 128

    @property
    def blocks_of_c(self) -> int:
        """Of 64 columns, for each 64 rows."""
        return ceil(self.n, 64)

    @property
    def _stage(self) -> int:
        return (self.m + self.n) * 128 + 16

    def shared(self, once: bool) -> int:
        blocks_of_c, bias = 0 if once else 2 * 64 * 128, 512
        return 1024 + self.stages * self._stage + self.m // 64 * (blocks_of_c + bias)

    def grid(self, problem: Problem) -> tuple[int, int, int]:
        """Clusters of whole tiles along M and N, and batches."""
        cols = problem.N // self.width if self.edge else ceil(problem.N, self.width)
        return ceil(problem.M, self.m * self.cluster_m), cols, problem.batches

    def clusters(self, problem: Problem) -> int:
        return math.prod(self.grid(problem))

    def edges(self, problem: Problem) -> int:
        return ceil(problem.M, self.m) * problem.batches if self.edge else 0

    def misfit(self, problem: Problem, device: Device) -> str | None:
        """Why this tile cannot be used."""
        if self.n % 64 and problem.b.unit == "col":
            return f"lines of 64 columns do not end with {self.n}"
        if problem.preactivation is not None and not self.holds:
            return f"a thread has no registers for both outputs of a tile of {self.m} rows"
        if self.edge and problem.N % self.width > self.edge:
            return f"{problem.N % self.width} columns do not fit narrow tiles of {self.edge}"
        if self.shared(False) > device.shared_memory:
            return (
                f"{self.stages} stages of {self.m}x{self.n} take {self.shared(False)} bytes of shared memory"
            )
        return None


_MOST_STAGES = 8  # where a block walks tiles
# Measured 2026-11-21 and 22. Clocks that are spent between tiles; beyond that where threads store a tile's
# last columns, and where its sums are stored before the next tile's products.
_BETWEEN, _BY_THREADS, _NOT_HELD = 400, 600, 2000


_WIDE, _LOW = (256, 224, 208, 192, 176, 160, 144, 128, 96), (64, 80, 96, 128)
_PAIRED = (64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 256)  # of 64 rows, which share b


def _tiles(device: Device) -> tuple[WgmmaTile, ...]:
    wide = [WgmmaTile(n, 0, down) for n in _WIDE for down in (1, 2)]
    high = [WgmmaTile(n, 0, *cluster, m=192) for n in (192, 128) for cluster in ((1, 1), (2, 1), (1, 2))]
    low = [WgmmaTile(n, 0, m=64) for n in _LOW]
    paired = [WgmmaTile(n, 0, 2, m=64) for n in _PAIRED]
    tiles = (*paired, *wide, WgmmaTile(192, 0, 1, 2), *low, WgmmaTile(64, 0), *high)
    return tuple(tile.filling(device) for tile in tiles)


# Clocks a line of 128 bytes that arrives at a multiprocessor. For one that a block asks for and that does not
# lie at a multiple of 128 bytes in memory, two requests of L2 (1000^3, 3000^3, 1111x2222x3336).
_LINE, _UNEVEN_LINE = 2.06, 4.7
# Lines a clock of L2, those it gives to all multiprocessors and those it takes from memory; of memory.
# 2026-11-22: 128x8192x8192 in tiles of 64x128 42.5 us, in pairs, which ask for two thirds of the lines, 37.
_L2, _MEMORY = 66.0, 18.3
# What memory brings is a little later for what L2 has to do beside it.
_BESIDE = 0.1
# A cluster that shares b loads less, which pays where tiles fill more than one wave, from the third step on:
# 2026-11-22, 1536^3, 1792^3 and 768x3072x768, one wave, 5 to 8 % slower in pairs, 5120^3 1.5 % faster.
# Where one row of clusters is all, nobody else reads b: 128x5120x5120 19.2 us, 16.6 in pairs.
# (Sharing a: 4096^3 and 8192^3 0.7 to 2.5 % slower than sharing b.) Blocks that lie beyond c are idle, and
# where they load they hold up their cluster: 384x4096x4096, a quarter of them, 32 us, 25 where they do not.
_CLUSTER, _SHORT_CLUSTER, _BEYOND = 0.985, 1.03, 0.5
_ONE_WAVE = 1.1
# Widths between multiples of 64: their last columns leave apart.
_IN_BETWEEN = 1.02
# Of the time upright: a flipped product must be faster than that.
_FLIP = 0.95
# 2026-11-22: 8192x128x8192 upright 40.4 us, and as 128 rows 37.3.
_FEW_COLUMNS = 128
# Rows of clusters walked together: fewer where k is short. 2026-11-22, 8192x8192xK, 4 beside 8: K = 256 3 %
# faster, 512 2 %, 1024 0.7 % slower.
_SHORT_K, _SHORT_BAND = 512, 4
_TUNABLES = {
    "TILE_M": "m",
    "TILE_N": "n",
    "STAGES": "stages",
    "CLUSTER_M": "cluster_m",
    "CLUSTER_N": "cluster_n",
    "GROUP": "group",
    "EDGE": "edge",
}


class Costs:
    """Clocks that a problem takes."""

    def __init__(self, problem: Problem, device: Device):
        self.problem, self.device = problem, device
        self.steps = self.all_steps = ceil(problem.K, 64)
        self.uneven_line = tuple(
            _UNEVEN_LINE if operand.leading * operand.itemsize % 128 else 0.0
            for operand in (problem.a, problem.b)
        )

    def beyond(self, tile: WgmmaTile) -> float:
        """The share of a cluster's blocks that lie wholly beyond c."""
        rows, cols = ceil(self.problem.M, tile.m), ceil(self.problem.N, tile.n)
        return 1 - rows * cols / (ceil(rows, tile.cluster_m) * ceil(cols, tile.cluster_n) * tile.cluster or 1)

    def of_tile(self, tile: WgmmaTile) -> float:
        uneven_a, uneven_b = self.uneven_line
        uneven = uneven_a * tile.m // tile.cluster_n + uneven_b * tile.n // tile.cluster_m
        blocks = tile.clusters(self.problem) * tile.cluster * self.all_steps // self.steps
        busy = min(blocks, self.device.multiprocessors)
        fresh = (self.problem.M + self.problem.N) * self.problem.batches * busy / max(blocks, 1)
        fresh *= self.all_steps / self.steps
        from_l2 = (busy * tile.loaded + fresh) / _L2
        from_memory = fresh / _MEMORY / (0.5 + 0.5 * busy / self.device.multiprocessors) + _BESIDE * from_l2
        step = max(max(tile.step, uneven, from_l2) * self.share(tile, blocks), from_memory)
        return self.steps * step + tile.between

    def share(self, tile: WgmmaTile, blocks: int) -> float:
        """Of a step's time, what a tile's shape makes of it."""
        share = 1.0
        if tile.cluster_m > 1:
            if self.steps <= 2:
                share = _SHORT_CLUSTER
            elif blocks > self.device.multiprocessors:
                share = _CLUSTER
            elif self.steps == self.all_steps and tile.m * tile.cluster_m < self.problem.M:
                share = _ONE_WAVE
        across = self.problem.b.unit == "col" and tile.n // tile.cluster_m % 64
        if tile.n % 64 or across:
            share *= _IN_BETWEEN
        return share + _BEYOND * self.beyond(tile)

    def of_edge(self, tile: WgmmaTile) -> float:
        return self.of_tile(WgmmaTile(tile.edge, tile.stages, m=tile.m))

    def total(self, tile: WgmmaTile) -> float:
        """Whole tiles by waves. Narrow ones run in the last of them where it has room, else after it."""
        whole = self.of_tile(tile)
        waves, left = divmod(tile.clusters(self.problem), self.device.multiprocessors // tile.cluster)
        if not tile.edge:
            return (waves + bool(left)) * whole
        rounds = ceil(tile.edges(self.problem), max(self.blocks(tile) - self.first_edge(tile), 1))
        narrow = rounds * self.of_edge(tile)
        if self.first_edge(tile):
            return waves * whole + max(whole, narrow)
        return (waves + bool(left)) * whole + narrow

    def blocks(self, tile: WgmmaTile) -> int:
        wanted = tile.clusters(self.problem) + ceil(tile.edges(self.problem), tile.cluster)
        return min(wanted, self.device.multiprocessors // tile.cluster) * tile.cluster

    def first_edge(self, tile: WgmmaTile) -> int:
        """The first block that has narrow tiles: those that lack a whole one in the last wave take them all,
        where that is no later than if every block took some."""
        blocks = self.blocks(tile)
        if not tile.edge or not blocks:
            return 0
        left = tile.clusters(self.problem) * tile.cluster % blocks
        if not left:
            return 0
        apart = ceil(tile.edges(self.problem), blocks - left) * self.of_edge(tile)
        among = self.of_tile(tile) + ceil(tile.edges(self.problem), blocks) * self.of_edge(tile)
        return left if max(apart, self.of_tile(tile)) <= among else 0


def _edges(problem: Problem, tile: WgmmaTile) -> tuple[WgmmaTile, ...]:
    """The tile, and with narrow ones for the columns that would not fill it."""
    left = problem.N % tile.width
    narrow = 64 if left <= 64 else 128
    if not left or left > 128 or narrow >= tile.n or tile.width > problem.N or tile.n % 64:
        return (tile,)
    return tile, tile._replace(edge=narrow)


def band_of(problem: Problem) -> int:
    return _SHORT_BAND if problem.K <= _SHORT_K else BAND


def wgmma_tile(problem: Problem, device: Device, config: Mapping[str, Any]) -> WgmmaTile:
    """The tile whose waves of blocks take the least time, with the config's values over it."""
    costs = Costs(problem, device)
    fitting = [tile for tile in _tiles(device) if tile.misfit(problem, device) is None]
    band = band_of(problem)
    given = {field: config[name] for name, field in _TUNABLES.items() if config.get(name) is not None}
    if "n" in given:
        shape = given["n"], given.get("m", 128)
        named = [tile for tile in fitting if (tile.n, tile.m) == shape]
        named = named or [WgmmaTile(shape[0], 0, m=shape[1]).filling(device)]
        return min(named, key=costs.total)._replace(**{"group": band, **given})
    tile = min((each for tile in fitting for each in _edges(problem, tile)), key=costs.total)
    return tile._replace(**{"group": band, **given})


def unsuited(problem: Problem) -> Rejected | None:
    """Why wgmma.cu cannot multiply this, in any tile."""
    if (reason := unfit(problem)) is not None:
        return reason
    if problem.M <= 64:
        return Rejected(f"its tiles have 128 rows; {problem.M} would leave most of one empty")
    if problem.K == 0:
        return Rejected("an empty sum has nothing to copy")
    for operand, rows, cols in ((problem.a, problem.M, problem.K), (problem.b, problem.K, problem.N)):
        if (reason := no_map(operand, rows, cols)) is not None:
            return reason
    return None


def c_by_engine(problem: Problem) -> bool:
    """Whether c is row-major, or flipped, with 16-byte aligned lines."""
    return problem.c.unit is not None and no_map(problem.c, problem.M, problem.N) is None


def flipped(problem: Problem) -> bool:
    return problem.c.col != 1 and c_by_engine(problem)


def few_columns(problem: Problem) -> bool:
    """Whether columns are better rows, of one row of clusters."""
    return problem.bias is None and problem.N <= _FEW_COLUMNS < problem.M and c_by_engine(problem)


def _upright_or_flipped(problem: Problem, call: Call) -> tuple[Problem, WgmmaTile]:
    """The tile, and the product as it stands or transposed. Where b's lines run along k a tile may be of any
    width, so that a row-major b beside a row-major a is better transposed."""
    tile = wgmma_tile(problem, call.device, call.config)
    if problem.bias is not None or not c_by_engine(problem) or problem.N <= 64 or call.config.get("TILE_N"):
        return problem, tile
    few = few_columns(problem)
    if problem.b.unit == "row" and not few:
        return problem, tile
    other = problem.transposed()
    turned = wgmma_tile(other, call.device, call.config)
    upright = Costs(problem, call.device).total(tile)
    if few or Costs(other, call.device).total(turned) < _FLIP * upright:
        return other, turned
    return problem, tile


def plan_wgmma(problem: Problem, call: Call) -> Plan | Rejected:
    """Hopper's tensor cores by warpgroup: bfloat16 and float16, operands in 16-byte aligned lines."""
    if problem.c.unit == "row" and problem.bias is None:
        problem = problem.transposed()
    if (reason := unsuited(problem)) is not None:
        return reason
    problem, tile = _upright_or_flipped(problem, call)
    if (misfit := tile.misfit(problem, call.device)) is not None:
        return Rejected(misfit)
    clusters = tile.clusters(problem)
    if clusters > MOST_TILES:
        return Rejected(f"{clusters} tiles exceed {MOST_TILES}")
    fits = clusters <= call.device.multiprocessors // tile.cluster
    once = fits and not tile.edge and problem.preactivation is None
    if once and not call.config.get("STAGES"):
        tile = tile.deepest(call.device)
    return Plan((launch(problem, call, tile, once),))


class Divided(NamedTuple):
    """Tiles that are divided along k into `parts`: those from `whole` on. Their bare sums go to the workspace
    "sums"."""

    whole: int
    parts: int
    clusters: int  # of blocks, for all tiles


def _share(lines: int, lies_along_k: bool, blocks: int) -> int:
    """Lines of a box where blocks share an operand's: some of them, or, where it does not lie along k and
    cannot be shared in blocks of 64, some k of all."""
    if lies_along_k:
        return lines // blocks
    return 64 if lines // blocks % 64 == 0 else 64 // blocks


def launch(
    problem: Problem, call: Call, tile: WgmmaTile, once: bool, divided: Divided | None = None
) -> Launch:
    """wgmma.cu with this tile."""
    M, N, K, a, b, c = problem.M, problem.N, problem.K, problem.a, problem.b, problem.c
    a_along_k, b_along_k = along_k(problem)
    by_engine = c_by_engine(problem)
    c_lines = 16 if flipped(problem) and tile.n % 64 else 64
    last = a_along_k and tile.cluster_n == 1 and not tile.edge
    z = None if problem.preactivation is None else replace(c, tensor=problem.preactivation)
    kernel = NativeKernel(
        HERE / "sm90/wgmma.cu",
        "matmul_wgmma",
        threads=tile.threads,
        defines=(
            ("ELEMENT", dtypes.of(problem.dtype).c),
            ("TILE_M", tile.m),
            ("TILE_N", tile.n),
            ("STAGES", tile.stages),
            ("CLUSTER_M", tile.cluster_m),
            ("CLUSTER_N", tile.cluster_n),
            ("SPREAD", min(tile.blocks_of_c, ceil(K, 64) - 1) if tile.holds and not once else 0),
            ("EDGE", tile.edge),
            ("ONCE", int(once)),
            ("LAST", int(last)),
            ("DIVIDED", int(divided is not None)),
            ("C_BY_ENGINE", int(by_engine)),
            ("FLIPPED", int(flipped(problem))),
            ("C_LINES", c_lines),
            ("C_TOUCHES", int(c.col == 1)),
            *common_defines(problem, 1 if once else tile.group),
        ),
        shared=tile.shared(once),
        pdl=True,
    )
    costs = Costs(problem, call.device)
    a_lines = _share(tile.m, a_along_k, tile.cluster_n)
    b_lines = _share(tile.n, b_along_k, tile.cluster_m)
    # 2026-11-22: a single wave is 0.5 % (2048^3) to 2.5 % (1024^3) faster with 128, larger products as fast.
    promotion = 128 if once or any(costs.uneven_line) else 256
    maps: list[tuple[str, Argument]] = [
        ("map_a", tensor_map(a, M, K, problem.batch, a_lines, promotion)),
        ("map_b", tensor_map(b, K, N, problem.batch, b_lines, promotion)),
    ]
    if last:
        rows = ceil(M % tile.m, 8) * 8 or tile.m
        maps.append(("map_last", tensor_map(a, M, K, problem.batch, rows, promotion)))
    if tile.edge:
        maps.append(("map_edge", tensor_map(b, K, N, problem.batch, tile.edge if b_along_k else 64)))
    if by_engine:
        maps.append(("map_c", tensor_map(c, M, N, problem.batch, c_lines)))
        if z is not None:
            maps.append(("map_z", tensor_map(z, M, N, problem.batch, c_lines)))
    grid = (costs.blocks(tile), 1, 1)
    if once:
        across, down, batches = tile.grid(problem)
        grid = (across * tile.cluster, down, batches)
    outputs: tuple[tuple[str, Argument], ...] = (("c", pointer(c)), *z_pointer(problem))
    if divided is not None:
        grid = (divided.clusters * tile.cluster, 1, 1)
        whole, parts = Scalar("i32", divided.whole), Scalar("i32", divided.parts)
        outputs += (("sums", Pointer("sums", True)), ("whole", whole), ("parts", parts))
    first_edge = Scalar("i32", costs.first_edge(tile))
    return Launch(
        kernel, grid, (*maps, ("bias", bias(problem)), *outputs, ("first_edge", first_edge), *sizes(problem))
    )
