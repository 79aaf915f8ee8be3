"""rope against rotations of complex numbers in float64, in the forms that models call it in."""

from __future__ import annotations

import pytest
import torch

import portable
from portable import errors
from portable.dispatch import dispatcher

TYPES = (torch.float64, torch.float32, torch.bfloat16)


def angles(rows: int, pairs: int, generator: torch.Generator) -> torch.Tensor:
    return 7 * torch.rand(rows, pairs, generator=generator, dtype=torch.float64)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """x (..., tokens, heads, D) times cos + i * sin (..., tokens, C), as complex numbers in float64."""
    columns = 2 * cos.shape[-1]
    part, rest = x[..., :columns].double(), x[..., columns:].double()
    pairs = part.unflatten(-1, (-1, 2)) if interleaved else part.unflatten(-1, (2, -1)).mT
    number = torch.view_as_complex(pairs.contiguous()) * torch.complex(cos.double(), sin.double()).unsqueeze(
        -2
    )
    pairs = torch.view_as_real(number)
    return torch.cat([(pairs if interleaved else pairs.mT).flatten(-2), rest], -1)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(torch.seed() % 2**31)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_it_is_a_product_of_complex_numbers(generator, dtype, interleaved):
    q, k = (torch.randn(2, 5, heads, 24, generator=generator).to(dtype) for heads in (6, 2))
    angle, positions = angles(11, 8, generator), torch.randint(11, (2, 5), generator=generator)
    tables = angle.cos().to(dtype), angle.sin().to(dtype)
    eps = torch.finfo(dtype).eps
    for x, got in zip((q, k), portable.rope(q, k, *tables, positions, interleaved=interleaved), strict=True):
        expected = rotated(x, tables[0][positions], tables[1][positions], interleaved)
        largest = expected.abs().max().item()  # of two products and their sum, in float32 or wider
        torch.testing.assert_close(got.double(), expected, rtol=eps, atol=min(eps, 2**-23) * largest)
        assert torch.equal(got[..., 16:], x[..., 16:])


def test_the_forms_of_other_libraries_are_views(generator):
    """(batch, heads, tokens, D), doubled tables with a row per token; flat tokens and one cache of both."""
    q, k = (torch.randn(2, heads, 5, 16, generator=generator) for heads in (4, 2))
    angle = angles(10, 8, generator).view(2, 5, 8).float()
    cos, sin = (torch.cat([each, each], -1) for each in (angle.cos(), angle.sin()))
    got = portable.rope(q.transpose(1, 2), k.transpose(1, 2), cos[..., :8], sin[..., :8])
    for x, y in zip((q, k), got, strict=True):
        a, b = x.chunk(2, -1)
        expected = x * cos.unsqueeze(1) + torch.cat([-b, a], -1) * sin.unsqueeze(1)
        torch.testing.assert_close(y.transpose(1, 2), expected)
    one = portable.rope(q.transpose(1, 2), None, cos[:1, :, :8], sin[:1, :, :8])
    torch.testing.assert_close(one[0], got[0][0])

    cache, positions = torch.cat([angle.cos(), angle.sin()], -1).flatten(0, 1), torch.arange(10).view(2, 5)
    flat = q.transpose(1, 2).reshape(1, 10, 4, 16)
    y = portable.rope(flat, None, cache[:, :8], cache[:, 8:], positions.view(1, 10).int())
    torch.testing.assert_close(y.view(2, 5, 4, 16), got[0])
    for args in ((q.transpose(1, 2), k.transpose(1, 2), cache[:, :8], cache[:, 8:], positions),):
        compiled = dispatcher.op("rope")._compiled(args, [False], None)
        assert compiled._as_is


@pytest.mark.parametrize("results", [(0,), (1,), (0, 1)])
def test_the_gradient_rotates_back(generator, results):
    q, k = (torch.randn(2, 5, heads, 16, generator=generator, dtype=torch.float64) for heads in (4, 2))
    angle, leaves = angles(5, 8, generator), [q.requires_grad_(), k.requires_grad_()]
    made = portable.rope(q, k, angle.cos(), angle.sin())
    upstream = [torch.randn(made[i].shape, generator=generator, dtype=torch.float64) for i in results]
    found = torch.autograd.grad([made[i] for i in results], leaves, upstream, allow_unused=True)
    for i in range(2):
        if i not in results:
            assert found[i] is None or not found[i].any()
            continue
        expected = rotated(upstream[results.index(i)], angle.cos(), -angle.sin(), False)
        torch.testing.assert_close(found[i], expected, atol=1e-14, rtol=0)


def test_tables_have_no_gradient(generator):
    q, angle = torch.randn(1, 3, 2, 8, generator=generator), angles(3, 4, generator).float()
    y = portable.rope(q, None, angle.cos().requires_grad_(), angle.sin())
    with pytest.raises(errors.UnsupportedGradientError, match=r"rope: no gradient: argument 'cos' has none"):
        y.sum().backward()


def test_tables_have_no_gradient_when_compiled(generator):
    """torch.compile derives the backward pass at the first call, which raises."""
    q, angle = torch.randn(1, 3, 2, 8, generator=generator), angles(3, 4, generator).float()
    compiled = torch.compile(portable.rope, fullgraph=True, backend="aot_eager")
    cos = angle.cos().requires_grad_()
    with pytest.raises(Exception, match=r"rope: no gradient: argument 'cos' has none. Detach the input"):
        compiled(q, None, cos, angle.sin())
    with torch.no_grad():
        torch.testing.assert_close(
            compiled(q, None, cos, angle.sin()), portable.rope(q, None, cos, angle.sin())
        )
    q.requires_grad_()
    compiled(q, None, cos.detach(), angle.sin())[0].sum().backward()
    assert q.grad is not None


def test_errors_name_the_argument(generator):
    q, angle = torch.randn(2, 3, 4, 8, generator=generator), angles(9, 4, generator).float()
    cos, sin = angle.cos(), angle.sin()
    with pytest.raises(
        errors.ShapeError, match=r"a row for each token of a sequence, or positions; got M = 3, P = 2"
    ):
        portable.rope(q, q, cos[:2], sin[:2])
    portable.rope(q, q, cos[:2], sin[:2], torch.ones(2, 3, dtype=torch.int32))
    doubled = torch.cat([cos, cos], -1)
    with pytest.raises(errors.ShapeError, match=r"at most half as many as the head has"):
        portable.rope(q, q, doubled, doubled)
    with pytest.raises(errors.ShapeError, match=r"argument 'k'"):
        portable.rope(q, q[:, :2], cos, sin)
    with pytest.raises(errors.DtypeError, match=r"argument 'positions'"):
        portable.rope(q, q, cos, sin, torch.ones(2, 3))
    with pytest.raises(errors.RankError, match=r"argument 'q'"):
        portable.rope(q[0], None, cos, sin)
    with pytest.raises(errors.NotATensorError, match=r"argument 'sin'"):
        portable.rope(q, None, cos, 0.5)
