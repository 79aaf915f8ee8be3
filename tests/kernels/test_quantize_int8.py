"""portable.quantize_int8: shapes, its meaning by fractions, torch's own numbers, kernels, wrong calls."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest
import torch

import portable
from portable import errors, quantize_int8
from portable.conformance.cases.case import make_shape, params_of
from portable.conformance.execute import runner
from portable.conformance.perf import baselines, bench
from portable.spec import registry

OPS = ("quantize_int8", "quantize_int8_asymmetric", "quantize_int8_static")
ZERO = torch.zeros(1, dtype=torch.int32)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def float32(value: Fraction) -> Fraction:
    """The nearest number of float32, of two the one of an even mantissa, of a normal value."""
    size, exponent = abs(value), 0
    while size >= 1 << 24:
        size, exponent = size / 2, exponent + 1
    while size and size < 1 << 23:
        size, exponent = size * 2, exponent - 1
    found = Fraction(round(size)) * Fraction(2) ** exponent  # round() is to the even one of two
    return found if value > 0 else -found


@pytest.mark.parametrize("symmetric", [True, False])
def test_its_meaning_by_fractions(symmetric):
    x = drawn(5, 70, seed=1)
    x[0, 5], x[1] = 100.0, x[1].abs()
    x[2] = -x[2].abs() - 1
    q, scale, *zero = quantize_int8(x, symmetric=symmetric)
    for i, row in enumerate(x.tolist()):
        values = [Fraction(each) for each in row]
        if symmetric:
            size, point, least = Fraction(max(map(abs, values))) / 127, 0, -127
        else:
            lowest, most = (Fraction(end(*values, 0)) for end in (min, max))
            size, least = float32(most - lowest) / 255, -128
        wanted = float32(size)
        inverse = float32(1 / wanted)
        if not symmetric:
            point = -128 - round(float32(lowest * inverse))
            assert int(zero[0][i]) == point
        assert Fraction(float(scale[i])) == wanted
        codes = [max(least, min(127, round(float32(each * inverse)) + point)) for each in values]
        assert q[i].tolist() == codes


@pytest.mark.parametrize("shape", [(300, 20), (2, 3, 130), (1, 1), (4, 0), (0, 7), (2, 0, 5), (9,)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_shapes_and_dtypes(shape, symmetric):
    q, scale, *zero = quantize_int8(drawn(*shape, dtype=torch.bfloat16), symmetric=symmetric)
    assert (q.shape, q.dtype, q.is_contiguous()) == (shape, torch.int8, True)
    assert (scale.shape, scale.dtype) == ((*shape[:-1], 1), torch.float32)
    assert [(each.shape, each.dtype) for each in zero] == [((*shape[:-1], 1), torch.int32)] * (not symmetric)


def test_a_whole_tensor_has_one_scale():
    x = drawn(7, 33, seed=2)
    q, scale = quantize_int8(x, "tensor")
    row, own = quantize_int8(x.reshape(-1))
    assert scale.shape == () and scale == own[0] and torch.equal(q.reshape(-1), row)
    q, scale = quantize_int8(torch.tensor(-3.0), "tensor")
    assert (q.shape, q.item(), scale.item()) == ((), -127, (torch.tensor(3.0) / 127).item())


def test_given_scales_are_torch_s_own_quantisation():
    """torch adds the zero point in the same way; its range has -128."""
    x = drawn(40, 50, seed=3) * 20
    for point in (-128, -3, 0, 127):
        wanted = torch.fake_quantize_per_tensor_affine(x, 0.25, point, -128, 127)
        given = torch.tensor(0.25), torch.tensor(point, dtype=torch.int32)
        q, *rest = quantize_int8(x, "tensor", symmetric=False, scale=given[0], zero_point=given[1])
        assert torch.equal((q.int() - point) * 0.25, wanted)
        assert all(torch.equal(*pair) for pair in zip(rest, given, strict=True))
    q, _ = quantize_int8(x, "tensor", scale=torch.tensor([0.25]))
    assert torch.equal(q, (x / 0.25).round().clamp(-127, 127).to(torch.int8)) and q.min() == -127


def test_dequantised_it_is_within_half_a_step():
    x = drawn(64, 512, seed=4, dtype=torch.bfloat16) + torch.arange(64)[:, None].to(torch.bfloat16) / 16
    q, scale = quantize_int8(x)
    assert ((q * scale - x.float()).abs() <= scale * 0.50001).all()
    q, scale, zero = quantize_int8(x, symmetric=False)  # the zero point is rounded as well
    assert (((q - zero) * scale - x.float()).abs() <= scale * 1.00001).all()
    assert ((((q - zero) * scale - x.float()).abs() <= scale * 0.50001).float().mean(-1) > 0.98).all()


def test_what_is_not_a_number():
    x = torch.ones(3, 4)
    x[1, 2], x[2, 0] = torch.nan, -torch.inf
    q, scale = quantize_int8(x)
    assert q.tolist() == [[127] * 4, [0] * 4, [0] * 4] and scale[1].isnan() and scale[2].isinf()
    assert (q * scale)[1:].isnan().all()
    q, scale, zero = quantize_int8(x, symmetric=False)
    assert zero.tolist() == [[-128]] * 3 and ((q - zero) * scale)[1:].isnan().all()
    ends = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e9])
    assert quantize_int8(ends, "tensor", scale=torch.ones(1))[0].tolist() == [0, 127, -127, 127]
    q = quantize_int8(ends, "tensor", symmetric=False, scale=torch.ones(1), zero_point=ZERO)[0]
    assert q.tolist() == [0, 127, -128, 127]


@pytest.mark.parametrize("implementation", ["cpp", "triton"])
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_kernels_give_the_same_bits(emulate, arch, implementation):
    x = drawn(33, 2112, seed=5, dtype=torch.bfloat16)
    calls = {symmetric: quantize_int8(x, symmetric=symmetric) for symmetric in (True, False)}
    emulate(arch)
    pins: dict[str, str] = dict.fromkeys(OPS, implementation)
    with portable.using(**pins):
        for symmetric, wanted in calls.items():
            got = quantize_int8(x, symmetric=symmetric)
            assert all(torch.equal(*pair) for pair in zip(got, wanted, strict=True))
        alone, own = quantize_int8(x[7:8])
    assert torch.equal(alone[0], calls[True][0][7]) and torch.equal(own[0], calls[True][1][7])


X = torch.ones(2, 130)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: quantize_int8(X, "column"), errors.ParameterError, "'tensor', 'row'"),
        (lambda: quantize_int8(X, 128), errors.ParameterError, "scaling"),
        (lambda: quantize_int8(X.double()), errors.DtypeError, "float16"),
        (lambda: quantize_int8(X[0, 0]), errors.RankError, "at least 1"),
        (lambda: quantize_int8(X, eps=0.0), errors.ParameterError, "at least 1e-30"),
        (lambda: quantize_int8(X, "tensor", eps=0.0), errors.ParameterError, "at least 1e-30"),
        (lambda: quantize_int8(X, symmetric=1), errors.ParameterError, "True or False"),
        (lambda: quantize_int8(X, scale=torch.ones(1)), errors.ParameterError, '"tensor"'),
        (lambda: quantize_int8(X, zero_point=ZERO), errors.ParameterError, '"tensor"'),
        (lambda: quantize_int8(X, "tensor", symmetric=False), errors.ParameterError, "scale.*Give scale"),
        (lambda: quantize_int8(X, "tensor", zero_point=ZERO), errors.ParameterError, "Give scale"),
        (
            lambda: quantize_int8(X, "tensor", scale=torch.ones(1), zero_point=ZERO),
            errors.ParameterError,
            "'zero_point'.*symmetric is True",
        ),
        (
            lambda: quantize_int8(X, "tensor", scale=torch.ones(1), symmetric=False),
            errors.ParameterError,
            "'zero_point' is None",
        ),
        (lambda: quantize_int8(X, "tensor", scale=torch.ones(2)), errors.ShapeError, "one element"),
        (lambda: quantize_int8(X, "tensor", scale=1.0), errors.NotATensorError, "scale"),
        (lambda: quantize_int8(X, "tensor", scale=ZERO), errors.DtypeError, "float32"),
        (
            lambda: quantize_int8(
                X, "tensor", scale=torch.ones(1), symmetric=False, zero_point=torch.ones(1)
            ),
            errors.DtypeError,
            "zero_point.*int32",
        ),
        (lambda: quantize_int8([1.0]), errors.NotATensorError, "x"),
        (lambda: quantize_int8(X, azp=True), errors.SignatureError, "zero_point here"),
    ],
)
def test_wrong_calls(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong()


def test_a_gradient_is_refused():
    for symmetric in (True, False):
        _, scale, *_ = quantize_int8(X.clone().requires_grad_(), symmetric=symmetric)
        with pytest.raises(errors.UnsupportedGradientError, match="'x'"):
            scale.sum().backward()


@pytest.mark.parametrize("symmetric", [True, False])
def test_fake_tensors_other_strides_and_vmap(symmetric):
    x = drawn(3, 26, 140)
    real = quantize_int8(x, symmetric=symmetric)
    made = quantize_int8(torch.empty(3, 26, 140, device="meta"), symmetric=symmetric)
    assert all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(made, real, strict=True))
    strided = quantize_int8(x.mT.contiguous().mT, symmetric=symmetric)
    each = torch.func.vmap(lambda x: quantize_int8(x, symmetric=symmetric))(x)
    for other in (strided, each):
        assert all(torch.equal(*pair) for pair in zip(other, real, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("scaling", ["row", "tensor"])
def test_torch_compile_takes_it_whole(symmetric, scaling):
    given = {} if symmetric or scaling == "row" else {"scale": torch.ones(1), "zero_point": ZERO}
    call = partial(quantize_int8, scaling=scaling, symmetric=symmetric, **given)
    compiled, x = torch.compile(call, backend="eager", fullgraph=True), drawn(20, 30)
    assert all(torch.equal(*pair) for pair in zip(compiled(x), call(x), strict=True))


@pytest.mark.parametrize("op", OPS)
def test_torch_s_way_is_near_enough_to_be_timed_beside_it(op):
    spec = registry.spec(op)
    case = bench.bench_cases(spec)[0]
    case = replace(case, shape=make_shape(spec, {"K": 200}, {"x": (3,)}, dict(case.shape.params)))
    tensors, params = bench.made(case, spec, torch.device("cpu"), 0), params_of(spec, case)
    result = runner.function(op)(**tensors, **params)
    outputs = list(result) if isinstance(result, tuple) else [result]
    found, reasons = baselines.ready(spec, [tensors], params, outputs, ["torch"])
    assert list(found) == ["torch"] and not reasons
