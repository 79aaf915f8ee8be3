"""What Hopper's copy engine is told of an operand, and which operands it can walk."""

from __future__ import annotations

from portable.backends.cuda.tensor_map import TensorMap
from portable.kernels.matmul.problem import Operand
from portable.plan import Rejected

_LINE = 128  # bytes of a line of a box, which the swizzle goes by


def tensor_map(
    operand: Operand, rows: int, cols: int, batch: tuple[int, int], lines: int, promotion: int = 256
) -> TensorMap:
    """Boxes of one 128-byte line along the unit stride and `lines` across; batch dimensions that do not
    step have size 1, since a map knows no stride of 0."""
    along, across = (cols, rows) if operand.unit == "col" else (rows, cols)
    outer, inner = operand.batch
    sizes = (along, across, batch[1] if inner else 1, batch[0] if outer else 1)
    strides = (operand.leading, inner or operand.leading, outer or operand.leading)
    steps = tuple(stride * operand.itemsize for stride in strides)
    return TensorMap(
        operand.tensor, operand.dtype, sizes, steps, (_LINE // operand.itemsize, lines, 1, 1), promotion
    )


def no_map(operand: Operand, rows: int, cols: int) -> Rejected | None:
    """Why the copy engine cannot walk the operand, or None where it can."""
    if not operand.aligned_to(16):
        return Rejected(f"{operand.tensor} has lines that do not start at multiples of 16 bytes")
    along, across = (cols, rows) if operand.unit == "col" else (rows, cols)
    if across > 1 and operand.leading < along:
        return Rejected(f"{operand.tensor} has lines that overlap")
    return None
