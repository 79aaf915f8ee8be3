"""The canonical matrix product: what every implementation of matmul, linear and gated_linear is planned from.

A product with any broadcast, transposed or sliced operands is reduced to sizes M, N, K, at most two
batch dimensions, and for each operand two matrix strides and two batch strides:

    c[i, j, m, n] = activation(sum_k a[i, j, m, k] * b[i, j, k, n] + bias[n])

or, gated, with two matrices b, gate and up: c = activation(a @ gate) * (a @ up).

Batch dimensions of size 1 vanish, adjacent ones merge where all three operands allow it, and a batch
dimension over which b does not change becomes more rows of a where the strides of a and c allow it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from portable import dtypes
from portable.layout import rows
from portable.plan import Call, Plan, Rejected, TensorInfo


@dataclass(frozen=True, slots=True)
class Operand:
    """A batch of matrices in memory: element (i, j, row, col) is
    `i * batch[0] + j * batch[1] + row * self.row + col * self.col` elements from the base.

    `alignment` is that of the base address in bytes (at most 16). A stride of 0 broadcasts.
    """

    tensor: str
    dtype: str
    row: int
    col: int
    batch: tuple[int, int]
    alignment: int

    @property
    def itemsize(self) -> int:
        return dtypes.itemsize(self.dtype)

    @property
    def unit_stride(self) -> str | None:
        """The index with unit stride: "col" (row-major), "row" (column-major) or None."""
        if self.col == 1:
            return "col"
        return "row" if self.row == 1 else None

    @property
    def leading(self) -> int:
        """The matrix stride, in elements, that is not the unit one."""
        return self.row if self.col == 1 else self.col

    def aligned_to(self, nbytes: int) -> bool:
        """Whether every line of every matrix starts at a multiple of `nbytes` (at most 16)."""
        strides = (self.leading, *self.batch)
        return self.alignment >= nbytes and all(stride * self.itemsize % nbytes == 0 for stride in strides)

    def matrices(self, batch: tuple[int, int]) -> tuple[int, int]:
        """How many distinct matrices a batch of these sizes has, along each dimension."""
        outer, inner = (size if stride else 1 for size, stride in zip(batch, self.batch, strict=True))
        return outer, inner

    def copied(self, name: str, batch: tuple[int, int], pitch: int, lines: int) -> Operand:
        """A copy in the workspace `name`: the distinct matrices one after the other, each of `lines`
        contiguous lines, `pitch` elements apart."""
        matrix = pitch * lines
        outer = matrix * self.matrices(batch)[1] if self.batch[0] else 0
        inner = matrix if self.batch[1] else 0
        row, col = (pitch, 1) if self.unit_stride == "col" else (1, pitch)
        return Operand(name, self.dtype, row, col, (outer, inner), 16)


@dataclass(frozen=True, slots=True)
class Problem:
    """One matrix product. `batch` sizes are (outer, inner), 1 where there is none; `bias` is the name
    of a contiguous tensor of N elements, added to each row, whose base alignment is
    `bias_alignment`; `preactivation` names a second output with c's layout, which gets the sum with its
    bias, before the activation; `precision` is "ieee", "tf32" or "bf16x6" and concerns float32 alone.

    `alphas`: float32 tensors of one number each, which multiply a sum in their order, before its bias.

    `gated`: b is two matrices of N columns each, gate and up, `b.batch[0]` elements apart; `batch` is (1, 1)
    and there is neither a bias nor a preactivation."""

    M: int
    N: int
    K: int
    batch: tuple[int, int]
    a: Operand
    b: Operand
    c: Operand
    bias: str | None = None
    bias_alignment: int = 16
    activation: str | None = None
    preactivation: str | None = None
    precision: str = "ieee"
    gated: bool = False
    alphas: tuple[str, ...] = ()

    @property
    def dtype(self) -> str:
        return self.a.dtype

    @property
    def batches(self) -> int:
        return self.batch[0] * self.batch[1]

    @property
    def transposable(self) -> bool:
        """Whether c.T = b.T @ a.T is a product of the same kind: a bias, gate and up belong to columns."""
        return self.bias is None and not self.gated

    @property
    def product(self) -> Problem:
        """The product before the epilogue, with the columns of gate and of up: what tiles are chosen for."""
        return replace(self, N=2 * self.N, gated=False) if self.gated else self

    @property
    def sides(self) -> tuple[tuple[Operand, int, bool], tuple[Operand, int, bool]]:
        """a with its rows, b with its columns, and whether either is K-major."""
        a, b = self.a, self.b
        return (a, self.M, a.unit_stride == "col"), (b, self.N, b.unit_stride == "row")

    def batch_of(self, operand: Operand) -> tuple[int, int]:
        """The batch sizes of one operand: gate and up are two matrices."""
        return (2, 1) if self.gated and operand is self.b else self.batch

    def transposed(self) -> Problem:
        """The same product as c.T = b.T @ a.T, of a problem that is `transposable`."""
        if not self.transposable:
            raise ValueError("a product with a bias, or a gated one, cannot be transposed")

        def flip(x: Operand) -> Operand:
            return replace(x, row=x.col, col=x.row)

        return replace(self, M=self.N, N=self.M, a=flip(self.b), b=flip(self.a), c=flip(self.c))


@dataclass(frozen=True, slots=True)
class _Dim:
    """One batch dimension: its size and its stride in each operand."""

    size: int
    a: int
    b: int
    c: int


def _batch_strides(info: TensorInfo, leading: int) -> list[int]:
    """Strides of `info` along `leading` broadcast batch dimensions; 0 where it is repeated."""
    shape, strides = info.shape[:-2], info.strides[:-2]
    missing = leading - len(shape)
    return [0] * missing + [0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True)]


def _merged(dims: list[_Dim]) -> list[_Dim]:
    """Adjacent dimensions joined wherever one step of the outer is `size` steps of the inner."""
    result: list[_Dim] = []
    for dim in dims:
        if result:
            outer = result[-1]
            steps = (dim.a * dim.size, dim.b * dim.size, dim.c * dim.size)
            if (outer.a, outer.b, outer.c) == steps:
                result[-1] = _Dim(outer.size * dim.size, dim.a, dim.b, dim.c)
                continue
        result.append(dim)
    return result


def free_strides(rows: int, cols: int, row: int, col: int) -> tuple[int, int]:
    """Matrix strides with those of size-1 indices, which never matter, chosen to suit kernels: a unit
    stride where the other index has none, else a well aligned leading stride."""

    def padded(size: int) -> int:
        return max(16, -(-size // 16) * 16)

    if cols <= 1:
        return (1, padded(rows)) if rows > 1 and row == 1 else (row if rows > 1 else 16, 1)
    if rows <= 1:
        return (padded(cols), 1) if col == 1 else (1, col)
    return row, col


def _foldable(M: int, K: int, dim: _Dim, a: tuple[int, int], c: tuple[int, int]) -> bool:
    """Whether batch dimension `dim` can become more rows: index i * M + m of one taller matrix."""
    if dim.b != 0:
        return False
    if M == 1:
        return a[1] == 1 or K == 1 or dim.a == 1
    return dim.a == M * a[0] and dim.c == M * c[0]


def from_matmul(call: Call) -> Problem | Rejected:
    """The canonical problem of `matmul(a [*batch_a, M, K], b [*batch_b, K, N]) -> c [*batch, M, N]`.

    Rejected when more than two batch dimensions remain that no merge removes.
    """
    a, b, c = call["a"], call["b"], call["c"]
    M, K = a.shape[-2:]
    N = b.shape[-1]
    leading = len(c.shape) - 2
    columns = zip(
        c.shape[:-2], _batch_strides(a, leading), _batch_strides(b, leading), c.strides[:-2], strict=True
    )
    dims = _merged([_Dim(*column) for column in columns if column[0] != 1])
    a_strides, c_strides = (a.strides[-2], a.strides[-1]), (c.strides[-2], c.strides[-1])
    while dims and _foldable(M, K, dims[-1], a_strides, c_strides):
        last = dims.pop()
        if M == 1:
            a_strides, c_strides = (last.a, a_strides[1]), (last.c, c_strides[1])
        M *= last.size
    if len(dims) > 2:
        sizes = "x".join(str(dim.size) for dim in dims)
        return Rejected(f"{len(dims)} batch dimensions ({sizes}) that do not merge; at most 2 are supported")
    dims = [_Dim(1, 0, 0, 0)] * (2 - len(dims)) + dims

    def operand(name: str, info: TensorInfo, rows: int, cols: int, strides: tuple[int, int]) -> Operand:
        row, col = free_strides(rows, cols, *strides)
        batch = (getattr(dims[0], name), getattr(dims[1], name))
        return Operand(name, info.dtype, row, col, batch, info.alignment)

    return Problem(
        M, N, K,
        batch=(dims[0].size, dims[1].size),
        a=operand("a", a, M, K, a_strides),
        b=operand("b", b, K, N, (b.strides[-2], b.strides[-1])),
        c=operand("c", c, M, N, c_strides),
        precision=call.params["precision"],
    )  # fmt: skip


def from_linear(call: Call) -> Problem | Rejected:
    """The canonical problem of `linear(x [*, K], weight [N, K], bias [N]?) -> y [*, N]`: a is x with all
    its leading dimensions as rows, b is the transposed weight. A call with an output z also gets the
    preactivation."""
    x, weight, y = call["x"], call["weight"], call["y"]
    N, K = weight.shape
    x_rows, y_rows = rows(x), rows(y)
    M = y_rows.count

    def operand(name: str, info: TensorInfo, rows: int, cols: int, row: int, col: int) -> Operand:
        return Operand(name, info.dtype, *free_strides(rows, cols, row, col), (0, 0), info.alignment)

    return Problem(
        M, N, K,
        batch=(1, 1),
        a=operand("x", x, M, K, x_rows.stride, 1),
        b=operand("weight", weight, K, N, weight.strides[1], weight.strides[0]),
        c=operand("y", y, M, N, y_rows.stride, 1),
        bias="bias" if call.has("bias") else None,
        bias_alignment=call["bias"].alignment if call.has("bias") else 16,
        activation=call.params["activation"],
        preactivation="z" if call.has("z") else None,
    )  # fmt: skip


def from_gated_linear(call: Call) -> Problem:
    """The canonical problem of `gated_linear(x [*, K], w_gate_up [2, N, K]) -> y [*, N]`."""
    x, weight, y = call["x"], call["w_gate_up"], call["y"]
    _, N, K = weight.shape
    M = rows(y).count

    def operand(name: str, info: TensorInfo, rows: int, cols: int, row: int, col: int, apart: int) -> Operand:
        return Operand(name, info.dtype, *free_strides(rows, cols, row, col), (apart, 0), info.alignment)

    apart, column, k = weight.strides
    return Problem(
        M, N, K,
        batch=(1, 1),
        a=operand("x", x, M, K, rows(x).stride, 1, 0),
        b=operand("w_gate_up", weight, K, N, k, column, apart),
        c=operand("y", y, M, N, rows(y).stride, 1, 0),
        activation=call.params["activation"],
        gated=True,
    )  # fmt: skip


def from_call(call: Call) -> Problem | Rejected:
    """The canonical problem of a call of matmul, linear or gated_linear."""
    if "w_gate_up" in call.tensors:
        return from_gated_linear(call)
    return from_linear(call) if "weight" in call.tensors else from_matmul(call)


def for_call(planner: Callable[..., Plan | Rejected]) -> Callable[..., Plan | Rejected]:
    """A planner of problems as the entry that the specs of matmul, linear and gated_linear name. It takes a
    Problem, the Call and a spec's options."""

    def plan(call: Call, **options: Any) -> Plan | Rejected:
        problem = from_call(call)
        return problem if isinstance(problem, Rejected) else planner(problem, call, **options)

    return plan
