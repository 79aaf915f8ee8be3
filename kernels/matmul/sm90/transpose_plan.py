"""turn.cu: float32 operands that lie along k, copied so that they lie along M or N."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from portable.kernels.matmul.launch_args import HERE, ceil
from portable.kernels.matmul.problem import Operand, Problem
from portable.plan import Launch, NativeKernel, Pointer, Scalar, Workspace

_SIDE = 64
_PITCH = 32  # elements: turned lines start at multiples of 128 bytes
# 2026-11-22, H200: what the copy moves in a microsecond, and a launch.
_BYTES_PER_US, _LAUNCH_US = 3.5e6, 2.0


class Turned(NamedTuple):
    """A problem of operands that do not lie along k, and what makes it."""

    problem: Problem
    launches: tuple[Launch, ...]
    workspaces: tuple[Workspace, ...]

    @property
    def nbytes(self) -> int:
        """Of the workspaces."""
        return sum(math.prod(space.shape) * 4 for space in self.workspaces)

    @property
    def time(self) -> float:
        """Microseconds of the launches, about."""
        return 2 * self.nbytes / _BYTES_PER_US + len(self.launches) * _LAUNCH_US


def turned(problem: Problem) -> Turned:
    """The problem with operands along k turned; each distinct matrix once, whatever it is broadcast over."""
    launches, spaces = [], []
    if problem.a.unit == "col":
        launch, space, a = _turn(problem.a, problem.M, problem)
        launches, spaces, problem = [launch], [space], replace(problem, a=a)
    if problem.b.unit == "row":
        launch, space, b = _turn(problem.b, problem.N, problem)
        launches, spaces, problem = [*launches, launch], [*spaces, space], replace(problem, b=b)
    return Turned(problem, tuple(launches), tuple(spaces))


def _turn(x: Operand, lines: int, problem: Problem) -> tuple[Launch, Workspace, Operand]:
    length = problem.K
    counts = tuple(count if stride else 1 for count, stride in zip(problem.batch, x.batch, strict=True))
    matrices = math.prod(counts)
    pitch = ceil(lines, _PITCH) * _PITCH
    matrix = length * pitch
    name = f"{x.tensor}_turned"
    wide = (("line", x.leading), ("inner", x.batch[1]), ("outer", x.batch[0]), ("pitch", pitch))
    narrow = (("lines", lines), ("length", length), ("inner_count", counts[1]))
    args = (
        ("from", Pointer(x.tensor, True)),
        ("to", Pointer(name, True)),
        *((key, Scalar("i64", value)) for key, value in wide),
        *((key, Scalar("i32", value)) for key, value in narrow),
    )
    kernel = NativeKernel(HERE / "sm90/transpose.cu", "matmul_turn", threads=256, pdl=True)
    launch = Launch(kernel, (ceil(lines, _SIDE) * ceil(length, _SIDE) * matrices, 1, 1), args)
    row, col = (1, pitch) if x.unit == "col" else (pitch, 1)
    batch = (matrix * counts[1] if x.batch[0] else 0, matrix if x.batch[1] else 0)
    return launch, Workspace(name, (matrices * matrix,), x.dtype), Operand(name, x.dtype, row, col, batch, 16)
