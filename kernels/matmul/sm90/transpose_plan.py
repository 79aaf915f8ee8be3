"""The plan of transpose.cu: K-major float32 operands, copied to be M- or N-major."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from portable.kernels.matmul.launch_args import ceil
from portable.kernels.matmul.problem import Operand, Problem
from portable.plan import Launch, NativeKernel, Pointer, Scalar, Workspace

_SOURCE = Path(__file__).with_name("transpose.cu")
_SIDE = 64
_PITCH = 32  # elements: rows of a transposed operand start at multiples of 128 bytes
# 2026-11-22, H200: bytes copied per microsecond; microseconds of a launch.
_BYTES_PER_US, _LAUNCH_US = 3.5e6, 2.0


class Transposed(NamedTuple):
    """A problem whose operands are M- and N-major, and the launches that make it so."""

    problem: Problem
    launches: tuple[Launch, ...]
    workspaces: tuple[Workspace, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the workspaces."""
        return sum(math.prod(space.shape) * 4 for space in self.workspaces)

    @property
    def time(self) -> float:
        """Estimated microseconds of the launches."""
        return 2 * self.nbytes / _BYTES_PER_US + len(self.launches) * _LAUNCH_US


def transposed_operands(problem: Problem) -> Transposed:
    """The problem with its K-major operands transposed; each distinct matrix once, whatever it is broadcast
    over."""
    launches, spaces = [], []
    if problem.a.unit_stride == "col":
        launch, space, a = _transpose(problem.a, problem.M, problem)
        launches, spaces, problem = [launch], [space], replace(problem, a=a)
    if problem.b.unit_stride == "row":
        launch, space, b = _transpose(problem.b, problem.N, problem)
        launches, spaces, problem = [*launches, launch], [*spaces, space], replace(problem, b=b)
    return Transposed(problem, tuple(launches), tuple(spaces))


def _transpose(x: Operand, lines: int, problem: Problem) -> tuple[Launch, Workspace, Operand]:
    length = problem.K
    counts = tuple(count if stride else 1 for count, stride in zip(problem.batch, x.batch, strict=True))
    matrices = math.prod(counts)
    pitch = ceil(lines, _PITCH) * _PITCH
    matrix = length * pitch
    name = f"{x.tensor}_transposed"
    wide = (("line", x.leading), ("inner", x.batch[1]), ("outer", x.batch[0]), ("pitch", pitch))
    narrow = (("lines", lines), ("length", length), ("inner_count", counts[1]))
    args = (
        ("from", Pointer(x.tensor, True)),
        ("to", Pointer(name, True)),
        *((key, Scalar("i64", value)) for key, value in wide),
        *((key, Scalar("i32", value)) for key, value in narrow),
    )
    kernel = NativeKernel(_SOURCE, "matmul_transpose", threads=256, pdl=True)
    launch = Launch(kernel, (ceil(lines, _SIDE) * ceil(length, _SIDE) * matrices, 1, 1), args)
    row, col = (1, pitch) if x.unit_stride == "col" else (pitch, 1)
    batch = (matrix * counts[1] if x.batch[0] else 0, matrix if x.batch[1] else 0)
    return launch, Workspace(name, (matrices * matrix,), x.dtype), Operand(name, x.dtype, row, col, batch, 16)
