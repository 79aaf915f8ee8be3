"""Operands whose lines do not start and end at 16 bytes, copied to workspaces where they do (align_copy.hip),
so that mfma.hip takes them by its loops of aligned operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from portable import dtypes
from portable.kernels.matmul.gfx.tile_cost import more_unaligned, traffic
from portable.kernels.matmul.launch_args import ceil
from portable.kernels.matmul.problem import Operand, Problem
from portable.plan import Device, Launch, NativeKernel, Pointer, Scalar, Workspace

_SOURCE = Path(__file__).with_name("align_copy.hip")
_THREADS, _VECTORS = 256, 4
_ELEMENTS = 8  # of a vector of 16 bytes
_MAX_VECTORS = 2**31
_MAX_MATRICES = 2**15
_WORTH = 0.9  # of the clocks without copies, by an estimate that errs by 0.1


class Copied(NamedTuple):
    """A product of the same value whose operands are aligned, and what makes them so."""

    problem: Problem
    launches: tuple[Launch, ...]
    workspaces: tuple[Workspace, ...]


def copied(
    problem: Problem,
    device: Device,
    aligned: Callable[[Problem, Collection[str]], bool],
    clocks: Callable[[Problem], float],
) -> Copied | None:
    """The product of copies, where they are `aligned` and take the fewer `clocks`; else None.

    A line of K elements is filled up with zeros to a multiple of 8, and so is then the other operand.
    """
    if problem.gated or 0 in (problem.M, problem.N, problem.K):
        return None
    padded = any(along_k for *_, along_k in problem.sides)
    K = ceil(problem.K, _ELEMENTS) * _ELEMENTS if padded else problem.K
    both = [
        _Copy(operand, problem.batch, lines, along_k, problem.K, K)
        for operand, lines, along_k in problem.sides
    ]
    copies = [each for each in both if each.needed]
    made = {each.operand.tensor: each.made for each in copies}
    a, b = (made.get(each.tensor, each) for each in (problem.a, problem.b))
    product = replace(problem, a=a, b=b, K=K)
    names = [each.name for each in copies]
    if not copies or not aligned(product, names) or not all(each.possible for each in copies):
        return None
    moved = sum(traffic(2 * each.elements * each.operand.itemsize, device) for each in copies)
    if clocks(product) + moved > _WORTH * (clocks(problem) + more_unaligned(problem, device)):
        return None
    spaces = tuple(Workspace(each.name, (each.elements,), problem.dtype) for each in copies)
    return Copied(product, tuple(each.launch for each in copies), spaces)


@dataclass(frozen=True)
class _Copy:
    """One operand, each of its matrices once, whatever it is broadcast over. In a copy there are `k` elements
    of K along or across the lines, in the operand `own_k`."""

    operand: Operand
    batch: tuple[int, int]
    lines: int  # rows of a, columns of b
    along_k: bool
    own_k: int
    k: int

    @property
    def needed(self) -> bool:
        odd = not self.along_k and self.lines % 2 == 1  # a buffer ends at a multiple of 4 bytes
        return not self.operand.aligned_to(16) or odd or self.k != self.own_k

    @property
    def name(self) -> str:
        return f"{self.operand.tensor}_aligned"

    @property
    def counts(self) -> tuple[int, int]:
        return self.operand.matrices(self.batch)

    @property
    def rows(self) -> int:
        """Contiguous lines of a copied matrix."""
        return self.lines if self.along_k else self.k

    @property
    def pitch(self) -> int:
        """Vectors of one of them."""
        return ceil(self.k if self.along_k else self.lines, _ELEMENTS)

    @property
    def elements(self) -> int:
        return math.prod(self.counts) * self.rows * self.pitch * _ELEMENTS

    @property
    def possible(self) -> bool:
        return self.rows * self.pitch < _MAX_VECTORS and math.prod(self.counts) <= _MAX_MATRICES

    @property
    def made(self) -> Operand:
        """The operand in its workspace."""
        return self.operand.copied(self.name, self.batch, self.pitch * _ELEMENTS, self.rows)

    @property
    def launch(self) -> Launch:
        operand = self.operand
        length, lines = (self.own_k, self.lines) if self.along_k else (self.lines, self.own_k)
        defines = (("T", dtypes.of(operand.dtype).c), ("THREADS", _THREADS), ("VECTORS", _VECTORS))
        integers = {
            "length": length,
            "lines": lines,
            "pitch": self.pitch,
            "rows": self.rows,
            "inner_count": self.counts[1],
        }
        strides = {"line": operand.leading, "outer": operand.batch[0], "inner": operand.batch[1]}
        args = (
            ("from", Pointer(operand.tensor)),
            ("to", Pointer(self.name, aligned=True)),
            *((name, Scalar("i32", value)) for name, value in integers.items()),
            *((name, Scalar("i64", value)) for name, value in strides.items()),
        )
        blocks = ceil(self.rows * self.pitch, _THREADS * _VECTORS)
        kernel = NativeKernel(_SOURCE, "matmul_align_copy", _THREADS, defines)
        return Launch(kernel, (blocks, math.prod(self.counts), 1), args)
