"""The plan of split_bf16x3.cu and bf16x6.cu: float32 accuracy from six bfloat16 products (bf16x6), on
Hopper."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from portable.kernels.matmul.launch_args import (
    MAX_TILES,
    bias,
    ceil,
    common_defines,
    k_major,
    pointer,
    single_launch,
    unfit,
)
from portable.kernels.matmul.problem import Operand, Problem, for_call
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
    TensorMap,
    Workspace,
)

_FOLDER = Path(__file__).parent
_PLANES = 3
_PITCH = 64  # elements: rows of a plane start at multiples of 128 bytes
_THREADS, _VECTORS = 256, 2
_MAX_BYTES = 1 << 33  # of workspaces


class _Tile(NamedTuple):
    """Warpgroups that multiply 64 rows each, columns of a block's tile, pipeline depth, and the time of one
    tile as a share of the largest one's."""

    consumers: int
    n: int
    stages: int
    time: float

    @property
    def m(self) -> int:
        return 64 * self.consumers

    @property
    def shared(self) -> int:
        return 1024 + self.stages * (_PLANES * (self.m + self.n) * 128 + 16)


# Times of tiles as counted from shared memory's bytes. Of torch on an H200, 2026-11-21, in this order:
# 2048^3 2.22, 2.15, 1.81; 1024^3 1.39, 2.17, 1.86; 512^3 0.58, 0.94, 1.15.
_TILES = (_Tile(2, 128, 2, 1.0), _Tile(2, 64, 3, 0.58), _Tile(1, 64, 4, 0.33))


def _tile(problem: Problem, device: Device) -> _Tile:
    """The tile whose waves take the least time."""

    def time(tile: _Tile) -> float:
        tiles = ceil(problem.M, tile.m) * ceil(problem.N, tile.n) * problem.batches
        return ceil(tiles, device.multiprocessors) * tile.time

    return min(_TILES, key=time)


def plan_bf16x6(problem: Problem, call: Call) -> Plan | Rejected:
    """float32 with precision="bf16x6": any layout, alignment and batch."""
    if problem.precision != "bf16x6":
        return Rejected('needs precision="bf16x6"')
    if problem.c.unit_stride == "row" and problem.bias is None:
        problem = problem.transposed()
    if (reason := unfit(problem)) is not None:
        return reason
    if min(problem.M, problem.N) < 64 or problem.K < 64:
        return Rejected("M, N or K is below 64: IEEE products cost less")
    splits = [_Split(problem.a, problem), _Split(problem.b, problem)]
    for split in splits:
        if split.lines * split.matrices >= 2**31 or split.blocks >= 2**30:
            return Rejected(f"{split.operand.tensor} has too many rows or columns to split")
    moved = sum(split.nbytes for split in splits)
    if moved > _MAX_BYTES:
        return Rejected(f"the bfloat16 planes need a workspace of {moved} bytes; the limit is {_MAX_BYTES}")
    spans = {name: info.span for name, info in call.tensors.items() if info is not None}
    split_kernel = NativeKernel(
        _FOLDER / "split_bf16x3.cu",
        "matmul_split_bf16x3",
        threads=_THREADS,
        defines=(("THREADS", _THREADS), ("VECTORS", _VECTORS)),
    )
    arguments = (arg for i, split in enumerate(splits) for arg in split.arguments(spans, i))
    first = Launch(split_kernel, (sum(split.blocks for split in splits), 1, 1), tuple(arguments))

    M, N, c = problem.M, problem.N, problem.c
    tile = _tile(problem, call.device)
    kernel = NativeKernel(
        _FOLDER / "bf16x6.cu",
        "matmul_bf16x6",
        threads=128 * (1 + tile.consumers),
        defines=(
            ("ELEMENT", "bf16"),
            ("CONSUMERS", tile.consumers),
            ("TILE_N", tile.n),
            ("STAGES", tile.stages),
            ("C_PAIRS", int(c.col == 1 and c.aligned_to(8))),
            *common_defines(problem),
        ),
        shared=tile.shared,
    )
    a_k_major, b_k_major = k_major(problem)
    maps: tuple[tuple[str, Argument], ...] = (
        ("map_a", splits[0].map(tile.m if a_k_major else 64)),
        ("map_b", splits[1].map(tile.n if b_k_major else 64)),
    )
    tiles = ceil(M, tile.m) * ceil(N, tile.n) * problem.batches
    if tiles > MAX_TILES:
        return Rejected(f"{tiles} tiles exceed {MAX_TILES}")
    blocks = min(tiles, call.device.multiprocessors)
    planes = replace(problem, a=splits[0].counted, b=splits[1].counted)
    product = single_launch(kernel, blocks, planes, (*maps, ("bias", bias(problem)), ("c", pointer(c))))
    if isinstance(product, Rejected):
        return product
    spaces = tuple(Workspace(split.name, (_PLANES * split.plane,), "bfloat16") for split in splits)
    return Plan((first, *product.launches), spaces)


plan = for_call(plan_bf16x6)


@dataclass(frozen=True)
class _Split:
    """The split of one operand into planes; each distinct matrix once, whatever it is broadcast over."""

    operand: Operand
    problem: Problem

    @property
    def name(self) -> str:
        return f"{self.operand.tensor}_planes"

    @property
    def _extents(self) -> tuple[int, int]:
        """Elements of a line, and lines of a matrix."""
        p = self.problem
        rows, cols = (p.M, p.K) if self.operand is p.a else (p.K, p.N)
        return (cols, rows) if self.operand.unit_stride == "col" else (rows, cols)

    @property
    def lines(self) -> int:
        return self._extents[1]

    @property
    def _counts(self) -> tuple[int, int]:
        outer, inner = self.problem.batch
        return outer if self.operand.batch[0] else 1, inner if self.operand.batch[1] else 1

    @property
    def matrices(self) -> int:
        return math.prod(self._counts)

    @property
    def pitch(self) -> int:
        return ceil(self._extents[0], _PITCH) * _PITCH

    @property
    def plane(self) -> int:
        """Elements of one plane."""
        return self.pitch * self.lines * self.matrices

    @property
    def nbytes(self) -> int:
        return _PLANES * self.plane * 2

    @property
    def _vectors(self) -> int:
        return ceil(self._extents[0], 8) * self.lines * self.matrices

    @property
    def blocks(self) -> int:
        return ceil(self._vectors, _THREADS * _VECTORS)

    @property
    def counted(self) -> Operand:
        """The operand with batch strides that count matrices, for bf16x6.cu."""
        outer, inner = self.operand.batch
        return replace(self.operand, batch=(self._counts[1] if outer else 0, 1 if inner else 0))

    def map(self, lines: int) -> TensorMap:
        """Boxes of 64 elements and `lines` lines of one matrix of one plane."""
        length, count = self._extents
        sizes = (length, count, self.matrices, _PLANES)
        strides = (self.pitch * 2, self.pitch * self.lines * 2, self.plane * 2)
        return TensorMap(self.name, "bfloat16", sizes, strides, (64, lines, 1, 1))

    def arguments(self, spans: dict[str, int], number: int) -> tuple[tuple[str, Argument], ...]:
        """split_bf16x3.cu's parameters for the first or second operand."""
        x = self.operand
        pointers: tuple[Argument, ...] = (Pointer(x.tensor), Pointer(self.name, aligned=True))
        wide = (x.leading, x.batch[1], x.batch[0], spans[x.tensor], self.plane, self._vectors)
        narrow = (*self._extents, self.pitch, self._counts[1], self.blocks)
        names = ("from", "to", "line", "inner", "outer", "span", "plane", "vectors",
                 "length", "lines", "pitch", "inner_count", "blocks")  # fmt: skip
        values = (*pointers, *(Scalar("i64", v) for v in wide), *(Scalar("i32", v) for v in narrow))
        return tuple((f"{name}{number}", value) for name, value in zip(names, values, strict=True))
