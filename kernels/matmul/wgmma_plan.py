"""The plan of wgmma.cu: Hopper's tensor cores by warpgroup, fed by the bulk copy engine."""

from __future__ import annotations

from typing import NamedTuple

from portable.backends.cuda.tensor_map import TensorMap
from portable.kernels.matmul.launches import (
    ELEMENTS,
    HERE,
    MOST_TILES,
    along_k,
    bias,
    ceil,
    common_defines,
    plan,
    pointer,
    size_class,
    unfit,
)
from portable.kernels.matmul.problem import Operand, Problem
from portable.plan import Argument, Call, Device, NativeKernel, Plan, Rejected


class WgmmaTile(NamedTuple):
    """Columns of a block's tile in wgmma.cu (it has 128 rows), pipeline depth, blocks per cluster, and
    the time of one tile as a share of the largest one's."""

    n: int
    stages: int
    cluster: int
    time: float

    def shared(self) -> int:
        stage = (128 + self.n) * 128
        buffers = 4 * 64 * 128
        return 1024 + self.stages * (stage + 16) + buffers


_WGMMA = (WgmmaTile(256, 4, 2, 1.0), WgmmaTile(128, 5, 1, 0.56), WgmmaTile(64, 6, 1, 0.34))


def wgmma_tile(problem: Problem, device: Device) -> WgmmaTile:
    """The tile whose waves of blocks take the least time."""
    M, N = size_class(problem.M), size_class(problem.N)

    def time(tile: WgmmaTile) -> float:
        clusters = ceil(M, 128 * tile.cluster) * ceil(N, tile.n) * problem.batches
        return ceil(clusters * tile.cluster, device.multiprocessors) * tile.time

    return min(_WGMMA, key=time)


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
    tile = wgmma_tile(problem, call.device)
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
            ("CLUSTER", tile.cluster),
            ("C_BY_ENGINE", int(by_engine)),
            *common_defines(problem),
        ),
        shared=tile.shared(),
    )
    maps: list[tuple[str, Argument]] = [
        ("map_a", _tensor_map(a, M, K, problem.batch, 128 if a_along_k else 64)),
        ("map_b", _tensor_map(b, K, N, problem.batch, tile.n // tile.cluster if b_along_k else 64)),
    ]
    if by_engine:
        maps.append(("map_c", _tensor_map(c, M, N, problem.batch, 64)))
    clusters = ceil(M, 128 * tile.cluster) * ceil(N, tile.n) * problem.batches
    if clusters > MOST_TILES:
        return Rejected(f"{clusters} tiles exceed {MOST_TILES}")
    blocks = min(clusters, call.device.multiprocessors // tile.cluster) * tile.cluster
    return plan(kernel, blocks, problem, (*maps, ("bias", bias(problem)), ("c", pointer(c))))
