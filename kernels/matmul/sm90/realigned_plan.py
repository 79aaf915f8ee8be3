"""wgmma.cu for operands that are not 16-byte aligned: align_copy.cu copies them into aligned workspaces
first.

The copy runs at memory bandwidth. For products of some size it costs little beside what it gains: wgmma.cu is
several times faster than mma.cu on the unaligned operands."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from portable.kernels.matmul.launch_args import ceil
from portable.kernels.matmul.problem import Operand, Problem, for_call
from portable.kernels.matmul.sm90.wgmma_plan import plan_wgmma
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar, Workspace

_SOURCE = Path(__file__).with_name("align_copy.cu")
_THREADS, _VECTORS = 256, 2
_PITCH = 64  # elements: realigned rows start at multiples of 128 bytes
_MAX_BYTES = 1 << 32  # of workspaces: larger ones risk running out of memory
# Rates that decide whether realignment pays: bytes read and written per microsecond, flops per microsecond of
# wgmma.cu and of mma.cu on unaligned operands, microseconds of a launch.
_BYTES_PER_US, _FAST_PER_US, _SLOW_PER_US, _LAUNCH_US = 3.0e6, 6.0e8, 1.1e8, 3.0


class Realigned(NamedTuple):
    """A problem of 16-byte aligned operands, and the launches that make it so."""

    problem: Problem
    launches: tuple[Launch, ...] = ()
    workspaces: tuple[Workspace, ...] = ()
    nbytes: int = 0


def realigned(problem: Problem, call: Call) -> Realigned | Rejected:
    """The problem with its unaligned operands copied to aligned workspaces."""
    copies = [
        _AlignCopy(operand, problem) for operand in (problem.a, problem.b) if not operand.aligned_to(16)
    ]
    if not copies:
        return Realigned(problem)
    for copy in copies:
        if copy.operand.unit_stride is None:
            return Rejected(f"neither rows nor columns of {copy.operand.tensor} are contiguous")
        if copy.lines * copy.matrices >= 2**31 or copy.blocks >= 2**30:
            return Rejected(f"{copy.operand.tensor} has too many rows or columns to copy")
    moved = sum(copy.nbytes for copy in copies)
    if moved > _MAX_BYTES:
        return Rejected(f"realigned operands need a workspace of {moved} bytes; the limit is {_MAX_BYTES}")
    made = {copy.operand.tensor: copy.realigned for copy in copies}
    aligned = replace(
        problem,
        a=made.get(problem.a.tensor, problem.a),
        b=made.get(problem.b.tensor, problem.b),
    )
    defines = (("THREADS", _THREADS), ("VECTORS", _VECTORS))
    kernel = NativeKernel(_SOURCE, "matmul_align_copy", threads=_THREADS, defines=defines, pdl=True)
    spans = {name: info.span for name, info in call.tensors.items() if info is not None}
    second = copies[1].arguments(spans, 1) if len(copies) > 1 else copies[0].absent(1)
    blocks = sum(copy.blocks for copy in copies)
    launch = Launch(kernel, (blocks, 1, 1), (*copies[0].arguments(spans, 0), *second))
    spaces = tuple(Workspace(copy.name, (copy.elements,), problem.dtype) for copy in copies)
    return Realigned(aligned, (launch,), spaces, moved)


def plan_realigned(problem: Problem, call: Call) -> Plan | Rejected:
    """wgmma.cu for bfloat16 and float16 operands of any alignment."""
    copies = realigned(problem, call)
    if isinstance(copies, Rejected):
        return copies
    if not copies.launches:
        return Rejected("operands are 16-byte aligned; no realignment needed")
    flops = 2.0 * problem.M * problem.product.N * problem.K * problem.batches
    if 2 * copies.nbytes / _BYTES_PER_US + flops / _FAST_PER_US + _LAUNCH_US > flops / _SLOW_PER_US:
        return Rejected("realignment would cost more than it saves")
    product = plan_wgmma(copies.problem, call)
    if isinstance(product, Rejected):
        return product
    return Plan((*copies.launches, *product.launches), (*copies.workspaces, *product.workspaces))


plan = for_call(plan_realigned)


class _AlignCopy:
    """The copy of one operand; each distinct matrix once, whatever it is broadcast over."""

    def __init__(self, operand: Operand, problem: Problem):
        rows, cols = (problem.M, problem.K) if operand is problem.a else (problem.K, problem.N)
        self.operand = operand
        self.name = f"{operand.tensor}_realigned"
        self.length, self.lines = (cols, rows) if operand.unit_stride == "col" else (rows, cols)
        self.batch = problem.batch_of(operand)
        self.counts = operand.matrices(self.batch)
        self.matrices = math.prod(self.counts)
        self.pitch = ceil(self.length, _PITCH) * _PITCH
        self.elements = self.pitch * self.lines * self.matrices
        self.nbytes = self.elements * operand.itemsize
        self.vectors = ceil(self.length, 8) * self.lines * self.matrices
        self.blocks = ceil(self.vectors, _THREADS * _VECTORS)

    @property
    def realigned(self) -> Operand:
        """The operand in its workspace."""
        return self.operand.copied(self.name, self.batch, self.pitch, self.lines)

    def arguments(self, spans: dict[str, int], number: int) -> tuple[tuple[str, Argument], ...]:
        operand = self.operand
        return self._named(
            number,
            (Pointer(operand.tensor), Pointer(self.name, aligned=True)),
            (operand.leading, operand.batch[1], operand.batch[0], spans[operand.tensor], self.vectors),
            (self.length, self.lines, self.pitch // 8, self.counts[1], self.blocks),
        )

    def absent(self, number: int) -> tuple[tuple[str, Argument], ...]:
        """The arguments of a second operand that is not copied."""
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
