"""Copying an operand into lines that a Triton product reads well, in a workspace of the call."""

from __future__ import annotations

from dataclasses import replace

import triton
import triton.language as tl

from portable.kernels.matmul.problem import Operand
from portable.plan import Argument, Launch, Pointer, Scalar, TritonKernel, Workspace

BLOCK = 64
PITCH = 64  # elements: packed lines start at multiples of 128 bytes at least


@triton.jit
def pack_matrix(
    x_ptr, x_row, x_col, x_outer, x_inner, y_ptr, pitch, rows, cols, tiles, inner_batch,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """y[i, j, row, col] = x[i, j, row, col] for one tile; y is dense but for lines `pitch` apart."""
    pid = tl.program_id(0)
    batch = (pid // tiles).to(tl.int64)
    pid = pid % tiles
    across = tl.cdiv(cols, BLOCK)
    row = ((pid // across) * BLOCK + tl.arange(0, BLOCK))[:, None]
    col = ((pid % across) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (row < rows) & (col < cols)
    x_ptr += batch // inner_batch * x_outer + batch % inner_batch * x_inner
    y_ptr += batch * rows * pitch
    values = tl.load(x_ptr + row.to(tl.int64) * x_row + col.to(tl.int64) * x_col, mask=inside, other=0.0)
    tl.store(y_ptr + row.to(tl.int64) * pitch + col, values, mask=inside)


class Packing:
    """One operand copied so that `col` is its unit index: a launch, a workspace, and the new operand."""

    def __init__(self, x: Operand, rows: int, cols: int, batch: tuple[int, int]):
        counts = [size if stride else 1 for size, stride in zip(batch, x.batch, strict=True)]
        self.x, self.rows, self.cols, self.counts = x, rows, cols, counts
        self.pitch = triton.cdiv(cols, PITCH) * PITCH
        self.tiles = triton.cdiv(rows, BLOCK) * triton.cdiv(cols, BLOCK)
        self.matrices = counts[0] * counts[1]
        self.name = f"{x.tensor}_packed"

    @property
    def operand(self) -> Operand:
        matrix = self.rows * self.pitch
        steps = (
            self.counts[1] * matrix if self.counts[0] > 1 else 0,
            matrix if self.counts[1] > 1 else 0,
        )
        return replace(self.x, tensor=self.name, row=self.pitch, col=1, batch=steps, alignment=16)

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.name, (self.matrices * self.rows * self.pitch,), self.x.dtype)

    @property
    def launch(self) -> Launch:
        x = self.x
        kernel = TritonKernel(
            pack_matrix,
            (*((f"x_{name}", 1) for name in ("row", "col") if name == x.unit), ("BLOCK", BLOCK)),
            num_warps=8,
            num_stages=1,
        )
        strides = {"row": x.row, "col": x.col, "outer": x.batch[0], "inner": x.batch[1]}
        args: list[tuple[str, Argument]] = [("x_ptr", Pointer(x.tensor, x.alignment >= 16))]
        args += [
            (f"x_{name}", Scalar("i64", step, x.aligned_to(16) and step % 16 == 0))
            for name, step in strides.items()
            if name != x.unit
        ]
        args += [("y_ptr", Pointer(self.name, True)), ("pitch", Scalar("i64", self.pitch, True))]
        sizes = {"rows": self.rows, "cols": self.cols, "tiles": self.tiles, "inner_batch": self.counts[1]}
        args += [(name, Scalar("i32", value)) for name, value in sizes.items()]
        return Launch(kernel, (self.tiles * self.matrices, 1, 1), tuple(args))
