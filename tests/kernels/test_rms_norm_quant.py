"""portable.rms_norm_quant beside the two ops that it joins, its bound, kernels, wrong calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import portable
from portable import errors, fused_add_rms_norm_quant, rms_norm_quant
from portable.conformance.cases import generate
from portable.conformance.cases.case import make_shape, params_of
from portable.conformance.execute import runner
from portable.conformance.judge import reference as judge
from portable.conformance.perf import baselines, bench
from portable.kernels.quantize_fp8.codes import DTYPES, codes_of
from portable.kernels.rms_norm_quant import reference
from portable.spec import registry

NARROW = (torch.bfloat16, torch.float16)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> bool:
    return torch.equal(codes_of(one[0]), codes_of(other[0])) and torch.equal(one[1], other[1])


def in_turn(x, weight=None, *, dtype=torch.float8_e4m3fn, scale_eps=1e-10, power_of_2=False, **settings):
    """The two ops one after the other."""
    y = portable.rms_norm(x, weight, **settings)
    return portable.quantize_fp8(y, dtype=dtype, power_of_2=power_of_2, eps=scale_eps)


SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"weight_offset": 1.0, "eps": 1e-3},
    {"power_of_2": True, "dtype": torch.float8_e5m2},
    {"scale_eps": 3.0, "dtype": torch.float8_e4m3fnuz},
)


@pytest.mark.parametrize("dtype", [*NARROW, torch.float32])
def test_it_is_the_two_ops_in_turn(dtype):
    x, weight = drawn(3, 5, 257, dtype=dtype), drawn(257, seed=1, dtype=dtype)
    for settings in SETTINGS:
        for each in (weight, None, weight.float()):
            assert same(rms_norm_quant(x, each, **settings), in_turn(x, each, **settings))


@pytest.mark.parametrize("dtype", [*NARROW, torch.float32])
def test_of_a_sum_it_is_the_rounded_sum_s(dtype):
    x, residual, weight = (drawn(*shape, seed=4, dtype=dtype) for shape in ((3, 5, 257), (3, 5, 257), (257,)))
    before = x.clone(), residual.clone()
    for settings in SETTINGS:
        q, scale, total = fused_add_rms_norm_quant(x, residual, weight, **settings)
        assert torch.equal(total, x + residual)
        assert same((q, scale), rms_norm_quant(total, weight, **settings))
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])


@pytest.mark.parametrize("shape", [(300, 20), (2, 3, 130), (1, 1), (4, 0), (0, 7), (2, 0, 5), (9,)])
def test_shapes_and_dtypes(shape):
    for dtype in DTYPES:
        q, scale = rms_norm_quant(drawn(*shape), dtype=dtype)
        assert (q.shape, q.dtype, q.is_contiguous()) == (shape, dtype, True)
        assert (scale.shape, scale.dtype) == ((*shape[:-1], 1), torch.float32)


def test_the_scale_is_that_of_the_rounded_norm():
    """1 + 2^-12 is 1 in 16 bits, and 1.000244140625 in float32."""
    for dtype in (*NARROW, torch.float32):
        x, weight = torch.ones(1, 64, dtype=dtype), torch.ones(64, dtype=dtype)
        _, scale = rms_norm_quant(x, weight, eps=0.0, weight_offset=2.0**-12)
        y = torch.tensor(1 + 2.0**-12).to(dtype).double()
        assert scale.item() == (y / 448).float().item()


def test_what_is_not_a_number():
    x = torch.ones(4, 8)
    x[1, 2], x[2, 0] = torch.nan, -torch.inf
    x[3] = 0.0
    q, scale = rms_norm_quant(x, eps=0.0)
    assert q.float()[1:].isnan().all() and scale[1:].isnan().all()  # of zeros with eps=0 the norm is 0 / 0
    assert (q.float()[0] == 448).all() and scale[0] == torch.tensor(1.0) / 448
    q, scale = rms_norm_quant(x)
    assert not q.float()[3].any() and scale[3] == torch.tensor(1e-10) / 448


def test_the_bound_is_nothing_where_no_rounding_is_near():
    """Norms of 1, -1 and of numbers of bfloat16 are at no midpoint of it: scale and q have one value."""
    x = 1.0 - 2.0 * (torch.arange(64).double() % 2)[None]
    types = {"T": "bfloat16", "W": "bfloat16", "Q": "float8_e4m3fn", "acc": "float32"}
    weight = drawn(64, seed=2).double()
    found = reference.error_scale(x, weight, eps=0.0, types=types)
    assert not found["scale"].any() and not found["q"].any()
    weight[5] = 7 + 2.0**-6  # a midpoint of bfloat16, and the greatest
    found = reference.error_scale(x, weight, eps=0.0, types=types)
    assert found["scale"].item() > 0


def test_the_bound_takes_norms_within_the_tolerance():
    """y moved by half of rms_norm's tolerance to either side stays inside; by 2^-9 it does not."""
    x, weight = drawn(40, 300, seed=3).double(), drawn(300, seed=4).double()
    types = {"T": "bfloat16", "W": "bfloat16", "Q": "float8_e4m3fn", "acc": "float32"}
    unit = reference.ACCUMULATION * 2.0**-23
    right = reference.row(x, weight, types=types)
    bound = reference.error_scale(x, weight, types=types)
    for moved, inside in ((1e-6, True), (-1e-6, True), (2.0**-9, False)):
        other = reference.row(x, weight * (1 + moved), types=types)
        off = [(a - b).abs() for a, b in zip(other, right, strict=True)]
        found = [bool((each <= bound[name] * unit).all()) for each, name in zip(off, bound, strict=True)]
        assert found == [inside, inside]


def test_codes_that_are_all_integers_are_no_proof_of_exact_ones():
    """Of small integers q is often integers alone, and the norm of some is beside a midpoint of q's type."""
    spec = registry.spec("rms_norm_quant")
    chosen = [case for case in generate.cases(spec, "core") if case.values in ("small_integers", "ties")]
    assert len(chosen) > 50
    for case in chosen[:10]:
        made = judge.materialize(case, spec)
        assert not made.expected["q"].exact and not made.expected["scale"].exact


@pytest.mark.parametrize("implementation", ["cpp", "triton"])
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_kernels_give_the_bits_of_their_two_ops(emulate, arch, implementation):
    """In classes of rows that rms_norm has too, where the sums are added in one order."""
    made = {
        length: (drawn(5, length, seed=length), drawn(length, seed=1)) for length in (72, 1000, 2112, 4096)
    }
    emulate(arch)
    ops = ("rms_norm", "quantize_fp8", "rms_norm_quant", "fused_add_rms_norm", "fused_add_rms_norm_quant")
    pins: dict[str, str] = dict.fromkeys(ops, implementation)
    with portable.using(**pins):
        for x, weight in made.values():
            for settings in ({}, {"weight_offset": 1.0, "power_of_2": True}):
                together = rms_norm_quant(x, weight, **settings)
                assert same(together, in_turn(x, weight, **settings))
                q, scale, total = fused_add_rms_norm_quant(x, x.flip(-1), weight, **settings)
                assert torch.equal(total, x + x.flip(-1))
                assert same((q, scale), rms_norm_quant(total, weight, **settings))
        q, scale = rms_norm_quant(x[3:4], weight, **settings)
    assert same((q[0], scale[0]), (together[0][3], together[1][3]))


X, W = torch.ones(2, 130), torch.ones(130)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: rms_norm_quant(X, W, scaling="tensor"), errors.ParameterError, "'row'.*then quantize_fp8"),
        (lambda: rms_norm_quant(X, W, scaling=128), errors.ParameterError, "scaling"),
        (lambda: rms_norm_quant(X, W, dtype=torch.int8), errors.ParameterError, "float8_e4m3fn"),
        (lambda: rms_norm_quant(X, W, power_of_2=1), errors.ParameterError, "True or False"),
        (lambda: rms_norm_quant(X, W, scale_eps=0.0), errors.ParameterError, "at least 1e-30"),
        (lambda: rms_norm_quant(X, W, eps="small"), errors.ParameterError, "eps"),
        (lambda: rms_norm_quant(X.double()), errors.DtypeError, "float16"),
        (lambda: rms_norm_quant(X, W.bfloat16()), errors.DtypeError, "weight"),
        (lambda: rms_norm_quant(X, W[:5]), errors.ShapeError, "weight"),
        (lambda: rms_norm_quant(X[0, 0]), errors.RankError, "at least 1"),
        (lambda: rms_norm_quant([1.0]), errors.NotATensorError, "x"),
        (lambda: rms_norm_quant(X, W, torch.float8_e5m2), errors.SignatureError, "positional"),
        (lambda: fused_add_rms_norm_quant(X, X[:1], W), errors.ShapeError, "residual"),
        (lambda: fused_add_rms_norm_quant(X, X.bfloat16(), W), errors.DtypeError, "residual"),
        (lambda: fused_add_rms_norm_quant(X, X, scaling="tensor"), errors.ParameterError, "'row'"),
        (lambda: fused_add_rms_norm_quant(X, None), errors.NotATensorError, "residual"),
        (lambda: rms_norm_quant(X, residual=X), errors.SignatureError, "fused_add_rms_norm_quant"),
        (lambda: rms_norm_quant(X, scale=W), errors.SignatureError, "quantize_fp8 takes"),
    ],
)
def test_wrong_calls(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong()


def test_a_gradient_is_refused():
    for x, weight, name in ((X, W.clone().requires_grad_(), "weight"), (X.clone().requires_grad_(), W, "x")):
        _, scale = rms_norm_quant(x, weight)
        with pytest.raises(errors.UnsupportedGradientError, match=f"'{name}'"):
            scale.sum().backward()


def test_a_gradient_of_the_sum_is_refused_too():
    for at in range(3):
        tensors = [X.clone(), X.clone(), W.clone()]
        tensors[at].requires_grad_()
        *_, total = fused_add_rms_norm_quant(*tensors)
        with pytest.raises(errors.UnsupportedGradientError):
            total.sum().backward()


def test_fake_tensors_other_strides_and_vmap():
    x, weight = drawn(3, 26, 140), drawn(140, seed=1)
    real = rms_norm_quant(x, weight)
    made = rms_norm_quant(torch.empty(3, 26, 140, device="meta"), torch.empty(140, device="meta"))
    assert all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(made, real, strict=True))
    each = torch.func.vmap(lambda x: rms_norm_quant(x, weight))(x)
    for other in (rms_norm_quant(x.mT.contiguous().mT, weight), each):
        assert same(other, real)


@pytest.mark.slow
def test_torch_compile_takes_it_whole():
    x, weight = drawn(20, 30), drawn(30, seed=1)
    compiled = torch.compile(fused_add_rms_norm_quant, backend="eager", fullgraph=True)
    assert same(compiled(x, x, weight), fused_add_rms_norm_quant(x, x, weight))
    compiled = torch.compile(rms_norm_quant, backend="eager", fullgraph=True)
    assert same(compiled(x, weight, power_of_2=True), rms_norm_quant(x, weight, power_of_2=True))


@pytest.mark.parametrize("op", ["rms_norm_quant", "fused_add_rms_norm_quant"])
def test_torch_s_way_is_near_enough_to_be_timed_beside_it(op):
    spec = registry.spec(op)
    case = bench.bench_cases(spec)[0]
    leading = {name: (3,) for name, field in spec.inputs.items() if field.leading}
    case = replace(case, shape=make_shape(spec, {"N": 200}, leading, dict(case.shape.params)))
    tensors, params = bench.made(case, spec, torch.device("cpu"), 0), params_of(spec, case)
    outputs = list(runner.function(op)(**tensors, **params))
    found, reasons = baselines.ready(spec, [tensors], params, outputs, ["torch"])
    assert list(found) == ["torch"] and not reasons
