"""The plan of skinny.cu and skinny_f32.cu: products with few rows on Hopper, bound by reading one operand."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from portable import dtypes
from portable.kernels.matmul.launch_args import (
    ACTIVATIONS,
    MAX_TILES,
    bias,
    ceil,
    gated_define,
    pointer,
    preactivation_define,
    row_vectors,
    size_class,
    sizes,
    unfit,
    z_pointer,
)
from portable.kernels.matmul.problem import Problem, for_call
from portable.kernels.matmul.sm90.tma_descriptors import operands_unsupported, tma_descriptor
from portable.plan import Call, Device, Launch, NativeKernel, Plan, Rejected

_FOLDER = Path(__file__).parent
_MAX_M = 64
_MAX_M_F32 = 32
_MAX_STAGES = 12
_RING, _WIDE_RING = 92 << 10, 140 << 10
"""Most bytes of a pipeline of up to 32 rows, of up to 128 columns and of more. Two of the wide do not fit a
multiprocessor, but one and a narrow do: a block of the next product starts beside one that drains."""
_FEW = 32  # rows with two lines a stage, wide tiles and short pipelines
_K_SPLITS = (1, 2, 3, 4, 8)
# Measured 2026-11-21 on an H200. Bytes per microsecond: of memory and of L2; of one multiprocessor from
# memory, from L2 and from another's shared memory; its fused multiply-adds. Microseconds: latency of idle
# memory and of busy memory; the cost of a cluster, and of one of eight beyond that.
_MEMORY, _L2, _FROM_MEMORY, _FROM_L2, _FROM_ANOTHER = 4.1e6, 9e6, 0.05e6, 0.1e6, 0.02e6
_FMA = 0.13e6
# L2 promotion, bytes: 8192x8192 with 1 row 32.4 us (1.07 of torch), with 256 bytes 35.2 (0.98).
_PROMOTION = 128
_IDLE, _BUSY, _CLUSTER, _CLUSTER_OF_EIGHT = 0.7, 1.5, 0.7, 1.0


class SkinnyTile(NamedTuple):
    """Rows and columns that a block computes, lines of 128 bytes along k in a stage, the bytes and number of
    stages, and blocks per multiprocessor."""

    rows: int
    n: int
    lines: int
    stage: int
    stages: int
    resident: int

    def shared(self) -> int:
        """Bytes: the pipeline's stages and barriers, or the sums that take their place; the stages are
        1024-byte aligned. A last warpgroup with half of its columns reads 4096 bytes behind w's."""
        beyond = 4096 if self.n % 64 else 0
        return 1024 + beyond + max(self.stages * (self.stage + 16), self.rows * (self.n + 4) * 4)

    def blocks(self, problem: Problem, split: int) -> int:
        return ceil(problem.N, self.n) * problem.batches * split

    def time(self, problem: Problem, split: int, device: Device) -> float:
        """Estimated microseconds, without the launch."""
        size, depth, blocks = problem.a.itemsize, ceil(problem.K, split), self.blocks(problem, split)
        waves = ceil(blocks, self.resident * device.multiprocessors)
        busy = min(device.multiprocessors, blocks / waves)
        latency = _IDLE + (_BUSY - _IDLE) * min(1.0, blocks / device.multiprocessors)
        in_flight = blocks / waves * (self.stages - 1) * self.lines * self.n * 128 / latency
        stream = max(
            problem.batches * problem.N * problem.K * size / min(_MEMORY, busy * _FROM_MEMORY, in_flight),
            blocks * (self.n + self.rows) * depth * size / min(_L2, busy * _FROM_L2),
            blocks * self.n * self.rows * depth / busy / _FMA if problem.dtype == "float32" else 0.0,
        )
        if split == 1:
            return stream
        parts = self.rows * self.n * 4 * (split - 1) / split / _FROM_ANOTHER
        return stream + parts + _CLUSTER + (_CLUSTER_OF_EIGHT if split == 8 else 0.0)


def _tile(
    problem: Problem, device: Device, n: int, lines: int, resident: int, whole: bool = False
) -> SkinnyTile:
    """As many stages as fit, every block with its own kilobyte of the system's and one for alignment; of few
    16-bit rows no more than `_RING` says, unless a block is to have the `whole` multiprocessor. The rows are
    the next power of two; an M-major x is loaded in whole 128-byte rows, and 16-bit ones of them are
    multiplied so."""
    line = 128 // problem.a.itemsize
    least = 4 if problem.dtype == "float32" else 8 if problem.a.unit_stride == "col" else 64
    rows = max(size_class(problem.M), least)
    x_lines = rows if problem.a.unit_stride == "col" else ceil(rows, line) * line
    stage = lines * (n * 128 + ceil(x_lines * 128, 1024) * 1024)
    space = (device.shared_memory + 1024) // resident - 2048
    if problem.dtype != "float32" and rows <= _FEW and resident == 1 and not whole:
        space = min(space, _RING if n <= 128 else _WIDE_RING)
    return SkinnyTile(rows, n, lines, stage, min(space // (stage + 16), _MAX_STAGES), resident)


def _tiles(problem: Problem, device: Device, whole: bool) -> tuple[SkinnyTile, ...]:
    if problem.dtype == "float32":
        return (_tile(problem, device, 128, 1, 1),)
    few = problem.M <= _FEW and problem.a.unit_stride == "col"
    shapes: tuple[tuple[int, int], ...] = ((128, 1), (64, 2 if few else 1))
    if problem.gated and problem.b.unit_stride == "col":
        shapes = shapes[:1]  # squares of 64 columns, of gate and of up
    alone = shapes
    if few:  # 28672 columns are 128 blocks of 224; an N-major w comes in squares of 64 columns
        alone = (*shapes, (224, 1), (256, 1)) if problem.b.unit_stride == "row" else (*shapes, (256, 1))
    return (
        *(_tile(problem, device, n, lines, 1, whole) for n, lines in alone),
        *(_tile(problem, device, n, lines, 2) for n, lines in shapes),
    )


def _choice(problem: Problem, device: Device, constant_weight: bool) -> tuple[SkinnyTile, int]:
    """The fastest tile and number of K splits. A split has at least two steps, and its block has its own
    multiprocessor, as have blocks that fill one where there are others. Clusters of more than two crowd on
    some multiprocessors and leave others idle: they are for small products.

    Where the weight is constant a block's pipeline is filled while the previous kernel ends, and is as deep
    as fits; otherwise only a cluster's is, whose blocks crowd beside others (16x4096x14336 29 us, with short
    pipelines 32, H200, 2026-11-27)."""
    product = problem.product

    def possible(tile: SkinnyTile, split: int) -> bool:
        steps = ceil(product.K * product.a.itemsize, 128 * tile.lines)
        room = device.multiprocessors // (2 if split > 2 else 1)
        if split == 1:
            return tile.resident > 1 or problem.dtype == "float32" or tile.blocks(product, 1) <= room
        return tile.blocks(product, split) <= room and steps >= 2 * split

    options = [
        (tile, split)
        for split in _K_SPLITS
        for tile in _tiles(problem, device, constant_weight or split > 1)
        if possible(tile, split)
    ]
    return min(options, key=lambda option: option[0].time(product, option[1], device))


def _unsuited(problem: Problem, device: Device) -> Rejected | None:
    if problem.dtype == "float32" and problem.precision == "tf32":
        return Rejected("this kernel's float32 products are IEEE, not TF32")
    limit = _MAX_M_F32 if problem.dtype == "float32" else _MAX_M
    if limit < problem.M:
        return Rejected(f"M = {problem.M} exceeds this kernel's limit of {limit}")
    return operands_unsupported(problem)


def plan_skinny(problem: Problem, call: Call, constant_weight: bool = False) -> Plan | Rejected:
    """Small M, at most 64 (float32: 32), or small N without a bias; 16-byte aligned operands.

    `constant_weight`: no kernel still running writes b, so that blocks fetch it before the previous kernel
    has ended."""
    if problem.transposable and problem.N < problem.M:
        problem, constant_weight = problem.transposed(), False  # its b is the caller's a
    if (reason := unfit(problem) or _unsuited(problem, call.device)) is not None:
        return reason
    tile, split = _choice(problem, call.device, constant_weight)
    blocks = tile.blocks(problem.product, split) if problem.M else 0
    if blocks > MAX_TILES:
        return Rejected(f"{blocks} tiles exceed a grid of {MAX_TILES} blocks")
    w_k_major, x_k_major = problem.b.unit_stride == "row", problem.a.unit_stride == "col"
    line = 128 // problem.a.itemsize
    warps = 8 if problem.dtype == "float32" else ceil(tile.n, 64) * 4
    # With two blocks a multiprocessor the next launch's blocks would crowd on the multiprocessors that are
    # free first.
    pdl = tile.resident == 1 and problem.dtype != "float32"
    name = "skinny_f32" if problem.dtype == "float32" else "skinny"
    kernel = NativeKernel(
        _FOLDER / f"{name}.cu",
        f"matmul_{name}",
        threads=(warps + 1) * 32,
        defines=(
            ("ELEMENT", dtypes.of(problem.dtype).c),
            ("TILE_M", tile.rows),
            ("TILE_N", tile.n),
            ("K_SPLITS", split),
            ("LINES", tile.lines),
            ("STAGES", tile.stages),
            ("CONSUMERS", warps),
            ("RESIDENT", tile.resident),
            ("CONSTANT_W", int(pdl and constant_weight)),
            ("W_K_MAJOR", int(w_k_major)),
            ("X_K_MAJOR", int(x_k_major)),
            ("C_VECTOR", int(row_vectors(problem.c))),
            ("BIAS", int(problem.bias is not None)),
            ("ACTIVATION", ACTIVATIONS[problem.activation]),
            *preactivation_define(problem),
            *gated_define(problem),
        ),
        shared=tile.shared(),
        pdl=pdl,
    )
    w_lines, w_pair = tile.n if w_k_major else line, 1
    if problem.gated and w_k_major:
        w_lines, w_pair = tile.n // 2, 2
    x_lines = min(tile.rows, ceil(problem.M, 8) * 8) if x_k_major else line
    maps = (
        (
            "map_w",
            tma_descriptor(
                problem.b, problem.K, problem.N, problem.batch_of(problem.b), w_lines, _PROMOTION, w_pair
            ),
        ),
        ("map_x", tma_descriptor(problem.a, problem.M, problem.K, problem.batch, x_lines, _PROMOTION)),
    )
    outputs = (("c", pointer(problem.c)), *z_pointer(problem))
    args = (*maps, ("bias", bias(problem)), *outputs, *sizes(problem))
    return Plan((Launch(kernel, (blocks, 1, 1), args),))


plan = for_call(plan_skinny)
