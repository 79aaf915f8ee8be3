"""TMA tensor maps of matmul's operands, and which operands TMA supports."""

from __future__ import annotations

from portable.kernels.matmul.problem import Operand, Problem
from portable.plan import Rejected, TensorMap

SECTOR = 32
"""Bytes of L2's sectors. Lines that start at no multiple of them load slowly (H200, 2026-11-27: 3000^3 and
5000^3 in bfloat16, whose lines are at multiples of 16, and not 6000^3)."""
_SWIZZLE = 128  # bytes of a box's innermost dimension


def tma_descriptor(
    operand: Operand,
    rows: int,
    cols: int,
    batch: tuple[int, int],
    lines: int,
    promotion: int = 256,
    matrices: int = 1,
) -> TensorMap:
    """Boxes of 128 bytes along the unit stride by `lines` across it, of `matrices` of the outer batch
    dimension. A batch dimension over which the operand is broadcast has size 1, since a tensor map has no
    stride of 0."""
    along, across = (cols, rows) if operand.unit_stride == "col" else (rows, cols)
    outer, inner = operand.batch
    sizes = (along, across, batch[1] if inner else 1, batch[0] if outer else 1)
    strides = (operand.leading, inner or operand.leading, outer or operand.leading)
    steps = tuple(stride * operand.itemsize for stride in strides)
    return TensorMap(
        operand.tensor,
        operand.dtype,
        sizes,
        steps,
        (_SWIZZLE // operand.itemsize, lines, 1, matrices),
        promotion,
    )


def operands_unsupported(problem: Problem) -> Rejected | None:
    """Why TMA cannot load a and b, or None where it can."""
    if problem.K == 0:
        return Rejected("K = 0: nothing to load")
    if problem.gated and problem.b.batch[0] == 0:
        return Rejected(f"TMA needs gate and up apart; those of {problem.b.tensor} are one matrix in memory")
    reason = tma_unsupported(problem.a, problem.M, problem.K)
    return reason if reason is not None else tma_unsupported(problem.b, problem.K, problem.N)


def tma_unsupported(operand: Operand, rows: int, cols: int) -> Rejected | None:
    """Why TMA cannot load the operand, or None where it can."""
    if not operand.aligned_to(16):
        return Rejected(f"TMA needs 16-byte aligned rows and columns; those of {operand.tensor} are not")
    along, across = (cols, rows) if operand.unit_stride == "col" else (rows, cols)
    if across > 1 and operand.leading < along:
        return Rejected(f"TMA needs rows that do not overlap; those of {operand.tensor} do")
    return None
