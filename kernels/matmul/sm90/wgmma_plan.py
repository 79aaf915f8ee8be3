"""The plan of wgmma.cu: Hopper's tensor cores by warpgroup, operands by TMA."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from portable import dtypes
from portable.kernels.matmul.launch_args import (
    GROUP_M,
    MAX_TILES,
    bias,
    ceil,
    common_defines,
    k_major,
    pointer,
    sizes,
    unfit,
    z_pointer,
)
from portable.kernels.matmul.problem import Problem, for_call
from portable.kernels.matmul.sm90.tma_descriptors import (
    SECTOR,
    operands_unsupported,
    tma_descriptor,
    tma_unsupported,
)
from portable.plan import Argument, Call, Device, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar

_SOURCE = Path(__file__).with_name("wgmma.cu")


class WgmmaTile(NamedTuple):
    """A block's tile in wgmma.cu: N, pipeline stages, the cluster's shape in tiles, rows of clusters in a
    raster group, M, and N of the narrow tiles (the N tail), 0 where there are none."""

    n: int
    stages: int
    cluster_m: int = 1
    cluster_n: int = 1
    group_m: int = GROUP_M
    m: int = 128
    n_tail: int = 0

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
        """With as many stages as fit where a block has one tile (non-persistent)."""
        free = device.shared_memory - self._replace(stages=0).shared(True)
        return self._replace(stages=free // self._stage)

    def filling(self, device: Device) -> WgmmaTile:
        """With as many stages as fit where blocks are persistent, 8 at most."""
        free = device.shared_memory - self._replace(stages=0).shared(False)
        return self._replace(stages=min(free // self._stage, _MAX_STAGES))

    @property
    def step(self) -> float:
        """Clocks of 64 k: the tensor cores take 4 a column of 128 rows, and some more where columns are few
        (measured: 256 1024, 192 776, 160 660, 128 538, 96 430); 128-byte rows arrive one at a time, whether
        this block loads them or another of its cluster."""
        products = (4 * self.n + (256 - self.n) ** 2 / 600) * self.m / 128
        return max(products, (self.m + self.n) * _LINE)

    @property
    def loaded(self) -> float:
        """128-byte rows of a step that a block loads."""
        return self.m / self.cluster_n + self.n / self.cluster_m

    @property
    def between(self) -> int:
        return _BETWEEN + (_BY_THREADS if self.n % 64 else 0) + (0 if self.overlaps_store else _NO_OVERLAP)

    @property
    def overlaps_store(self) -> bool:
        """Whether a thread has registers for a finished tile beside the next one's accumulators, so that its
        store overlaps the next main loop."""
        return self.m <= 128

    @property
    def blocks_of_c(self) -> int:
        """Of 64 columns, for each 64 rows."""
        return ceil(self.n, 64)

    @property
    def _stage(self) -> int:
        return (self.m + self.n) * 128 + 16

    def shared(self, non_persistent: bool) -> int:
        blocks_of_c, bias = 0 if non_persistent else 2 * 64 * 128, 512
        return 1024 + self.stages * self._stage + self.m // 64 * (blocks_of_c + bias)

    def grid(self, problem: Problem) -> tuple[int, int, int]:
        """Clusters of full tiles along M and N, and batches."""
        cols = problem.N // self.width if self.n_tail else ceil(problem.N, self.width)
        return ceil(problem.M, self.m * self.cluster_m), cols, problem.batches

    def clusters(self, problem: Problem) -> int:
        return math.prod(self.grid(problem))

    def n_tails(self, problem: Problem) -> int:
        return ceil(problem.M, self.m) * problem.batches if self.n_tail else 0

    def misfit(self, problem: Problem, device: Device) -> str | None:
        """Why this tile cannot be used."""
        if problem.gated and self.n % 128:
            return f"gate and up need TILE_N in multiples of 128, not {self.n}"
        if problem.gated and self.n_tail:
            return "gate and up have no N tail"
        if self.n % 64 and problem.b.unit_stride == "col":
            return f"an N-major b needs TILE_N in multiples of 64, not {self.n}"
        if problem.preactivation is not None and not self.overlaps_store:
            return f"TILE_M = {self.m} leaves no registers for the preactivation"
        if self.n_tail and problem.N % self.width > self.n_tail:
            return f"an N tail of {problem.N % self.width} columns does not fit narrow tiles of {self.n_tail}"
        if self.shared(False) > device.shared_memory:
            return (
                f"{self.stages} stages of {self.m}x{self.n} need {self.shared(False)} bytes of shared memory"
            )
        return None


_MAX_STAGES = 8  # of persistent blocks
# Measured 2026-11-21 and 22. Clocks between tiles; further ones where threads, not TMA, store a tile's last
# columns, and where the store does not overlap the next main loop.
_BETWEEN, _BY_THREADS, _NO_OVERLAP = 400, 600, 2000

_WIDE, _LOW = (256, 224, 208, 192, 176, 160, 144, 128, 96), (64, 80, 96, 128)
_PAIRED = (64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 256)  # of 64 rows, which share b


def _tiles(device: Device) -> tuple[WgmmaTile, ...]:
    wide = [WgmmaTile(n, 0, down) for n in _WIDE for down in (1, 2)]
    high = [WgmmaTile(n, 0, *cluster, m=192) for n in (192, 128) for cluster in ((1, 1), (2, 1), (1, 2))]
    low = [WgmmaTile(n, 0, m=64) for n in _LOW]
    paired = [WgmmaTile(n, 0, 2, m=64) for n in _PAIRED]
    tiles = (*paired, *wide, WgmmaTile(192, 0, 1, 2), *low, WgmmaTile(64, 0), *high)
    return tuple(tile.filling(device) for tile in tiles)


# Clocks per 128-byte row that arrives at a multiprocessor, and of one of an operand whose rows start inside
# sectors of L2 (those that start at sectors are no slower). 2026-11-27: fitted to 484 times of tiles at 19
# sizes and to 104 pairs of plans. With 4.7, and nothing for the even operand's rows beside it, 5000^3 nn was
# 13 % and 4000x12000x5000 nt 3 % slower, 1000x10000x3000 nn 5 % faster.
_LINE, _UNALIGNED_LINE = 2.06, 3.4
# 128-byte rows per clock: of L2, those it gives to all multiprocessors and those it takes from memory; of
# memory. 2026-11-22: 128x8192x8192 in tiles of 64x128 42.5 us, in 2x1 clusters, which load two thirds as
# much, 37.
_L2, _MEMORY = 66.0, 18.3
# Loads from memory are a little slower for L2's own traffic.
_L2_SHARE = 0.1
# A cluster that shares b (multicast) loads less, which pays where tiles fill more than one wave, from the
# third step on: 2026-11-22, 1536^3, 1792^3 and 768x3072x768, one wave, 5 to 8 % slower in 2x1 clusters,
# 5120^3 1.5 % faster. With a single row of clusters no other cluster reads b: 128x5120x5120 19.2 us, 16.6 in
# 2x1 clusters. (Sharing a: 4096^3 and 8192^3 0.7 to 2.5 % slower than sharing b.) Blocks outside c are idle,
# and where they load they delay their cluster: 384x4096x4096, a quarter of them, 32 us, 25 where they do not.
_CLUSTER, _SHORT_CLUSTER, _OUTSIDE = 0.985, 1.03, 0.5
_ONE_WAVE = 1.1
# TILE_N that is no multiple of 64: its last columns are stored apart.
_NOT_64 = 1.02
# A product with A and B swapped must take at most this share of the time without.
_SWAP_AB = 0.95
# With a K-major b, any TILE_N is allowed either way and only the waves differ, as they do where M and N are
# larger than this. 2026-11-27, 4000x12000x5000: 128x192 swapped 1.03 times as fast as 128x256. (384x4096x4096
# is slower swapped, whatever its waves.)
_SWAP_K_MAJOR = 2048
# 2026-11-22: 8192x128x8192 40.4 us, with A and B swapped 37.3.
_FEW_COLUMNS = 128
# A product of so many multiply-adds runs at the GPU's power limit, where lines from memory cost clock. A
# raster group's rows of a (a strip) stay in L2 where they are so many bytes at most, since both halves of L2
# keep a copy; and where c has fewer columns than rows, A and B are swapped, so that groups are longer.
# 2026-11-27, under load: 8192x28672x4096 nt 1.5 % faster with a in L2, 8192x14336x4096 nn 1.2, 8192x6144x4096
# nt swapped and so 0.9; swapped alone 28672x4096x8192 tn 1.3, 8192x4096x32000 nn 1.0, 8192x4096x14336 nt
# -0.2. (With b evicted first, 8192x4096x32000 was 1.5 % slower: its rows of a are 131 MB.)
_LONG, _STRIP_BYTES = 1 << 37, 16 << 20
# Raster groups are smaller where K is short. 2026-11-22, 8192x8192xK, 4 beside 8: K = 256 3 % faster, 512 2
# %, 1024 0.7 % slower.
_SHORT_K, _SHORT_K_GROUP_M = 512, 4
_TUNABLES = {
    "TILE_M": "m",
    "TILE_N": "n",
    "STAGES": "stages",
    "CLUSTER_M": "cluster_m",
    "CLUSTER_N": "cluster_n",
    "GROUP_M": "group_m",
    "N_TAIL": "n_tail",
}


class Costs:
    """Estimated clocks of a problem."""

    def __init__(self, problem: Problem, device: Device):
        self.problem, self.device = problem, device
        self.steps = self.all_steps = ceil(problem.K, 64)
        uneven = [operand.leading * operand.itemsize % SECTOR > 0 for operand in (problem.a, problem.b)]
        each = [_UNALIGNED_LINE if inside else _LINE for inside in uneven]
        self.of_line = each if any(uneven) else [0.0, 0.0]  # even ones are part of a tile's step

    def outside(self, tile: WgmmaTile) -> float:
        """The share of a cluster's blocks that are wholly outside c."""
        rows, cols = ceil(self.problem.M, tile.m), ceil(self.problem.N, tile.n)
        return 1 - rows * cols / (ceil(rows, tile.cluster_m) * ceil(cols, tile.cluster_n) * tile.cluster or 1)

    def of_tile(self, tile: WgmmaTile) -> float:
        line_a, line_b = self.of_line
        lines = line_a * tile.m // tile.cluster_n + line_b * tile.n // tile.cluster_m
        blocks = tile.clusters(self.problem) * tile.cluster * self.all_steps // self.steps
        busy = min(blocks, self.device.multiprocessors)
        fresh = (self.problem.M + self.problem.N) * self.problem.batches * busy / max(blocks, 1)
        fresh *= self.all_steps / self.steps
        from_l2 = (busy * tile.loaded + fresh) / _L2
        from_memory = fresh / _MEMORY / (0.5 + 0.5 * busy / self.device.multiprocessors) + _L2_SHARE * from_l2
        step = max(max(tile.step, lines, from_l2) * self.share(tile, blocks), from_memory)
        return self.steps * step + tile.between

    def share(self, tile: WgmmaTile, blocks: int) -> float:
        """The factor of a step's time for a tile's cluster shape."""
        share = 1.0
        if tile.cluster_m > 1:
            if self.steps <= 2:
                share = _SHORT_CLUSTER
            elif blocks > self.device.multiprocessors:
                share = _CLUSTER
            elif self.steps == self.all_steps and tile.m * tile.cluster_m < self.problem.M:
                share = _ONE_WAVE
        across = self.problem.b.unit_stride == "col" and tile.n // tile.cluster_m % 64
        if tile.n % 64 or across:
            share *= _NOT_64
        return share + _OUTSIDE * self.outside(tile)

    def of_n_tail(self, tile: WgmmaTile) -> float:
        return self.of_tile(WgmmaTile(tile.n_tail, tile.stages, m=tile.m))

    def total(self, tile: WgmmaTile) -> float:
        """Waves of full tiles; the N tail runs in the last wave where it has room, else after it."""
        whole = self.of_tile(tile)
        waves, left = divmod(tile.clusters(self.problem), self.device.multiprocessors // tile.cluster)
        if not tile.n_tail:
            return (waves + bool(left)) * whole
        rounds = ceil(tile.n_tails(self.problem), max(self.blocks(tile) - self.first_n_tail(tile), 1))
        narrow = rounds * self.of_n_tail(tile)
        if self.first_n_tail(tile):
            return waves * whole + max(whole, narrow)
        return (waves + bool(left)) * whole + narrow

    def blocks(self, tile: WgmmaTile) -> int:
        wanted = tile.clusters(self.problem) + ceil(tile.n_tails(self.problem), tile.cluster)
        return min(wanted, self.device.multiprocessors // tile.cluster) * tile.cluster

    def first_n_tail(self, tile: WgmmaTile) -> int:
        """The first block that has tiles of the N tail: blocks without a full tile in the last wave take them
        all, where that is no slower than dividing them among all blocks."""
        blocks = self.blocks(tile)
        if not tile.n_tail or not blocks:
            return 0
        left = tile.clusters(self.problem) * tile.cluster % blocks
        if not left:
            return 0
        apart = ceil(tile.n_tails(self.problem), blocks - left) * self.of_n_tail(tile)
        among = self.of_tile(tile) + ceil(tile.n_tails(self.problem), blocks) * self.of_n_tail(tile)
        return left if max(apart, self.of_tile(tile)) <= among else 0


def _n_tails(problem: Problem, tile: WgmmaTile) -> tuple[WgmmaTile, ...]:
    """The tile, and the tile with an N tail of narrow tiles."""
    left = problem.N % tile.width
    if problem.gated:
        return (tile,)
    narrow = 64 if left <= 64 else 128
    if not left or left > 128 or narrow >= tile.n or tile.width > problem.N or tile.n % 64:
        return (tile,)
    return tile, tile._replace(n_tail=narrow)


def group_m_of(problem: Problem) -> int:
    return _SHORT_K_GROUP_M if problem.K <= _SHORT_K else GROUP_M


def wgmma_tile(problem: Problem, device: Device, config: Mapping[str, Any]) -> WgmmaTile:
    """The tile whose waves take the least time, overridden by the config's values."""
    costs = Costs(problem.product, device)
    fitting = [tile for tile in _tiles(device) if tile.misfit(problem, device) is None]
    group_m = group_m_of(problem)
    given = {field: config[name] for name, field in _TUNABLES.items() if config.get(name) is not None}
    if "n" in given:
        shape = given["n"], given.get("m", 128)
        named = [tile for tile in fitting if (tile.n, tile.m) == shape]
        named = named or [WgmmaTile(shape[0], 0, m=shape[1]).filling(device)]
        return min(named, key=costs.total)._replace(**{"group_m": group_m, **given})
    tile = min((each for tile in fitting for each in _n_tails(problem, tile)), key=costs.total)
    return tile._replace(**{"group_m": group_m, **given})


def unsuited(problem: Problem) -> Rejected | None:
    """Why wgmma.cu cannot compute this with any tile."""
    if (reason := unfit(problem)) is not None:
        return reason
    if problem.M <= 64:
        return Rejected(f"M = {problem.M} is too small for this kernel's tiles; it needs more than 64")
    return operands_unsupported(problem)


def c_by_tma(problem: Problem) -> bool:
    """Whether TMA stores c: row- or column-major, 16-byte aligned."""
    return problem.c.unit_stride is not None and tma_unsupported(problem.c, problem.M, problem.N) is None


def c_col_major(problem: Problem) -> bool:
    return problem.c.col != 1 and c_by_tma(problem)


def few_columns(problem: Problem) -> bool:
    """Whether N is so small that A and B are swapped, for one row of clusters."""
    return problem.transposable and problem.N <= _FEW_COLUMNS < problem.M and c_by_tma(problem)


def maybe_swap_ab(problem: Problem, call: Call) -> tuple[Problem, WgmmaTile]:
    """The problem, with A and B swapped where that is faster, and its tile. A K-major b allows any TILE_N, so
    that row-major a and b are better swapped."""
    tile = wgmma_tile(problem, call.device, call.config)
    if not problem.transposable or not c_by_tma(problem) or problem.N <= 64 or call.config.get("TILE_N"):
        return problem, tile
    few = few_columns(problem)
    if problem.b.unit_stride == "row" and not few and min(problem.M, problem.N) <= _SWAP_K_MAJOR:
        return problem, tile
    other = problem.transposed()
    swapped = wgmma_tile(other, call.device, call.config)
    unswapped = Costs(problem, call.device).total(tile)
    time = Costs(other, call.device).total(swapped)
    rows_last = is_long(problem) and problem.N < problem.M and time <= unswapped
    gains = problem.b.unit_stride == "col" or strip_in_l2(other, swapped)
    if few or time < _SWAP_AB * unswapped or (rows_last and gains):
        return other, swapped
    return problem, tile


def plan_wgmma(problem: Problem, call: Call) -> Plan | Rejected:
    """bfloat16 and float16, 16-byte aligned operands of any layout."""
    if problem.c.unit_stride == "row" and problem.transposable:
        problem = problem.transposed()
    if (reason := unsuited(problem)) is not None:
        return reason
    problem, tile = maybe_swap_ab(problem, call)
    if (misfit := tile.misfit(problem, call.device)) is not None:
        return Rejected(misfit)
    clusters = tile.clusters(problem.product)
    if clusters > MAX_TILES:
        return Rejected(f"{clusters} tiles exceed {MAX_TILES}")
    fits = clusters <= call.device.multiprocessors // tile.cluster
    non_persistent = fits and not tile.n_tail and problem.preactivation is None
    if non_persistent and not call.config.get("STAGES"):
        tile = tile.deepest(call.device)
    return Plan((launch(problem, call, tile, non_persistent),))


plan = for_call(plan_wgmma)


_NOWHERE = 2**31 - 1


def last_col(problem: Problem, tile: WgmmaTile, splitk: bool = False) -> int:
    """Where a tile starts that would reach beyond c's last column: so that it ends there, since lines outside
    b take TMA longer than those inside it, or anywhere. The columns that two tiles compute get the same bits.

    2026-11-27, H200, of torch: 1520^3 nt 0.97 -> 1.07, 1200^3 nt 1.06 -> 1.10, 3000^3 nn 1.008 -> 1.022."""
    if splitk or problem.gated or tile.n_tail or tile.n > problem.N or not c_by_tma(problem):
        return _NOWHERE
    b = problem.b
    _, b_k_major = k_major(problem)
    # Of an N-major b, no line may start inside a sector that did not before.
    starts = 8 if b_k_major or b.leading * b.itemsize % SECTOR else SECTOR // b.itemsize
    return _NOWHERE if problem.N % starts else problem.N - tile.n


def is_long(problem: Problem) -> bool:
    """Whether a product takes so long that it runs at the GPU's power limit."""
    return problem.batches == 1 and problem.M * problem.N * problem.K >= _LONG


def strip_in_l2(problem: Problem, tile: WgmmaTile) -> bool:
    """Whether the rows of a that a raster group reads for every column of c are to stay in L2."""
    strip = tile.group_m * tile.cluster_m * tile.m * problem.K * problem.a.itemsize
    plain = not (problem.gated or tile.n_tail) and c_by_tma(problem)
    return is_long(problem) and plain and strip <= _STRIP_BYTES


class SplitK(NamedTuple):
    """Tiles from `whole` on are computed in `k_splits` parts along K; their partial sums go to the workspace
    "partials"."""

    whole: int
    k_splits: int
    clusters: int  # launched, for all tiles


def _box_rows(lines: int, k_major: bool, blocks: int) -> int:
    """Rows of a TMA box of an operand that `blocks` blocks of a cluster load together: some of its rows, or,
    where it is not K-major and its rows do not divide into 64s, some k of all."""
    if k_major:
        return lines // blocks
    return 64 if lines // blocks % 64 == 0 else 64 // blocks


def launch(
    problem: Problem,
    call: Call,
    tile: WgmmaTile,
    non_persistent: bool,
    splitk: SplitK | None = None,
    cluster_k: int = 1,
) -> Launch:
    """One launch of wgmma.cu with this tile; a cluster of `cluster_k` blocks computes it in parts along K."""
    M, N, K, a, b, c = problem.M, problem.N, problem.K, problem.a, problem.b, problem.c
    a_k_major, b_k_major = k_major(problem)
    by_tma = c_by_tma(problem)
    c_lines = 16 if c_col_major(problem) and tile.n // cluster_k % 64 else 64
    m_tail = a_k_major and tile.cluster_n == 1 and not tile.n_tail
    c_blocks = ceil(tile.n // 2, 64) if problem.gated else tile.blocks_of_c
    z = None if problem.preactivation is None else replace(c, tensor=problem.preactivation)
    kernel = NativeKernel(
        _SOURCE,
        "matmul_wgmma",
        threads=tile.threads,
        defines=(
            ("ELEMENT", dtypes.of(problem.dtype).c),
            ("TILE_M", tile.m),
            ("TILE_N", tile.n),
            ("STAGES", tile.stages),
            ("CLUSTER_M", tile.cluster_m),
            ("CLUSTER_N", tile.cluster_n),
            ("CLUSTER_K", cluster_k),
            (
                "STORE_STEPS",
                min(c_blocks, ceil(K, 64) - 1) if tile.overlaps_store and not non_persistent else 0,
            ),
            ("N_TAIL", tile.n_tail),
            ("NON_PERSISTENT", int(non_persistent)),
            ("M_TAIL", int(m_tail)),
            ("SPLITK", int(splitk is not None)),
            ("C_TMA", int(by_tma)),
            ("C_COL_MAJOR", int(c_col_major(problem))),
            ("C_BOX_COLS", c_lines),
            ("C_CONTIGUOUS", int(c.col == 1)),
            ("STRIP_IN_L2", int(splitk is None and not non_persistent and strip_in_l2(problem, tile))),
            *common_defines(problem, 1 if non_persistent and cluster_k == 1 else tile.group_m),
            *((("ALPHAS", len(problem.alphas)),) if problem.alphas else ()),
        ),
        shared=tile.shared(non_persistent),
        pdl=True,
    )
    costs = Costs(problem.product, call.device)
    a_lines = _box_rows(tile.m, a_k_major, tile.cluster_n)
    b_lines, b_matrices = _box_rows(tile.n, b_k_major, tile.cluster_m), 1
    if problem.gated:
        b_lines, b_matrices = (tile.n // 2, 2 // tile.cluster_m) if b_k_major else (64, 1)
    # L2 promotion. 2026-11-22: a single wave is 0.5 % (2048^3) to 2.5 % (1024^3) faster with 128, larger
    # products equal.
    promotion = 128 if non_persistent or any(costs.of_line) else 256
    maps: list[tuple[str, Argument]] = [
        ("map_a", tma_descriptor(a, M, K, problem.batch, a_lines, promotion)),
        ("map_b", tma_descriptor(b, K, N, problem.batch_of(b), b_lines, promotion, b_matrices)),
    ]
    if m_tail:
        rows = ceil(M % tile.m, 8) * 8 or tile.m
        maps.append(("map_m_tail", tma_descriptor(a, M, K, problem.batch, rows, promotion)))
    if tile.n_tail:
        maps.append(("map_n_tail", tma_descriptor(b, K, N, problem.batch, tile.n_tail if b_k_major else 64)))
    if by_tma:
        maps.append(("map_c", tma_descriptor(c, M, N, problem.batch, c_lines)))
        if z is not None:
            maps.append(("map_z", tma_descriptor(z, M, N, problem.batch, c_lines)))
    grid = (costs.blocks(tile), 1, 1)
    if cluster_k > 1:
        grid = (tile.clusters(problem) * cluster_k, 1, 1)
    elif non_persistent:
        across, down, batches = tile.grid(problem.product)
        grid = (across * tile.cluster, down, batches)
    outputs: tuple[tuple[str, Argument], ...] = (("c", pointer(c)), *z_pointer(problem))
    if splitk is not None:
        grid = (splitk.clusters * tile.cluster, 1, 1)
        whole, k_splits = Scalar("i32", splitk.whole), Scalar("i32", splitk.k_splits)
        outputs += (("partials", Pointer("partials", True)), ("whole", whole), ("k_splits", k_splits))
    outputs += tuple(
        (f"{place}_alpha", Pointer(name))
        for place, name in zip(("first", "second"), problem.alphas, strict=False)
    )
    places = (
        ("first_n_tail", Scalar("i32", costs.first_n_tail(tile))),
        ("last_col", Scalar("i32", last_col(problem, tile, splitk is not None))),
    )
    return Launch(kernel, grid, (*maps, ("bias", bias(problem)), *outputs, *places, *sizes(problem)))
