"""portable.mean against torch's: dimensions, dtypes, what is empty, one rounding, wrong calls."""

from __future__ import annotations

import pytest
import torch

import portable
from portable import errors

X = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
DIMS = [None, -1, 0, 2, (), (1,), (0, 2), [3, 2], (-1, 0), (0, 1, 2, 3)]


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("keepdim", [False, True])
def test_values_and_gradients_are_torch_s(dim, keepdim):
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    got, expected = portable.mean(x, dim, keepdim), torch.mean(y, dim, keepdim)
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected)
    weight = torch.arange(got.numel(), dtype=torch.float64).view(got.shape) + 1
    (got * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_without_a_dim_it_is_of_all_as_in_torch():
    assert portable.mean(X).shape == () and portable.mean(X.mT, keepdim=True).shape == (1, 1, 1, 1)
    torch.testing.assert_close(portable.mean(input=X), X.mean())


def test_no_dimensions_and_nothing_to_add():
    one = torch.tensor(3.0, dtype=torch.bfloat16)
    for dim in (None, 0, -1, ()):
        assert torch.equal(portable.mean(one, dim), one) and portable.mean(one, dim, True).shape == ()
    assert portable.mean(torch.ones(2, 0), 1).isnan().tolist() == [True, True]
    assert portable.mean(torch.ones(2, 0), 0).shape == (0,)
    empty = torch.ones(2, 0, requires_grad=True)
    portable.mean(empty, 1).sum().backward()
    assert empty.grad is not None and empty.grad.shape == (2, 0)


def test_dtype_converts_first():
    whole = torch.arange(7).view(1, 7)
    assert torch.equal(portable.mean(whole, -1, dtype=torch.float32), torch.tensor([3.0]))
    narrow = X.bfloat16()
    torch.testing.assert_close(portable.mean(narrow, 1, dtype=torch.float64), narrow.double().mean(1))
    assert portable.mean(X, dtype=torch.float16).dtype == torch.float16


def test_a_sum_beyond_float16_is_no_infinity():
    x = torch.full((2, 4096), 60000.0, dtype=torch.float16)
    assert torch.equal(portable.mean(x, -1), x[:, 0])


@pytest.mark.parametrize("implementation", ["cpp", "triton"])
def test_kernels_answer_for_a_row_as_for_a_batch(emulate, implementation):
    emulate("gfx942")
    x = torch.randn(5, 1000, generator=torch.Generator().manual_seed(1)).bfloat16()
    with portable.using(mean=implementation):
        together = portable.mean(x, -1)
        assert all(torch.equal(portable.mean(x[i : i + 1], -1)[0], together[i]) for i in range(5))
        whole = portable.mean(x)
    assert torch.equal(together, x.double().mean(-1).bfloat16())
    torch.testing.assert_close(whole, x.double().mean().bfloat16())


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: portable.mean(X, 4), errors.ParameterError, "from -4 to 3"),
        (lambda: portable.mean(X, (0, -4)), errors.ParameterError, "each once"),
        (lambda: portable.mean(X, 1.0), errors.ParameterError, "dim"),
        (lambda: portable.mean(X, 1, keepdim=1), errors.ParameterError, "keepdim"),
        (lambda: portable.mean(X, dtype=torch.int32), errors.ParameterError, "floating point"),
        (lambda: portable.mean(torch.arange(4)), errors.DtypeError, "dtype=torch.float32"),
        (lambda: portable.mean([1.0, 2.0]), errors.NotATensorError, "input"),
        (lambda: portable.mean(X, axis=1), errors.SignatureError, "Here it is dim"),
    ],
)
def test_wrong_calls(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong()


def test_torch_s_operator_runs_it():
    x = X.float().requires_grad_()
    with portable.aten(["mean.dim"]) as found:
        y = x.mean((1, 2), keepdim=True)
        y.sum().backward()
    torch.testing.assert_close(y, X.float().mean((1, 2), keepdim=True))
    torch.testing.assert_close(x.grad, torch.full_like(x, 1 / 20))
    assert found.taken["mean.dim"] == 1
