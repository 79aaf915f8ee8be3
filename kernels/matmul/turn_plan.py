"""turn.cu: a float32 operand whose rows lie along k, copied so that they lie side by side."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from portable.kernels.matmul.launches import HERE, ceil
from portable.kernels.matmul.problem import Operand, Problem
from portable.plan import Launch, NativeKernel, Pointer, Scalar, Workspace

_SIDE = 64
_PITCH = 32  # elements: turned lines start at multiples of 128 bytes
# 2026-11-22, H200: what the copy moves in a microsecond, and a launch.
_BYTES_PER_US, _LAUNCH_US = 3.5e6, 2.0


class Turned(NamedTuple):
    """A problem whose a lies along M, and what turns it; the microseconds that takes."""

    problem: Problem
    launches: tuple[Launch, ...] = ()
    workspaces: tuple[Workspace, ...] = ()
    time: float = 0.0


def turned(problem: Problem) -> Turned:
    """The problem with its a along M. Each distinct matrix is turned once, whatever it is broadcast over."""
    a, lines, length = problem.a, problem.M, problem.K
    if a.unit == "row":
        return Turned(problem)
    counts = tuple(count if stride else 1 for count, stride in zip(problem.batch, a.batch, strict=True))
    matrices = math.prod(counts)
    pitch = ceil(lines, _PITCH) * _PITCH
    name = f"{a.tensor}_turned"
    outer, inner = (length * pitch * counts[1] if a.batch[0] else 0), (length * pitch if a.batch[1] else 0)
    strides = (("line", a.leading), ("inner", a.batch[1]), ("outer", a.batch[0]), ("pitch", pitch))
    args = (
        ("from", Pointer(a.tensor, True)),
        ("to", Pointer(name, True)),
        *((key, Scalar("i64", value)) for key, value in strides),
        *((key, Scalar("i32", value)) for key, value in (("lines", lines), ("length", length))),
        ("inner_count", Scalar("i32", counts[1])),
    )
    kernel = NativeKernel(HERE / "turn.cu", "matmul_turn", threads=256, early=True)
    launch = Launch(kernel, (ceil(lines, _SIDE) * ceil(length, _SIDE) * matrices, 1, 1), args)
    space = Workspace(name, (matrices * length * pitch,), a.dtype)
    moved = matrices * length * (lines + pitch) * a.itemsize
    a = Operand(name, a.dtype, 1, pitch, (outer, inner), 16)
    return Turned(replace(problem, a=a), (launch,), (space,), moved / _BYTES_PER_US + _LAUNCH_US)
