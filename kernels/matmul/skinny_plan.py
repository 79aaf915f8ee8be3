"""The plan of skinny.cu and skinny_f32.cu: products with few rows on Hopper, bound by reading one operand."""

from __future__ import annotations

from typing import NamedTuple

from portable.backends.cuda.tensor_map import TensorMap
from portable.kernels.matmul.launches import (
    ACTIVATIONS,
    ELEMENTS,
    HERE,
    MOST_TILES,
    bias,
    ceil,
    pointer,
    row_vectors,
    size_class,
    sizes,
    unfit,
)
from portable.kernels.matmul.problem import Operand, Problem
from portable.plan import Call, Device, Launch, NativeKernel, Plan, Rejected

_MOST_ROWS = 128
_MOST_ROWS_F32 = 32
# Blocks of a cluster that divide k. Clusters of more than two that fill a multiprocessor each leave some idle.
_SPLITS = (1, 2, 3, 4, 8)
# Bytes a microsecond: of the memory and of L2; of one multiprocessor from the memory, from L2 and from the
# shared memory of another; its fused multiply-adds. Microseconds that a cluster costs, and more for one of eight.
_MEMORY, _L2, _FROM_MEMORY, _FROM_L2, _REMOTE, _FMA = 4.1e6, 9e6, 0.05e6, 0.1e6, 0.02e6, 0.13e6
_CLUSTER, _WIDE_CLUSTER = 0.7, 1.0


class SkinnyTile(NamedTuple):
    """Rows and columns that a block computes, lines of 128 bytes along k in a stage, the warps that
    multiply, and blocks per multiprocessor."""

    rows: int
    n: int
    lines: int
    warps: int
    resident: int

    def stage(self, x_lines: int) -> int:
        return self.lines * (self.n * 128 + ceil(x_lines * 128, 1024) * 1024)

    def stages(self, x_lines: int, device: Device) -> int:
        """As many as fit, every block with its own kilobyte of the system's and one for alignment."""
        space = (device.shared_memory + 1024) // self.resident - 2048
        return min(space // (self.stage(x_lines) + 16), 12)

    def time(self, problem: Problem, split: int, device: Device) -> float:
        """Microseconds, about, beside those that every launch takes."""
        size, blocks = problem.a.itemsize, ceil(problem.N, self.n) * problem.batches * split
        depth = ceil(problem.K, split)
        waves = ceil(blocks, self.resident * device.multiprocessors)
        busy = min(device.multiprocessors, blocks / waves)
        stream = max(
            problem.batches * problem.N * problem.K * size / min(_MEMORY, busy * _FROM_MEMORY),
            blocks * (self.n + self.rows) * depth * size / min(_L2, busy * _FROM_L2),
            blocks * self.n * self.rows * depth / busy / _FMA if size == 4 else 0.0,
        )
        if split == 1:
            return stream
        reduce = self.rows * self.n * 4 * (split - 1) / split / _REMOTE + _CLUSTER
        return stream + reduce + (_WIDE_CLUSTER if split > 4 else 0.0)


def _rows(problem: Problem) -> int:
    """Rows of the tile: the next power of two that the kernels have; those that lie along the rows of a
    16-bit operand come 64 at a time."""
    least = 4 if problem.dtype == "float32" else 64 if problem.a.unit == "row" else 8
    return max(size_class(problem.M), least)


def _tiles(problem: Problem) -> tuple[SkinnyTile, ...]:
    rows = _rows(problem)
    if problem.dtype == "float32":
        return (SkinnyTile(rows, 128, 1, 8, 1),)
    wide = SkinnyTile(rows, 128, 1, 8, 1 if rows == 128 else 2)
    return wide, SkinnyTile(rows, 64, 2 if rows <= 32 else 1, 4, 2)


def _choice(problem: Problem, device: Device) -> tuple[SkinnyTile, int]:
    """The tile and the parts of k that take the least time; every part has two steps at least."""
    line = 128 // problem.a.itemsize

    def possible(tile: SkinnyTile, split: int) -> bool:
        fits = split <= 2 or tile.resident > 1 or ceil(problem.N, tile.n) * problem.batches * split <= 5 * device.multiprocessors // 6
        return split == 1 or (fits and ceil(problem.K, line * tile.lines) >= 2 * split)

    options = [(tile, split) for tile in _tiles(problem) for split in _SPLITS if possible(tile, split)]
    return min(options, key=lambda option: option[0].time(problem, option[1], device))


def _map(operand: Operand, rows: int, cols: int, batch: tuple[int, int], lines: int) -> TensorMap:
    """Boxes of one 128-byte line along the unit stride and `lines` across; batch dimensions that do not
    step have size 1, since a map knows no stride of 0."""
    along, across = (cols, rows) if operand.unit == "col" else (rows, cols)
    outer, inner = operand.batch
    counts = (along, across, batch[1] if inner else 1, batch[0] if outer else 1)
    strides = (operand.leading, inner or operand.leading, outer or operand.leading)
    steps = tuple(stride * operand.itemsize for stride in strides)
    return TensorMap(
        operand.tensor, operand.dtype, counts, steps, (128 // operand.itemsize, lines, 1, 1)
    )


def _no_map(operand: Operand, rows: int, cols: int) -> Rejected | None:
    if not operand.aligned_to(16):
        return Rejected(f"{operand.tensor} has lines that do not start at multiples of 16 bytes")
    along, across = (cols, rows) if operand.unit == "col" else (rows, cols)
    if across > 1 and operand.leading < along:
        return Rejected(f"{operand.tensor} has lines that overlap")
    return None


def plan_skinny(problem: Problem, call: Call) -> Plan | Rejected:
    """At most 128 rows (float32: 32) on either side, operands in 16-byte aligned lines."""
    if problem.bias is None and problem.N < problem.M:
        problem = problem.transposed()
    if (reason := unfit(problem)) is not None:
        return reason
    wide = problem.dtype == "float32"
    if wide and problem.precision != "ieee":
        return Rejected("it multiplies float32 as IEEE does, not as TF32")
    most = _MOST_ROWS_F32 if wide else _MOST_ROWS
    if problem.M > most:
        return Rejected(f"it is for at most {most} rows, not {problem.M}")
    if problem.K == 0:
        return Rejected("an empty sum has nothing to copy")
    for operand, rows, cols in ((problem.a, problem.M, problem.K), (problem.b, problem.K, problem.N)):
        if (reason := _no_map(operand, rows, cols)) is not None:
            return reason

    tile, split = _choice(problem, call.device)
    get = call.config.get
    tile = tile._replace(n=get("n", tile.n), lines=get("lines", tile.lines), resident=get("resident", tile.resident))
    tile = tile._replace(warps=get("warps", tile.n // 16 if not wide else tile.warps))
    w_along_k, x_along_k = problem.b.unit == "row", problem.a.unit == "col"
    line = 128 // problem.a.itemsize
    x_lines = tile.rows if x_along_k else ceil(tile.rows, line) * line
    stages = get("stages", 0) or tile.stages(x_lines, call.device)
    split = get("split", split)
    share = get("share", 1)
    tiles = ceil(problem.N, tile.n * share) * share * problem.batches
    if tiles * split > MOST_TILES:
        return Rejected(f"{tiles} tiles exceed a grid of {MOST_TILES} blocks")
    name = "skinny_f32" if wide else "skinny"
    kernel = NativeKernel(
        HERE / f"{name}.cu",
        f"matmul_{name}" + ("_pdl" if get("overlap", 0) else ""),
        threads=(tile.warps + 1) * 32,
        defines=(
            ("ELEMENT", ELEMENTS[problem.dtype]),
            ("TILE_M", tile.rows),
            ("TILE_N", tile.n),
            ("SPLIT", split),
            ("SHARE", share),
            ("LINES", tile.lines),
            ("STAGES", stages),
            ("CONSUMERS", tile.warps),
            ("RESIDENT", tile.resident),
            ("W_ALONG_K", int(w_along_k)),
            ("X_ALONG_K", int(x_along_k)),
            ("EVICT", get("evict", 1)),
            *((k.upper(), get(k)) for k in ("overlap", "prefetch", "skew", "profile") if k in call.config),
            *((("NAME", f"matmul_{name}_pdl"),) if get("overlap", 0) else ()),
            ("C_VECTOR", int(row_vectors(problem.c))),
            ("BIAS", int(problem.bias is not None)),
            ("ACTIVATION", ACTIVATIONS[problem.activation]),
        ),
        shared=1024 + max(stages * (tile.stage(x_lines) + 16), tile.rows * (tile.n + 4) * 4),
    )
    maps = (
        ("map_w", _map(problem.b, problem.K, problem.N, problem.batch, tile.n if w_along_k else line)),
        ("map_x", _map(problem.a, problem.M, problem.K, problem.batch, tile.rows // share if x_along_k else line)),
    )
    blocks = tiles * split if problem.M else 0
    args = (*maps, ("bias", bias(problem)), ("c", pointer(problem.c)), *sizes(problem))
    return Plan((Launch(kernel, (blocks, 1, 1), args),))
