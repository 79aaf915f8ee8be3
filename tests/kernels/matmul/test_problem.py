"""The canonical matrix product agrees with torch.matmul for any broadcast, transposed or sliced operands."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from portable.kernels.matmul.problem import Problem, from_linear, from_matmul
from portable.plan import Call, Device, Rejected, TensorInfo

DEVICE = Device("toy", "toy", "toy")
NAMES = {torch.float32: "float32", torch.float64: "float32"}


def info(x: torch.Tensor) -> TensorInfo:
    return TensorInfo(tuple(x.shape), tuple(x.stride()), NAMES[x.dtype])


def matmul_problem(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Problem | Rejected:
    tensors = {"a": info(a), "b": info(b), "c": info(c)}
    return from_matmul(Call(tensors, {"precision": "ieee"}, {}, DEVICE, {}))


def evaluate(problem: Problem, tensors: dict[str, torch.Tensor]) -> None:
    """Run the canonical problem in NumPy on the tensors' memory, writing its c."""

    def view(operand, rows: int, cols: int) -> np.ndarray:
        x = tensors[operand.tensor]
        flat = x.as_strided((x.untyped_storage().nbytes() // x.itemsize - x.storage_offset(),), (1,)).numpy()
        shape = (*problem.batch, rows, cols)
        strides = (*operand.batch, operand.row, operand.col)
        steps = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
        reach = sum(steps) if rows * cols else 0
        assert reach < max(flat.size, 1), "the canonical operand reaches outside the tensor"
        return np.lib.stride_tricks.as_strided(flat, shape, [s * x.itemsize for s in strides])

    c = view(problem.c, problem.M, problem.N)
    product = view(problem.a, problem.M, problem.K) @ view(problem.b, problem.K, problem.N)
    if problem.bias is not None:
        product = product + tensors[problem.bias].numpy()
    c[...] = product


@st.composite
def operands(draw) -> tuple[torch.Tensor, torch.Tensor]:
    M, N, K = (draw(st.sampled_from([1, 2, 3, 5])) for _ in range(3))
    batch = draw(st.lists(st.sampled_from([1, 2, 3]), max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))

    def tensor(rows: int, cols: int) -> torch.Tensor:
        own = batch[draw(st.integers(0, len(batch))) :]
        own = [1 if draw(st.booleans()) else size for size in own]
        kind = draw(st.sampled_from(["plain", "transposed", "sliced", "expanded", "repeated", "permuted"]))
        if kind == "transposed":
            x = torch.randn(*own, cols, rows, dtype=torch.float64, generator=generator).mT
        elif kind == "sliced":
            x = torch.randn(*own, rows + 2, cols + 3, dtype=torch.float64, generator=generator)
            x = x[..., 1:-1, :cols]
        elif kind == "repeated":
            x = torch.randn(*own, 1, cols, dtype=torch.float64, generator=generator).expand(*own, rows, cols)
        elif kind == "permuted":
            x = torch.randn(rows, *own, cols, dtype=torch.float64, generator=generator).movedim(0, -2)
        else:
            x = torch.randn(*own, rows, cols, dtype=torch.float64, generator=generator)
            if kind == "expanded":
                x = x.expand(*batch[len(batch) - len(own) :], rows, cols)
        return x

    return tensor(M, K), tensor(K, N)


@given(operands())
def test_matches_torch(pair):
    a, b = pair
    expected = a @ b
    c = torch.full(expected.shape, float("nan"), dtype=torch.float64)
    problem = matmul_problem(a, b, c)
    if isinstance(problem, Rejected):
        assert c.ndim == 5
        return
    assert problem.a.unit_stride and problem.b.unit_stride and problem.c.unit_stride
    evaluate(problem, {"a": a, "b": b, "c": c})
    torch.testing.assert_close(c, expected)
    if problem.bias is None:
        c.fill_(float("nan"))
        evaluate(problem.transposed(), {"a": a, "b": b, "c": c})
        torch.testing.assert_close(c, expected)


@given(operands())
def test_out_may_be_transposed(pair):
    a, b = pair
    expected = a @ b
    c = torch.full(expected.mT.shape, float("nan"), dtype=torch.float64).mT
    problem = matmul_problem(a, b, c)
    if not isinstance(problem, Rejected):
        evaluate(problem, {"a": a, "b": b, "c": c})
        torch.testing.assert_close(c, expected)


def shapes(a_shape, b_shape) -> Problem | Rejected:
    a, b = torch.zeros(a_shape), torch.zeros(b_shape)
    return matmul_problem(a, b, a @ b)


def folded(a_shape, b_shape) -> Problem:
    problem = shapes(a_shape, b_shape)
    assert isinstance(problem, Problem), problem
    return problem


def test_batch_of_a_folds_into_rows():
    problem = folded((4, 3, 8, 5), (5, 7))
    assert (problem.M, problem.batch) == (96, (1, 1))


def test_batch_of_vectors_folds_into_rows():
    problem = folded((6, 1, 5), (1, 5, 7))
    assert (problem.M, problem.a.row, problem.batch) == (6, 5, (1, 1))


def test_equal_batches_merge():
    problem = folded((4, 3, 8, 5), (4, 3, 5, 7))
    assert (problem.batch, problem.a.batch, problem.b.batch) == ((1, 12), (0, 40), (0, 35))


def test_outer_product_of_batches_stays_two_dimensional():
    problem = folded((2, 1, 64, 64), (1, 3, 64, 64))
    assert (problem.batch, problem.a.batch, problem.b.batch) == ((2, 3), (4096, 0), (0, 4096))


def test_three_alternating_batches_are_rejected():
    assert isinstance(shapes((2, 1, 3, 4, 5), (1, 2, 1, 5, 6)), Problem)
    assert isinstance(shapes((1, 2, 1, 4, 5), (3, 1, 3, 5, 6)), Rejected)


@pytest.mark.parametrize("K", [0, 1, 5])
def test_empty_sum(K):
    a, b, c = torch.zeros(3, K), torch.zeros(K, 4), torch.full((3, 4), float("nan"))
    problem = matmul_problem(a, b, c)
    assert isinstance(problem, Problem), problem
    evaluate(problem, {"a": a, "b": b, "c": c})
    assert (c == 0).all()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("lead", [(), (1,), (4,), (3, 5)])
def test_linear(lead, bias):
    x = torch.randn(*lead, 10, dtype=torch.float64)[..., :6]
    weight = torch.randn(7, 6, dtype=torch.float64)
    shift = torch.randn(7, dtype=torch.float64) if bias else None
    y = torch.full((*lead, 7), float("nan"), dtype=torch.float64)
    tensors = {"x": x, "weight": weight, "bias": shift, "y": y}
    infos = {name: None if value is None else info(value) for name, value in tensors.items()}
    problem = from_linear(Call(infos, {"activation": None}, {}, DEVICE, {}))
    assert isinstance(problem, Problem) and problem.bias == ("bias" if bias else None)
    evaluate(problem, {name: value for name, value in tensors.items() if value is not None})
    torch.testing.assert_close(y, torch.nn.functional.linear(x, weight, shift))
