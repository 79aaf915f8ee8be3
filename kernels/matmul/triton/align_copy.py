"""Copying operands into lines that a Triton product reads well, in workspaces of the call.

Products outside the matrix cores (float32) read both operands across K from shared memory, and where an
operand lies along K the reads of a warp meet in one bank.

2026-11-21, H200, 2048x4096x2048 in float32: b along K 0.27 of torch, b turned 0.83, a and b turned 0.90.
"""

from __future__ import annotations

from dataclasses import replace

import triton
import triton.language as tl

from portable.kernels.matmul.problem import Operand, Problem
from portable.plan import Argument, Device, Launch, Pointer, Scalar, TritonKernel, Workspace

BLOCK = 64
PITCH = 64  # elements: packed lines start at multiples of 128 bytes at least
MOST_BYTES = 1 << 31  # of one workspace: beyond, time is easier to spare than memory
# What decides: bytes copied per microsecond, microseconds of a launch, and flops per microsecond of a product
# with both operands turned, with a alone along K, and with b along K.
COPIED, LAUNCH, TURNED, A_ALONG_K, B_ALONG_K = 2.0e6, 3.0, 4.6e7, 4.2e7, 1.3e7


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


def flipped(x: Operand) -> Operand:
    """The transposed view."""
    return replace(x, row=x.col, col=x.row)


class Packing:
    """One operand, of `rows` x `cols`, copied so that `unit` is its unit index; what is broadcast over a
    batch is copied once."""

    def __init__(self, x: Operand, rows: int, cols: int, batch: tuple[int, int], unit: str):
        self.flip = unit == "row"
        self.x = flipped(x) if self.flip else x
        self.rows, self.cols = (cols, rows) if self.flip else (rows, cols)
        self.counts = [size if stride else 1 for size, stride in zip(batch, x.batch, strict=True)]
        self.matrices = self.counts[0] * self.counts[1]
        self.pitch = triton.cdiv(self.cols, PITCH) * PITCH
        self.tiles = triton.cdiv(self.rows, BLOCK) * triton.cdiv(self.cols, BLOCK)
        self.elements = self.matrices * self.rows * self.pitch
        self.name = f"{x.tensor}_packed"

    @property
    def operand(self) -> Operand:
        matrix = self.rows * self.pitch
        outer = self.counts[1] * matrix if self.counts[0] > 1 else 0
        batch = (outer, matrix if self.counts[1] > 1 else 0)
        made = replace(self.x, tensor=self.name, row=self.pitch, col=1, batch=batch, alignment=16)
        return flipped(made) if self.flip else made

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.name, (self.elements,), self.x.dtype)

    @property
    def launch(self) -> Launch:
        x = self.x
        known = tuple((f"x_{name}", 1) for name in ("row", "col") if name == x.unit)
        kernel = TritonKernel(pack_matrix, (*known, ("BLOCK", BLOCK)), num_warps=8, num_stages=1)
        args: list[tuple[str, Argument]] = [("x_ptr", Pointer(x.tensor, x.alignment >= 16))]
        strides = {"row": x.row, "col": x.col, "outer": x.batch[0], "inner": x.batch[1]}
        args += [
            (f"x_{name}", Scalar("i64", step, step % 16 == 0))
            for name, step in strides.items()
            if name != x.unit
        ]
        args += [("y_ptr", Pointer(self.name, True)), ("pitch", Scalar("i64", self.pitch, True))]
        sizes = {"rows": self.rows, "cols": self.cols, "tiles": self.tiles, "inner_batch": self.counts[1]}
        args += [(name, Scalar("i32", value)) for name, value in sizes.items()]
        return Launch(kernel, (self.tiles * self.matrices, 1, 1), tuple(args))


def packed(problem: Problem, device: Device) -> tuple[Problem, tuple[Packing, ...]]:
    """The problem over packed operands, and how they are packed; as it was where that does not pay.

    Only on cards where it was measured: others may serve float32 by matrix cores.
    """
    a, b = problem.a, problem.b
    if not device.arch.startswith("sm_9") or problem.dtype != "float32" or problem.precision == "tf32":
        return problem, ()
    packs: dict[str, Packing] = {}
    if a.unit == "col":
        packs["a"] = Packing(a, problem.M, problem.K, problem.batch, "row")
    if b.unit == "row":
        packs["b"] = Packing(b, problem.K, problem.N, problem.batch, "col")
    if not packs or None in (a.unit, b.unit):
        return problem, ()
    sizes = [each.elements * a.itemsize for each in packs.values()]
    flops = 2.0 * problem.M * problem.N * problem.K * problem.batches
    cost = 2 * sum(sizes) / COPIED + LAUNCH * len(packs)
    slow = B_ALONG_K if "b" in packs else A_ALONG_K
    if flops / TURNED + cost > flops / slow or max(sizes) > MOST_BYTES:
        return problem, ()
    if any(each.tiles * each.matrices >= 2**31 for each in packs.values()):
        return problem, ()
    return replace(problem, **{name: each.operand for name, each in packs.items()}), tuple(packs.values())
