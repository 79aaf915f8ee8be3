"""Plans for the CUDA C++ kernels: wgmma.cu (Hopper), mma.cu (Ampere and later), simt.cu (any vendor).

`wgmma`, `mma`, `mfma`, `wmma` and `simt` plan a call of matmul; the `plan_` functions plan a canonical
`Problem`, so that linear shares them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from portable.backends.cuda.tensor_map import TensorMap
from portable.kernels.matmul import hip_native
from portable.kernels.matmul.problem import Operand, Problem, from_matmul
from portable.plan import Argument, Call, Device, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar

_HERE = Path(__file__).resolve().parent
_ELEMENTS = {"bfloat16": "bf16", "float16": "f16", "float32": "float"}
_ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}
_MOST_LINES = 2**31 - 512  # sizes and tile coordinates are 32-bit
_MOST_TILES = 2**31 - 1
_BAND = 8  # tile rows that are walked together, for reuse in L2

Planner = Callable[[Problem, Call], "Plan | Rejected"]


def wgmma(call: Call) -> Plan | Rejected:
    return _planned(call, plan_wgmma)


def mma(call: Call) -> Plan | Rejected:
    return _planned(call, plan_mma)


def simt(call: Call) -> Plan | Rejected:
    return _planned(call, plan_simt)


def mfma(call: Call) -> Plan | Rejected:
    return _planned(call, hip_native.mfma)


def wmma(call: Call) -> Plan | Rejected:
    return _planned(call, hip_native.wmma)


def _planned(call: Call, planner: Planner) -> Plan | Rejected:
    problem = from_matmul(call)
    return problem if isinstance(problem, Rejected) else planner(problem, call)


def _ceil(value: int, step: int) -> int:
    return -(-value // step)


def _size_class(value: int) -> int:
    """The next power of two: tiles are chosen by it, so that nearby shapes share a compiled kernel."""
    return 1 << max(value - 1, 0).bit_length()


def _oriented(problem: Problem) -> Problem:
    """The product as it stands, or transposed where that makes c row-major, or makes the long one of a
    very unequal M and N the second, where small-M tiles serve it."""
    if problem.bias is not None:
        return problem
    if problem.c.unit == "row" or (problem.N <= 16 < problem.M):
        return problem.transposed()
    return problem


def _unfit(problem: Problem) -> Rejected | None:
    for operand in (problem.a, problem.b):
        if operand.unit is None:
            return Rejected(f"neither rows nor columns of {operand.tensor} are contiguous")
    if max(problem.M, problem.N, problem.K) > _MOST_LINES:
        return Rejected(f"a size exceeds {_MOST_LINES}")
    return None


def _along_k(problem: Problem) -> tuple[bool, bool]:
    return problem.a.unit == "col", problem.b.unit == "row"


def _common_defines(problem: Problem) -> tuple[tuple[str, int | str], ...]:
    a_along_k, b_along_k = _along_k(problem)
    return (
        ("A_ALONG_K", int(a_along_k)),
        ("B_ALONG_K", int(b_along_k)),
        ("BIAS", int(problem.bias is not None)),
        ("ACTIVATION", _ACTIVATIONS[problem.activation]),
        ("GROUP", _BAND),
    )


def _sizes(problem: Problem) -> tuple[tuple[str, Argument], ...]:
    """tile.h's SIZES_PARAMETERS."""
    a, b, c = problem.a, problem.b, problem.c
    counts = (("m", problem.M), ("n", problem.N), ("k", problem.K))
    batches = (("outer_batches", problem.batch[0]), ("inner_batches", problem.batch[1]))
    strides = (("a_leading", a.leading), ("b_leading", b.leading), ("c_row", c.row), ("c_col", c.col))
    steps = (
        (f"{name}_{place}", operand.batch[index])
        for name, operand in (("a", a), ("b", b), ("c", c))
        for index, place in enumerate(("outer", "inner"))
    )
    return (
        *((name, Scalar("i32", value)) for name, value in (*counts, *batches)),
        *((name, Scalar("i64", value)) for name, value in (*strides, *steps)),
    )


def _pointer(operand: Operand) -> Pointer:
    return Pointer(operand.tensor, operand.alignment >= 16)


def _bias(problem: Problem) -> Argument:
    return Scalar("i64", 0) if problem.bias is None else Pointer(problem.bias)


def _plan(kernel: NativeKernel, blocks: int, problem: Problem, first: tuple[tuple[str, Argument], ...]):
    if blocks > _MOST_TILES:
        return Rejected(f"{blocks} tiles exceed a grid of {_MOST_TILES} blocks")
    return Plan((Launch(kernel, (blocks, 1, 1), (*first, *_sizes(problem))),))


def _pointers(problem: Problem) -> tuple[tuple[str, Argument], ...]:
    a, b, c = problem.a, problem.b, problem.c
    return ("a", _pointer(a)), ("b", _pointer(b)), ("bias", _bias(problem)), ("c", _pointer(c))


def _row_vectors(c: Operand) -> bool:
    return c.col == 1 and c.aligned_to(16)


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
_MMA_TF32 = (MmaTile(128, 128, 32, 2, 4, 3), MmaTile(64, 64, 32, 2, 2, 4))
_MMA_TF32_FLAT = MmaTile(16, 64, 64, 1, 4, 4)


def mma_tile(problem: Problem, device: Device) -> MmaTile:
    """The largest tile that still gives every multiprocessor one; 16 rows where there are no more."""
    wide = problem.dtype == "float32"
    M, N = _size_class(problem.M), _size_class(problem.N)
    if M <= 16:
        return _MMA_TF32_FLAT if wide else _MMA_16BIT_FLAT
    tiles = _MMA_TF32 if wide else _MMA_16BIT
    for tile in tiles[:-1]:
        blocks = _ceil(M, tile.m) * _ceil(N, tile.n) * problem.batches
        if tile.m <= M and blocks >= device.multiprocessors:
            return tile
    return tiles[-1]


def plan_mma(problem: Problem, call: Call) -> Plan | Rejected:
    """Tensor cores by warp: bfloat16, float16, and float32 with TF32 products; any alignment."""
    if problem.dtype == "float32" and problem.precision != "tf32":
        return Rejected('float32 products are IEEE unless precision="tf32" is given')
    problem = _oriented(problem)
    if (reason := _unfit(problem)) is not None:
        return reason
    tile = mma_tile(problem, call.device)
    itemsize = problem.a.itemsize
    widths = (16, 4) if itemsize == 4 else (16, 4, 2)
    kernel = NativeKernel(
        _HERE / "mma.cu",
        "matmul_mma",
        threads=32 * tile.warps_m * tile.warps_n,
        defines=(
            ("ELEMENT", _ELEMENTS[problem.dtype]),
            ("TILE_M", tile.m),
            ("TILE_N", tile.n),
            ("TILE_K", tile.k),
            ("WARPS_M", tile.warps_m),
            ("WARPS_N", tile.warps_n),
            ("STAGES", tile.stages),
            ("A_BYTES", next(width for width in widths if problem.a.aligned_to(width))),
            ("B_BYTES", next(width for width in widths if problem.b.aligned_to(width))),
            ("C_VECTOR", int(_row_vectors(problem.c))),
            *_common_defines(problem),
        ),
        shared=tile.shared(itemsize),
    )
    blocks = _ceil(problem.M, tile.m) * _ceil(problem.N, tile.n) * problem.batches
    return _plan(kernel, blocks, problem, _pointers(problem))


class SimtTile(NamedTuple):
    """What a block of simt.cu computes, and its threads along M and N."""

    m: int
    n: int
    k: int
    threads_m: int
    threads_n: int


# 8 x 16 sums a thread fit CUDA's 255 registers without spills; clang for AMD spills them on gfx11 and
# gfx12, and has 8 x 8 in 216 registers.
_SIMT_LARGE = SimtTile(128, 128, 8, 16, 8)
_SIMT_LARGE_HIP = SimtTile(128, 128, 8, 16, 16)
_SIMT_SMALL = SimtTile(64, 64, 16, 16, 16)


def plan_simt(problem: Problem, call: Call) -> Plan | Rejected:
    """float32 with IEEE products on the vector units."""
    if problem.dtype != "float32" or problem.precision != "ieee":
        return Rejected(f"{problem.dtype} with {problem.precision} products is for matrix cores")
    problem = _oriented(problem)
    if (reason := _unfit(problem)) is not None:
        return reason
    M, N = _size_class(problem.M), _size_class(problem.N)
    large = _ceil(M, 128) * _ceil(N, 128) * problem.batches >= call.device.multiprocessors
    tile = _SIMT_SMALL
    if large and M > 64:
        tile = _SIMT_LARGE if call.device.vendor == "cuda" else _SIMT_LARGE_HIP
    kernel = NativeKernel(
        _HERE / "simt.cu",
        "matmul_simt",
        threads=tile.threads_m * tile.threads_n,
        defines=(
            ("TILE_M", tile.m),
            ("TILE_N", tile.n),
            ("TILE_K", tile.k),
            ("THREADS_M", tile.threads_m),
            ("THREADS_N", tile.threads_n),
            ("A_BYTES", 16 if problem.a.aligned_to(16) else 4),
            ("B_BYTES", 16 if problem.b.aligned_to(16) else 4),
            ("C_VECTOR", int(_row_vectors(problem.c))),
            *_common_defines(problem),
        ),
    )
    blocks = _ceil(problem.M, tile.m) * _ceil(problem.N, tile.n) * problem.batches
    return _plan(kernel, blocks, problem, _pointers(problem))


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
    M, N = _size_class(problem.M), _size_class(problem.N)

    def time(tile: WgmmaTile) -> float:
        clusters = _ceil(M, 128 * tile.cluster) * _ceil(N, tile.n) * problem.batches
        return _ceil(clusters * tile.cluster, device.multiprocessors) * tile.time

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
    if (reason := _unfit(problem)) is not None:
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
    a_along_k, b_along_k = _along_k(problem)
    by_engine = c.col == 1 and _no_map(c, M, N) is None
    kernel = NativeKernel(
        _HERE / "wgmma.cu",
        "matmul_wgmma",
        threads=384,
        defines=(
            ("ELEMENT", _ELEMENTS[problem.dtype]),
            ("TILE_N", tile.n),
            ("STAGES", tile.stages),
            ("CLUSTER", tile.cluster),
            ("C_BY_ENGINE", int(by_engine)),
            *_common_defines(problem),
        ),
        shared=tile.shared(),
    )
    maps: list[tuple[str, Argument]] = [
        ("map_a", _tensor_map(a, M, K, problem.batch, 128 if a_along_k else 64)),
        ("map_b", _tensor_map(b, K, N, problem.batch, tile.n // tile.cluster if b_along_k else 64)),
    ]
    if by_engine:
        maps.append(("map_c", _tensor_map(c, M, N, problem.batch, 64)))
    clusters = _ceil(M, 128 * tile.cluster) * _ceil(N, tile.n) * problem.batches
    if clusters > _MOST_TILES:
        return Rejected(f"{clusters} tiles exceed {_MOST_TILES}")
    blocks = min(clusters, call.device.multiprocessors // tile.cluster) * tile.cluster
    return _plan(kernel, blocks, problem, (*maps, ("bias", _bias(problem)), ("c", _pointer(c))))
