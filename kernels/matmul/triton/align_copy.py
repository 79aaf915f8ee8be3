"""Copies of operands for the Triton product on Hopper, in workspaces of the call: of float32 transposed, of
16 bits with lines that start at multiples of 128 bytes.

Products outside the matrix cores (float32) read both operands across K from shared memory; reads of a K-major
operand by a warp have bank conflicts. 2026-11-21, H200, 2048x4096x2048 in float32: K-major b 0.27 of torch, b
transposed 0.83, a and b transposed 0.90.

TMA loads lines at multiples of 16 bytes, slowly those at no multiple of L2's sectors of 32. 2026-11-27,
H200, bfloat16, us, with copies and without: 4095x4097x4099 272 and 1232, 4096x4096x4100 nt 225 and 1106
(through pointers); 4000x12000x5000 nt, whose lines are 10000 bytes, 740 and 888. 6000^3, of lines of 12000
bytes, is as fast without. One even operand is nearly as good as two: 3000^3 nn takes 100 us with both, 105
with b, 110 with a and 125 with neither; a copy takes 10."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import triton
import triton.language as tl

from portable.kernels._lib.triton.rows import divisible
from portable.kernels.matmul.problem import Operand, Problem
from portable.kernels.matmul.sm90.tma_descriptors import SECTOR, tma_unsupported
from portable.kernels.matmul.triton.descriptors import unfit
from portable.layout import ceil_div
from portable.plan import Argument, Call, Launch, Pointer, Scalar, TritonKernel, Workspace

BLOCK = 64
PITCH = 64  # elements: rows of a copy start at multiples of 128 bytes at least
MAX_BYTES = 1 << 31  # of one workspace
# Measured rates: bytes copied per microsecond, microseconds of a launch, and flops per microsecond of a
# product with no K-major operand, with a K-major a, and with a K-major b.
COPIED, LAUNCH, TRANSPOSED, A_K_MAJOR, B_K_MAJOR = 2.0e6, 3.0, 4.6e7, 4.2e7, 1.3e7
# And of a product in 16 bits: through pointers, and by TMA with the lines of these operands at no multiple of
# a sector; bytes copied where 16 are loaded at once, and where 2 are.
POINTERS = 1.2e8
BY_TMA = {"": 6.6e8, "a": 6.5e8, "b": 6.1e8, "ab": 5.3e8}
VECTORS, ELEMENTS = 4.0e6, 2.6e6


@triton.jit
def align_copy_matrix(
    x_ptr, x_row, x_col, x_outer, x_inner, y_ptr, pitch, rows, cols, tiles, inner_batch,
    UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y[i, j, row, col] = x[i, j, row, col] for one tile; y is dense, its rows `pitch` apart. UNIT elements
    of x are 16 bytes where each of its rows starts and ends at a multiple of so many, else UNIT is 1."""
    x_row, cols = divisible(x_row, UNIT), divisible(cols, UNIT)
    x_outer, x_inner = divisible(x_outer, UNIT), divisible(x_inner, UNIT)
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


def transposed_view(x: Operand) -> Operand:
    """The transposed view."""
    return replace(x, row=x.col, col=x.row)


class AlignCopy:
    """The copy of one operand, of `rows` x `cols`, with unit stride along `unit` ("row" or "col"); a matrix
    that is broadcast over a batch is copied once."""

    def __init__(self, x: Operand, rows: int, cols: int, batch: tuple[int, int], unit: str):
        self.transposed = unit == "row"
        self.x = transposed_view(x) if self.transposed else x
        self.rows, self.cols = (cols, rows) if self.transposed else (rows, cols)
        self.counts = [size if stride else 1 for size, stride in zip(batch, x.batch, strict=True)]
        self.matrices = self.counts[0] * self.counts[1]
        self.pitch = ceil_div(self.cols, PITCH) * PITCH
        self.tiles = ceil_div(self.rows, BLOCK) * ceil_div(self.cols, BLOCK)
        self.elements = self.matrices * self.rows * self.pitch
        self.name = f"{x.tensor}_realigned"

    @property
    def vectors(self) -> bool:
        """Whether a line may be read 16 bytes at a time."""
        x = self.x
        return x.unit_stride == "col" and x.aligned_to(16) and self.cols * x.itemsize % 16 == 0

    @property
    def rate(self) -> float:
        """Bytes copied per microsecond."""
        return COPIED if self.x.dtype == "float32" else VECTORS if self.vectors else ELEMENTS

    @property
    def operand(self) -> Operand:
        matrix = self.rows * self.pitch
        outer = self.counts[1] * matrix if self.counts[0] > 1 else 0
        batch = (outer, matrix if self.counts[1] > 1 else 0)
        made = replace(self.x, tensor=self.name, row=self.pitch, col=1, batch=batch, alignment=16)
        return transposed_view(made) if self.transposed else made

    @property
    def bytes(self) -> int:
        return self.elements * self.x.itemsize

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.name, (self.elements,), self.x.dtype)

    @property
    def launch(self) -> Launch:
        x = self.x
        known = tuple((f"x_{name}", 1) for name in ("row", "col") if name == x.unit_stride)
        # Where the compiler knows that y is aligned, a thread reads as many elements of x as it writes at
        # once, one by one if x is not: 134 MB of 4095x4097x4099 in 148 us, not 52.
        aligned = self.vectors or x.dtype == "float32"
        constants = (*known, ("UNIT", 16 // x.itemsize if self.vectors else 1), ("BLOCK", BLOCK))
        kernel = TritonKernel(align_copy_matrix, constants, num_warps=8, num_stages=1)
        args: list[tuple[str, Argument]] = [("x_ptr", Pointer(x.tensor, x.alignment >= 16))]
        strides = {"row": x.row, "col": x.col, "outer": x.batch[0], "inner": x.batch[1]}
        args += [
            (f"x_{name}", Scalar("i64", step, step % 16 == 0))
            for name, step in strides.items()
            if name != x.unit_stride
        ]
        args += [("y_ptr", Pointer(self.name, aligned)), ("pitch", Scalar("i64", self.pitch, aligned))]
        sizes = {"rows": self.rows, "cols": self.cols, "tiles": self.tiles, "inner_batch": self.counts[1]}
        args += [(name, Scalar("i32", value)) for name, value in sizes.items()]
        return Launch(kernel, (self.tiles * self.matrices, 1, 1), tuple(args))


def realigned(problem: Problem, call: Call) -> tuple[Problem, tuple[AlignCopy, ...]]:
    """The problem over copied operands and their copies; the problem as it was where copies do not pay.

    Only on GPUs where that was measured: others may run float32 on matrix cores, or have no TMA.
    """
    if not call.device.arch.startswith("sm_9") or None in (problem.a.unit_stride, problem.b.unit_stride):
        return problem, ()
    if problem.dtype == "float32":
        copies = {} if problem.precision == "tf32" else _transposed(problem)
    else:
        copies = _for_tma(problem, call)
    if any(each.tiles * each.matrices >= 2**31 or each.bytes > MAX_BYTES for each in copies.values()):
        return problem, ()
    return _over(problem, copies), tuple(copies.values())


def _over(problem: Problem, copies: Mapping[str, AlignCopy]) -> Problem:
    return replace(problem, **{name: each.operand for name, each in copies.items()})


def _time(problem: Problem, copies: Mapping[str, AlignCopy], rate: float) -> float:
    """Microseconds of the copies and of a product at so many flops a microsecond."""
    flops = 2.0 * problem.M * problem.product.N * problem.K * problem.batches
    return flops / rate + sum(2 * each.bytes / each.rate + LAUNCH for each in copies.values())


def _transposed(problem: Problem) -> dict[str, AlignCopy]:
    """Copies of K-major operands, if they pay."""
    a, b = problem.a, problem.b
    copies: dict[str, AlignCopy] = {}
    if a.unit_stride == "col":
        copies["a"] = AlignCopy(a, problem.M, problem.K, problem.batch, "row")
    if b.unit_stride == "row":
        copies["b"] = AlignCopy(b, problem.K, problem.N, problem.batch_of(b), "col")
    slow = B_K_MAJOR if "b" in copies else A_K_MAJOR
    return copies if _time(problem, copies, TRANSPOSED) <= _time(problem, {}, slow) else {}


def _for_tma(problem: Problem, call: Call) -> dict[str, AlignCopy]:
    """Copies of what TMA cannot load, and of what it loads slowly, as far as they pay."""
    refused: dict[str, AlignCopy] = {}
    uneven: dict[str, AlignCopy] = {}
    for name, x, rows, cols in (
        ("a", problem.a, problem.M, problem.K),
        ("b", problem.b, problem.K, problem.N),
    ):
        batch = problem.batch_of(x)
        if x.unit_stride is not None and tma_unsupported(x, rows, cols) is not None:
            refused[name] = AlignCopy(x, rows, cols, batch, x.unit_stride)
        elif x.unit_stride is not None and x.leading * x.itemsize % SECTOR:
            uneven[name] = AlignCopy(x, rows, cols, batch, x.unit_stride)
    ways = [({}, POINTERS)] if refused else []
    for copied in ("", *uneven, "ab"):
        left = "".join(name for name in uneven if name not in copied)
        some = {name: copy for name, copy in uneven.items() if name in copied}
        ways.append(({**refused, **some}, BY_TMA[left]))
    best, _ = min(ways, key=lambda way: _time(problem, *way))
    return best if unfit(_over(problem, best), call) is None else {}
