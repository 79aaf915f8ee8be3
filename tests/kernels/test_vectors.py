"""Vectors in matmul and a tensor of no dimensions in softmax, as torch takes them."""

from __future__ import annotations

import pytest
import torch

import portable
from portable import errors

SHAPES = [((4,), (4,)), ((4,), (4, 3)), ((2, 4), (4,)), ((4,), (5, 2, 4, 3)), ((5, 1, 2, 4), (4,))]


def operands(one, other, **options):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, **options) for shape in (one, other)]


@pytest.mark.parametrize(("one", "other"), SHAPES)
def test_matmul(one, other):
    a, b = operands(one, other, requires_grad=True)
    wanted = torch.matmul(a, b)
    for _ in range(2):
        got = portable.matmul(a, b)
        assert got.shape == wanted.shape
        torch.testing.assert_close(got, wanted)
    dy = torch.randn_like(wanted)
    for found, expected in zip(
        torch.autograd.grad(got, (a, b), dy), torch.autograd.grad(wanted, (a, b), dy), strict=True
    ):
        torch.testing.assert_close(found, expected)
    a, b = a.detach(), b.detach()
    out = torch.empty_like(wanted.detach())
    assert portable.matmul(a, b, out=out) is out
    torch.testing.assert_close(out, torch.matmul(a, b))
    assert isinstance(portable.matmul(a.numpy(), b.numpy()), type(a.numpy()))
    assert portable.matmul(a.numpy(), b.numpy()).shape == tuple(wanted.shape)
    meta = portable.matmul(a.to("meta"), b.to("meta"))
    assert meta.is_meta and meta.shape == wanted.shape
    assert portable.explain("matmul", a, b).choice is not None


@pytest.mark.parametrize(("one", "other"), SHAPES[:3])
def test_matmul_compiled(one, other):
    a, b = operands(one, other)
    compiled = torch.compile(lambda a, b: portable.matmul(a, b) + 1, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(a, b), torch.matmul(a, b) + 1)
    batched = torch.vmap(portable.matmul)(a.expand(3, *a.shape), b.expand(3, *b.shape))
    torch.testing.assert_close(batched, torch.matmul(a, b).expand(3, *torch.matmul(a, b).shape))


@pytest.mark.parametrize("dim", [0, -1])
def test_softmax_of_one_element(dim):
    x = torch.tensor(3.0, requires_grad=True)
    y = portable.softmax(x, dim)
    assert y.shape == () and y.item() == 1.0
    (dx,) = torch.autograd.grad(y, x)
    assert dx.shape == () and dx.item() == 0.0
    assert portable.softmax(x.detach().to("meta"), dim).shape == ()


def test_what_does_not_fit_is_refused():
    a, b = operands((4,), (4, 3))
    with pytest.raises(errors.ShapeError):
        portable.matmul(a[:3], b)
    with pytest.raises(errors.RankError):
        portable.matmul(torch.tensor(1.0), b)
    with pytest.raises(errors.ParameterError, match="dim"):
        portable.softmax(torch.tensor(1.0), 1)
    for shape in ((), (1, 3), (4,)):
        with pytest.raises(errors.OutputError):
            portable.matmul(a, b, out=torch.empty(shape))
