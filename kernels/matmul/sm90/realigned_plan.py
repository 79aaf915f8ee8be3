"""wgmma.cu for operands whose lines do not start at multiples of 16 bytes: packed first, then multiplied.

pack.cu copies such operands into aligned workspaces, at the rate of the memory; what that costs is small
beside a product of some size, which Hopper's tensor cores then do several times faster than mma.cu does
on operands as they lie.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from portable.kernels.matmul.launch_args import HERE, ceil
from portable.kernels.matmul.problem import Operand, Problem
from portable.kernels.matmul.sm90.wgmma_plan import plan_wgmma
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar, Workspace

_THREADS, _VECTORS = 256, 2
_PITCH = 64  # elements: packed lines start at multiples of 128 bytes
_MOST_BYTES = 1 << 32  # of workspaces: beyond, users would rather wait than run out of memory
# Rates that decide whether packing pays: bytes read and written, flops of wgmma.cu and of mma.cu on
# unaligned operands, and a launch.
_BYTES_PER_US, _FAST_PER_US, _SLOW_PER_US, _LAUNCH_US = 3.0e6, 6.0e8, 1.1e8, 3.0


class Packed(NamedTuple):
    """A problem of aligned operands, and what makes them."""

    problem: Problem
    launches: tuple[Launch, ...] = ()
    workspaces: tuple[Workspace, ...] = ()
    nbytes: int = 0


def packing(problem: Problem, call: Call) -> Packed | Rejected:
    """How the operands that are not aligned are packed."""
    packs = [_Packing(operand, problem) for operand in (problem.a, problem.b) if not operand.aligned_to(16)]
    if not packs:
        return Packed(problem)
    for pack in packs:
        if pack.operand.unit is None:
            return Rejected(f"neither rows nor columns of {pack.operand.tensor} are contiguous")
        if pack.lines * pack.matrices >= 2**31 or pack.blocks >= 2**30:
            return Rejected(f"{pack.operand.tensor} has too many lines to pack")
    moved = sum(pack.nbytes for pack in packs)
    if moved > _MOST_BYTES:
        return Rejected(f"its packed operands would take {moved} bytes; at most {_MOST_BYTES} are used")
    packed = {pack.operand.tensor: pack.packed for pack in packs}
    aligned = replace(
        problem,
        a=packed.get(problem.a.tensor, problem.a),
        b=packed.get(problem.b.tensor, problem.b),
    )
    defines = (("THREADS", _THREADS), ("VECTORS", _VECTORS))
    kernel = NativeKernel(
        HERE / "sm90/align_copy.cu", "matmul_pack", threads=_THREADS, defines=defines, pdl=True
    )
    spans = {name: info.span for name, info in call.tensors.items() if info is not None}
    second = packs[1].arguments(spans, 1) if len(packs) > 1 else packs[0].absent(1)
    blocks = sum(pack.blocks for pack in packs)
    launch = Launch(kernel, (blocks, 1, 1), (*packs[0].arguments(spans, 0), *second))
    spaces = tuple(Workspace(pack.name, (pack.elements,), problem.dtype) for pack in packs)
    return Packed(aligned, (launch,), spaces, moved)


def plan_packed(problem: Problem, call: Call) -> Plan | Rejected:
    """Hopper's tensor cores for bfloat16 and float16 operands with lines that start anywhere."""
    packed = packing(problem, call)
    if isinstance(packed, Rejected):
        return packed
    if not packed.launches:
        return Rejected("its operands lie as wgmma takes them")
    flops = 2.0 * problem.M * problem.N * problem.K * problem.batches
    if 2 * packed.nbytes / _BYTES_PER_US + flops / _FAST_PER_US + _LAUNCH_US > flops / _SLOW_PER_US:
        return Rejected("packing its operands would cost more than it saves")
    product = plan_wgmma(packed.problem, call)
    if isinstance(product, Rejected):
        return product
    return Plan((*packed.launches, *product.launches), (*packed.workspaces, *product.workspaces))


class _Packing:
    """How one operand is packed: each distinct matrix once, whatever is broadcast over it."""

    def __init__(self, operand: Operand, problem: Problem):
        rows, cols = (problem.M, problem.K) if operand is problem.a else (problem.K, problem.N)
        self.operand = operand
        self.name = f"{operand.tensor}_packed"
        self.length, self.lines = (cols, rows) if operand.unit == "col" else (rows, cols)
        self.counts = tuple(
            count if stride else 1 for count, stride in zip(problem.batch, operand.batch, strict=True)
        )
        self.matrices = math.prod(self.counts)
        self.pitch = ceil(self.length, _PITCH) * _PITCH
        self.elements = self.pitch * self.lines * self.matrices
        self.nbytes = self.elements * operand.itemsize
        self.vectors = ceil(self.length, 8) * self.lines * self.matrices
        self.blocks = ceil(self.vectors, _THREADS * _VECTORS)

    @property
    def packed(self) -> Operand:
        """The operand as it lies in the workspace."""
        matrix = self.pitch * self.lines
        outer = matrix * self.counts[1] if self.operand.batch[0] else 0
        inner = matrix if self.operand.batch[1] else 0
        row, col = (self.pitch, 1) if self.operand.unit == "col" else (1, self.pitch)
        return Operand(self.name, self.operand.dtype, row, col, (outer, inner), 16)

    def arguments(self, spans: dict[str, int], number: int) -> tuple[tuple[str, Argument], ...]:
        operand = self.operand
        return self._named(
            number,
            (Pointer(operand.tensor), Pointer(self.name, aligned=True)),
            (operand.leading, operand.batch[1], operand.batch[0], spans[operand.tensor], self.vectors),
            (self.length, self.lines, self.pitch // 8, self.counts[1], self.blocks),
        )

    def absent(self, number: int) -> tuple[tuple[str, Argument], ...]:
        """The arguments of a second operand that is not packed."""
        null = Scalar("i64", 0)
        return self._named(number, (null, null), (0, 0, 0, 0, 0), (1, 1, 1, 1, 0))

    @staticmethod
    def _named(
        number: int, pointers: tuple[Argument, ...], wide: tuple[int, ...], narrow: tuple[int, ...]
    ) -> tuple[tuple[str, Argument], ...]:
        names = ("from", "to", "line", "inner", "outer", "span", "vectors",
                 "length", "lines", "pitch", "inner_count", "blocks")  # fmt: skip
        values = (*pointers, *(Scalar("i64", v) for v in wide), *(Scalar("i32", v) for v in narrow))
        return tuple((f"{name}{number}", value) for name, value in zip(names, values, strict=True))
