"""The plan of wgmma.cu: Hopper's tensor cores by warpgroup, fed by the bulk copy engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from portable.kernels.matmul.launches import (
    BAND,
    ELEMENTS,
    HERE,
    MOST_TILES,
    along_k,
    bias,
    ceil,
    common_defines,
    plan,
    pointer,
    unfit,
)
from portable.kernels.matmul.operand_map import no_map, tensor_map
from portable.kernels.matmul.problem import Problem
from portable.plan import Argument, Call, Device, NativeKernel, Plan, Rejected


class WgmmaTile(NamedTuple):
    """Columns of a block's tile in wgmma.cu (it has 128 rows), pipeline depth, the cluster's shape in tiles,
    and how many rows of clusters are walked together."""

    n: int
    stages: int
    cluster_m: int = 1
    cluster_n: int = 1
    group: int = BAND

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def shared(self) -> int:
        stage = (128 + self.n) * 128
        blocks_of_c, bias = 2 * 64 * 128, 512
        return 1024 + self.stages * (stage + 16) + 2 * (blocks_of_c + bias)

    def clusters(self, problem: Problem) -> int:
        rows, cols = 128 * self.cluster_m, self.n * self.cluster_n
        return ceil(problem.M, rows) * ceil(problem.N, cols) * problem.batches

    def misfit(self, problem: Problem, device: Device) -> str | None:
        """Why this tile cannot be used."""
        if self.n // self.cluster_m % 64 and problem.b.unit == "col":
            return f"{self.cluster_m} blocks cannot share {self.n} columns of a row-major b in blocks of 64"
        if self.shared > device.shared_memory:
            return f"{self.stages} stages of 128x{self.n} take {self.shared} bytes of shared memory"
        return None


_TILES = (
    WgmmaTile(256, 4, 2, 1),
    WgmmaTile(192, 4, 2, 1),
    WgmmaTile(192, 4, 1, 2),
    WgmmaTile(128, 6, 2, 1),
    WgmmaTile(256, 4),
    WgmmaTile(128, 6),
    WgmmaTile(64, 8),
)
# Clocks of a step of 64 k, measured 2026-11-21: 256 and 192 columns keep the tensor cores busy (4 clocks a
# column); 128 and 64 wait for L2, which brings 64 bytes a clock. The card's power limit lowers its clock by
# what narrow tiles load more, hence 2 % on 192 columns and 3 % on 128. Then what is spent between tiles.
_STEP = {256: 1024, 192: 784, 128: 546, 64: 400}
_BETWEEN = 400
# Lines that do not lie at multiples of 128 bytes in memory take two requests of L2: clocks a line that a
# block loads itself, from 1000^3 and 1111x2222x3336.
_UNEVEN_LINE = 4.7
# A cluster loads less, which pays from the third step on.
_CLUSTER, _SHORT_CLUSTER = 0.985, 1.03
_TUNABLES = {
    "TILE_N": "n",
    "STAGES": "stages",
    "CLUSTER_M": "cluster_m",
    "CLUSTER_N": "cluster_n",
    "GROUP": "group",
}


def wgmma_tile(problem: Problem, device: Device, config: Mapping[str, Any]) -> WgmmaTile:
    """The tile whose waves of blocks take the least time, with the config's values over it."""
    steps = ceil(problem.K, 64)
    uneven_a, uneven_b = (operand.leading * operand.itemsize % 128 > 0 for operand in (problem.a, problem.b))

    def clocks(tile: WgmmaTile) -> float:
        waves = ceil(tile.clusters(problem), device.multiprocessors // tile.cluster)
        uneven_lines = uneven_a * 128 // tile.cluster_n + uneven_b * tile.n // tile.cluster_m
        step = max(_STEP[tile.n], uneven_lines * _UNEVEN_LINE)
        share = 1.0 if tile.cluster == 1 else _CLUSTER if steps > 2 else _SHORT_CLUSTER
        return waves * (steps * step + _BETWEEN) * share

    tile = min((tile for tile in _TILES if tile.misfit(problem, device) is None), key=clocks)
    given = {field: config[name] for name, field in _TUNABLES.items() if config.get(name)}
    return tile._replace(**given)


def plan_wgmma(problem: Problem, call: Call) -> Plan | Rejected:
    """Hopper's tensor cores by warpgroup: bfloat16 and float16, operands in 16-byte aligned lines."""
    if problem.c.unit == "row" and problem.bias is None:
        problem = problem.transposed()
    if (reason := unfit(problem)) is not None:
        return reason
    if problem.M <= 64:
        return Rejected(f"its tiles have 128 rows; {problem.M} would leave most of one empty")
    if problem.K == 0:
        return Rejected("an empty sum has nothing to copy")
    M, N, K, a, b, c = problem.M, problem.N, problem.K, problem.a, problem.b, problem.c
    for operand, rows, cols in ((a, M, K), (b, K, N)):
        if (reason := no_map(operand, rows, cols)) is not None:
            return reason
    tile = wgmma_tile(problem, call.device, call.config)
    if (misfit := tile.misfit(problem, call.device)) is not None:
        return Rejected(misfit)
    a_along_k, b_along_k = along_k(problem)
    by_engine = c.col == 1 and no_map(c, M, N) is None
    kernel = NativeKernel(
        HERE / "wgmma.cu",
        "matmul_wgmma",
        threads=384,
        defines=(
            ("ELEMENT", ELEMENTS[problem.dtype]),
            ("TILE_N", tile.n),
            ("STAGES", tile.stages),
            ("CLUSTER_M", tile.cluster_m),
            ("CLUSTER_N", tile.cluster_n),
            ("SPREAD", min(tile.n // 64, ceil(K, 64) - 1)),
            ("C_BY_ENGINE", int(by_engine)),
            *common_defines(problem, tile.group),
        ),
        shared=tile.shared,
    )
    maps: list[tuple[str, Argument]] = [
        ("map_a", tensor_map(a, M, K, problem.batch, 128 // tile.cluster_n if a_along_k else 64)),
        ("map_b", tensor_map(b, K, N, problem.batch, tile.n // tile.cluster_m if b_along_k else 64)),
    ]
    if by_engine:
        maps.append(("map_c", tensor_map(c, M, N, problem.batch, 64)))
    clusters = tile.clusters(problem)
    if clusters > MOST_TILES:
        return Rejected(f"{clusters} tiles exceed {MOST_TILES}")
    blocks = min(clusters, call.device.multiprocessors // tile.cluster) * tile.cluster
    return plan(kernel, blocks, problem, (*maps, ("bias", bias(problem)), ("c", pointer(c))))
