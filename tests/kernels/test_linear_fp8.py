"""portable.linear_fp8: each product against float64 products of the same quantised operands."""

from __future__ import annotations

import pytest
import torch

import portable
from portable import errors
from portable.kernels._lib import minifloat

N, K = 50, 70


def drawn(*shape, seed=0, dtype=torch.bfloat16):
    """Rows and columns of very different sizes, so that a scale along the wrong axis shows."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.exp2(torch.arange(shape[-1]) % 9 - 5.0)
    return (torch.randn(shape, generator=generator) * sizes).to(dtype)


def codes(x, kind, scaling):
    """x quantised along its last dimension, or by one scale, and multiplied back, in float64."""
    q, scale = portable.quantize_fp8(x, scaling, dtype=getattr(torch, kind), power_of_2=True)
    return minifloat.decode(q.view(torch.uint8), kind) * scale.double()


def product(a, b, kind="float8_e4m3fn", scaling="row"):
    """a @ b.T of what is left of both in 8 bits; the size of its terms, for the bound."""
    left, right = codes(a, kind, "row"), codes(b, kind, scaling)
    return left @ right.T, (left.square() @ right.T.square()).sqrt()


def close(got, ref, scale):
    """One rounding to the result's dtype, where that has subnormal numbers too, and 20 of float32."""
    kind = torch.finfo(got.dtype)
    limit = 0.51 * kind.eps * ref.abs().clamp(min=kind.smallest_normal) + 20 * 2**-24 * scale
    assert bool(((got.double() - ref).abs() <= limit).all())


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e4m3fnuz"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_product_is_of_operands_quantised_along_it(dtype, kind):
    shapes = ((37, K), (N, K), (37, N))
    x, weight, dy = (drawn(*shape, seed=index, dtype=dtype) for index, shape in enumerate(shapes))
    leaves = x.requires_grad_(), weight.requires_grad_()
    y = portable.linear_fp8(*leaves, dtype=getattr(torch, kind))
    dx, dweight = torch.autograd.grad(y, leaves, dy)
    x, weight = x.detach(), weight.detach()
    assert {each.dtype for each in (y, dx, dweight)} == {dtype}
    close(y, *product(x, weight, kind))
    close(dx, *product(dy, weight.T.contiguous(), kind))
    close(dweight, *product(dy.T.contiguous(), x.T.contiguous(), kind))


def test_the_gradient_of_the_weight_in_high_precision():
    x, weight, dy = drawn(2, 9, K), drawn(N, K, seed=1), drawn(2, 9, N, seed=2)
    leaves = x.requires_grad_(), weight.requires_grad_()
    y = portable.linear_fp8(*leaves, recipe="rowwise_with_gw_hp")
    dx, dweight = torch.autograd.grad(y, leaves, dy)
    rows, columns = dy.reshape(18, N), x.detach().reshape(18, K)
    assert torch.equal(dweight, portable.matmul(rows.mT, columns))
    close(dx.reshape(18, K), *product(rows, weight.detach().T.contiguous(), scaling="tensor"))


def test_bias_is_added_before_the_rounding_and_its_gradient_is_the_sum_of_dy():
    x, weight, bias = drawn(3, 5, K), drawn(N, K, seed=1), drawn(N, seed=3).requires_grad_()
    y = portable.linear_fp8(x, weight, bias)
    assert y.shape == (3, 5, N)
    ref, scale = product(x.reshape(15, K), weight)
    close(y.detach().reshape(15, N), ref + bias.detach().double(), scale)
    dy = drawn(3, 5, N, seed=2)
    (dbias,) = torch.autograd.grad(y, bias, dy)
    torch.testing.assert_close(dbias, dy.double().sum((0, 1)).bfloat16(), rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize("shape", [(K,), (0, K), (1, K), (2, 0, K)])
def test_any_leading_dimensions(shape):
    x, weight = drawn(*shape).requires_grad_(), drawn(N, K, seed=1).requires_grad_()
    y = portable.linear_fp8(x, weight)
    assert y.shape == (*shape[:-1], N)
    dx, dweight = torch.autograd.grad(y.sum(), (x, weight))
    assert dx.shape == x.shape and dweight.shape == weight.shape and bool(dweight.isfinite().all())


def test_a_nan_poisons_its_row_alone():
    x, weight = drawn(4, K), drawn(N, K, seed=1)
    clean = portable.linear_fp8(x, weight)
    x[2, 5] = float("nan")
    y = portable.linear_fp8(x, weight)
    assert bool(y[2].isnan().all()) and torch.equal(y[[0, 1, 3]], clean[[0, 1, 3]])


def test_under_autocast_and_compiled():
    x, weight = drawn(6, K, dtype=torch.float32), drawn(N, K, seed=1, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        low = portable.linear_fp8(x, weight)
    assert torch.equal(low, portable.linear_fp8(x.bfloat16(), weight.bfloat16()))

    def step(x, weight):
        return portable.linear_fp8(x, weight)

    leaves = x.requires_grad_(), weight.requires_grad_()
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)(*leaves)
    plain = step(*leaves)
    assert torch.equal(compiled, plain)
    found, expected = (torch.autograd.grad(y.square().sum(), leaves) for y in (compiled, plain))
    assert all(torch.equal(got, ref) for got, ref in zip(found, expected, strict=True))


@pytest.mark.parametrize("recipe", ["rowwise", "rowwise_with_gw_hp"])
def test_training_goes_where_bfloat16_goes(recipe):
    """Least squares of 64 x 32 weights: after 60 steps the loss is within 10 % of bfloat16's."""
    generator = torch.Generator().manual_seed(0)
    x, wanted = torch.randn(256, 32, generator=generator), torch.randn(64, 32, generator=generator)
    target = x @ wanted.T / 6

    def trained(linear):
        weight = torch.zeros(64, 32, requires_grad=True)
        for _ in range(60):
            loss = (linear(x.bfloat16(), weight.bfloat16()).float() - target).square().mean()
            (gradient,) = torch.autograd.grad(loss, weight)
            weight = (weight - 20.0 * gradient).detach().requires_grad_()
        return (x @ weight.T - target).square().mean().item()

    start = target.square().mean().item()
    low = trained(lambda x, weight: portable.linear_fp8(x, weight, recipe=recipe))
    assert low < start / 50 and low < 1.1 * trained(portable.linear) + start / 500


W = torch.zeros(N, K)


@pytest.mark.parametrize(
    "error, says, call",
    [
        (errors.ParameterError, "mean 'rowwise'", lambda x: portable.linear_fp8(x, W, recipe="rowise")),
        (errors.ParameterError, "'dtype' is", lambda x: portable.linear_fp8(x, W, dtype=torch.float8_e5m2)),
        (errors.DtypeError, "'weight'.*float32, as x has", lambda x: portable.linear_fp8(x, W.half())),
        (errors.DtypeError, "'x'.*float64", lambda x: portable.linear_fp8(x.double(), W.double())),
        (errors.ShapeError, r"'weight'.*\(N, 70\), as x has", lambda x: portable.linear_fp8(x, W.T)),
        (errors.ShapeError, r"'bias'.*\(50,\)", lambda x: portable.linear_fp8(x, W, W[0])),
        (errors.RankError, "'weight'", lambda x: portable.linear_fp8(x, W[0])),
        (errors.NotATensorError, "'weight'", lambda x: portable.linear_fp8(x, [1.0])),
        (errors.SignatureError, "has no argument 'scale'", lambda x: portable.linear_fp8(x, W, scale=1.0)),
    ],
)  # fmt: skip
def test_what_it_refuses_and_says(error, says, call):
    with pytest.raises(error, match=says):
        call(torch.zeros(2, K))
