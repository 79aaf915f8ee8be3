"""The plan of wgmma.cu: Hopper's tensor cores by warpgroup, fed by the bulk copy engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from portable.backends.cuda.tensor_map import TensorMap
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
from portable.kernels.matmul.problem import Operand, Problem
from portable.plan import Argument, Call, Device, NativeKernel, Plan, Rejected


class WgmmaTile(NamedTuple):
    """Columns of a block's tile in wgmma.cu (it has 128 rows), pipeline depth, the cluster's shape in tiles,
    into how many parts a cluster splits k, and how many rows of clusters are walked together."""

    n: int
    stages: int
    cluster_m: int = 1
    cluster_n: int = 1
    split: int = 1
    group: int = BAND
    lag: int = 0

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n * self.split

    @property
    def shared(self) -> int:
        stage = (128 + self.n) * 128
        buffers, biases = 4 * 64 * 128, 2 * 512
        return 1024 + self.stages * (stage + 16) + buffers + 16 + biases

    def clusters(self, problem: Problem) -> int:
        rows, cols = 128 * self.cluster_m, self.n * self.cluster_n
        return ceil(problem.M, rows) * ceil(problem.N, cols) * problem.batches

    def steps(self, problem: Problem) -> int:
        """Of 64 k."""
        return ceil(problem.K, 64 * self.split)


# Clocks of a step: of the tensor cores (N * 4), or of shared memory, where each consumer reads 64 + N lines of
# 32 bytes for 16 k and the copies write 128 + N lines of 128.
_STEP = {256: 1024, 128: 640, 64: 448}
_TILE, _JOIN = 900, 1500
_TILES = (
    WgmmaTile(256, 4, 2),
    WgmmaTile(256, 4),
    WgmmaTile(128, 6),
    WgmmaTile(64, 8),
)
_TUNABLES = {
    "TILE_N": "n",
    "STAGES": "stages",
    "CLUSTER_M": "cluster_m",
    "CLUSTER_N": "cluster_n",
    "SPLIT": "split",
    "GROUP": "group",
    "LAG": "lag",
}


def wgmma_tile(problem: Problem, device: Device, config: Mapping[str, Any]) -> WgmmaTile:
    """The tile whose waves of blocks take the least time, with the config's values over it."""

    def clocks(tile: WgmmaTile) -> float:
        clusters, resident = tile.clusters(problem), device.multiprocessors // tile.cluster
        if tile.split > 1 and clusters > resident:
            return float("inf")
        per_tile = tile.steps(problem) * _STEP[tile.n] + _TILE + (_JOIN if tile.split > 1 else 0)
        return ceil(clusters, resident) * per_tile

    tile = min(_TILES, key=clocks)
    given = {field: config[name] for name, field in _TUNABLES.items() if config.get(name)}
    return tile._replace(**given)


def _spread(blocks: int, steps: int) -> int:
    """During how many steps a tile's blocks are stored: a power of two, fewer than the steps."""
    return min(blocks, 1 << (steps - 1).bit_length() - 1) if steps > 1 else 0


def _tensor_map(operand: Operand, rows: int, cols: int, batch: tuple[int, int], lines: int) -> TensorMap:
    """Boxes of 64 elements along the unit stride and `lines` along the other; batch dimensions that do
    not step have size 1, since a map knows no stride of 0."""
    along, across = (cols, rows) if operand.unit == "col" else (rows, cols)
    outer, inner = operand.batch
    sizes = (along, across, batch[1] if inner else 1, batch[0] if outer else 1)
    strides = (operand.leading, inner or operand.leading, outer or operand.leading)
    return TensorMap(
        operand.tensor,
        operand.dtype,
        sizes,
        tuple(stride * operand.itemsize for stride in strides),
        (64, lines, 1, 1),
    )


def _no_map(operand: Operand, rows: int, cols: int) -> Rejected | None:
    if not operand.aligned_to(16):
        return Rejected(f"{operand.tensor} has lines that do not start at multiples of 16 bytes")
    along, across = (cols, rows) if operand.unit == "col" else (rows, cols)
    if across > 1 and operand.leading < along:
        return Rejected(f"{operand.tensor} has lines that overlap")
    return None


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
        if (reason := _no_map(operand, rows, cols)) is not None:
            return reason
    tile = wgmma_tile(problem, call.device, call.config)
    spread = _spread(tile.n // 64, tile.steps(problem))
    a_along_k, b_along_k = along_k(problem)
    by_engine = c.col == 1 and _no_map(c, M, N) is None
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
            ("SPLIT", tile.split),
            ("SPREAD", spread),
            ("LAG", min(tile.lag, spread)),
            ("C_BY_ENGINE", int(by_engine)),
            *common_defines(problem, tile.group),
        ),
        shared=tile.shared,
    )
    maps: list[tuple[str, Argument]] = [
        ("map_a", _tensor_map(a, M, K, problem.batch, 128 // tile.cluster_n if a_along_k else 64)),
        ("map_b", _tensor_map(b, K, N, problem.batch, tile.n // tile.cluster_m if b_along_k else 64)),
    ]
    if by_engine:
        maps.append(("map_c", _tensor_map(c, M, N, problem.batch, 64)))
    clusters = tile.clusters(problem)
    if clusters > MOST_TILES:
        return Rejected(f"{clusters} tiles exceed {MOST_TILES}")
    resident = call.device.multiprocessors // tile.cluster
    if tile.split > 1 and clusters > resident:
        return Rejected(f"{clusters} clusters that split k are more than the {resident} that run at once")
    blocks = min(clusters, resident) * tile.cluster
    return plan(kernel, blocks, problem, (*maps, ("bias", bias(problem)), ("c", pointer(c))))
