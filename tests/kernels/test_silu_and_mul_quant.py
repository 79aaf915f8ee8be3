"""portable.silu_and_mul_quant beside the two ops that it joins, its bound, kernels, wrong calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import portable
from portable import errors, silu_and_mul_quant
from portable.conformance.cases.case import make_shape, params_of
from portable.conformance.execute import runner
from portable.conformance.perf import baselines, bench
from portable.kernels.quantize_fp8.codes import DTYPES, codes_of
from portable.kernels.rms_norm_quant.reference import ACCUMULATION
from portable.kernels.silu_and_mul_quant import reference
from portable.spec import registry

NARROW = (torch.bfloat16, torch.float16)
SCALINGS = ("row", "1x128")
TYPES = {"T": "bfloat16", "Q": "float8_e4m3fn", "acc": "float32"}


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> bool:
    return torch.equal(codes_of(one[0]), codes_of(other[0])) and torch.equal(one[1], other[1])


def in_turn(x, scaling="row", **settings):
    """The two ops one after the other."""
    return portable.quantize_fp8(portable.silu_and_mul(x), scaling, **settings)


SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"power_of_2": True, "dtype": torch.float8_e5m2},
    {"eps": 3.0, "dtype": torch.float8_e4m3fnuz},
)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", [*NARROW, torch.float32])
def test_it_is_the_two_ops_in_turn(dtype, scaling):
    x = drawn(3, 5, 514, dtype=dtype)
    for settings in SETTINGS:
        assert same(silu_and_mul_quant(x, scaling=scaling, **settings), in_turn(x, scaling, **settings))


@pytest.mark.parametrize("shape", [(300, 20), (2, 3, 130), (1, 1), (4, 0), (0, 7), (2, 0, 5), (9,), (2, 257)])
def test_shapes_and_dtypes(shape):
    packed = (*shape[:-1], 2 * shape[-1])
    for scaling, groups in (("row", 1), ("1x128", -(-shape[-1] // 128))):
        for dtype in DTYPES:
            q, scale = silu_and_mul_quant(drawn(*packed), dtype=dtype, scaling=scaling)
            assert (q.shape, q.dtype, q.is_contiguous()) == (shape, dtype, True)
            assert (scale.shape, scale.dtype) == ((*shape[:-1], groups), torch.float32)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_the_scale_is_that_of_the_rounded_product(scaling):
    """33 * (1 + eps) is 33 + 32 eps in 16 bits."""
    for dtype in NARROW:
        eps = torch.finfo(dtype).eps
        x = torch.cat([torch.full((1, 64), 33.0), torch.full((1, 64), 1 + eps)], -1).to(dtype)
        _, scale = silu_and_mul_quant(x, scaling=scaling)
        assert scale.item() == (torch.tensor(33 + 32 * eps).double() / 448).float().item()


def test_what_is_not_a_number_stays_in_its_group():
    x = torch.ones(1, 2, 300)
    x[0, 1, 5], x[0, 0, 130], x[0, 0, 299] = torch.nan, torch.inf, -torch.inf
    q, scale = silu_and_mul_quant(x.flatten(-2), scaling="1x128")
    nan = q.float().isnan()[0]
    assert nan[:128].all() and nan[128:256].nonzero().tolist() == [[2]] and nan[256:].all()
    assert scale[0].isnan().tolist() == [True, False, True] and scale[0, 1] == torch.inf
    assert not q.float()[0, 131:256].any()


@pytest.mark.parametrize(
    ("rule", "error_scale"),
    [(reference.row, reference.error_scale), (reference.groups, reference.error_scale_groups)],
)
def test_the_bound_takes_products_within_the_tolerance(rule, error_scale):
    """y moved by half of silu_and_mul's tolerance to either side stays inside; by 2^-9 it does not."""
    x = drawn(40, 2, 300, seed=3).double()
    unit = ACCUMULATION * 2.0**-23
    right = rule(x, False, 1e-10, TYPES)
    bound = error_scale(x, False, 1e-10, TYPES)
    for moved, inside in ((4e-7, True), (-4e-7, True), (2.0**-9, False)):
        other = rule(torch.stack([x[:, 0], x[:, 1] * (1 + moved)], 1), False, 1e-10, TYPES)
        off = [(a - b).abs() for a, b in zip(other, right, strict=True)]
        found = [bool((each <= bound[name] * unit).all()) for each, name in zip(off, bound, strict=True)]
        assert found == [inside, inside]


def test_the_bound_is_nothing_where_no_rounding_is_near():
    """Beside a gate of 32 y is 32 * up, a number of bfloat16: scale and q have one value."""
    up = drawn(3, 1, 200, seed=1).double()
    x = torch.cat([torch.full_like(up, 32.0), up], 1)
    for found in (
        reference.error_scale(x, False, 1e-10, TYPES),
        reference.error_scale_groups(x, False, 1e-10, TYPES),
    ):
        assert not found["scale"].any() and not found["q"].any()
    x[1, 1, 5] = 8 * (1 + 2.0**-8)  # a midpoint of bfloat16, and the greatest
    assert reference.error_scale(x, False, 1e-10, TYPES)["scale"][1].item() > 0


@pytest.mark.parametrize("implementation", ["cpp", "triton"])
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_kernels_give_the_bits_of_their_two_ops(emulate, arch, implementation):
    """Rows held and streamed, aligned and not; silu in one C++ and one Triton function for both."""
    made = {length: drawn(3, 2 * length, seed=length) for length in (72, 129, 2112, 33000)}
    emulate(arch)
    ops = ("gated_activation", "quantize_fp8", "quantize_fp8_1x128")
    pins: dict[str, str] = dict.fromkeys(
        (*ops, "silu_and_mul_quant", "silu_and_mul_quant_1x128"), implementation
    )
    with portable.using(**pins):
        for x in made.values():
            for scaling in SCALINGS:
                for settings in ({}, {"power_of_2": True, "dtype": torch.float8_e5m2}):
                    together = silu_and_mul_quant(x, scaling=scaling, **settings)
                    assert same(together, in_turn(x, scaling, **settings))


X = torch.ones(2, 130)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (
            lambda: silu_and_mul_quant(X, scaling="tensor"),
            errors.ParameterError,
            "1x128.*then quantize_fp8",
        ),
        (lambda: silu_and_mul_quant(X, scaling=128), errors.ParameterError, "scaling"),
        (lambda: silu_and_mul_quant(X, dtype=torch.int8), errors.ParameterError, "float8_e4m3fn"),
        (lambda: silu_and_mul_quant(X, power_of_2=1), errors.ParameterError, "True or False"),
        (lambda: silu_and_mul_quant(X, eps=0.0), errors.ParameterError, "at least 1e-30"),
        (lambda: silu_and_mul_quant(X.double()), errors.DtypeError, "float16"),
        (lambda: silu_and_mul_quant(X[:, :5]), errors.ShapeError, "even"),
        (lambda: silu_and_mul_quant(X[0, 0]), errors.RankError, "at least 1"),
        (lambda: silu_and_mul_quant([1.0]), errors.NotATensorError, "x"),
        (lambda: silu_and_mul_quant(X, torch.float8_e5m2), errors.SignatureError, "positional"),
        (lambda: silu_and_mul_quant(X, scale=X), errors.SignatureError, "quantize_fp8 takes"),
        (lambda: silu_and_mul_quant(X, group_size=128), errors.SignatureError, "1x128"),
    ],
)
def test_wrong_calls(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong()


@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_gradient_is_refused(scaling):
    _, scale = silu_and_mul_quant(X.clone().requires_grad_(), scaling=scaling)
    with pytest.raises(errors.UnsupportedGradientError, match="'x'"):
        scale.sum().backward()


@pytest.mark.parametrize("scaling", SCALINGS)
def test_fake_tensors_other_strides_and_vmap(scaling):
    x = drawn(3, 26, 280)
    real = silu_and_mul_quant(x, scaling=scaling)
    made = silu_and_mul_quant(torch.empty(3, 26, 280, device="meta"), scaling=scaling)
    assert all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(made, real, strict=True))
    each = torch.func.vmap(lambda x: silu_and_mul_quant(x, scaling=scaling))(x)
    for other in (silu_and_mul_quant(x.mT.contiguous().mT, scaling=scaling), each):
        assert same(other, real)


@pytest.mark.slow
def test_torch_compile_takes_it_whole():
    x = drawn(20, 60)
    compiled = torch.compile(silu_and_mul_quant, backend="eager", fullgraph=True)
    for scaling in SCALINGS:
        assert same(compiled(x, scaling=scaling), silu_and_mul_quant(x, scaling=scaling))


@pytest.mark.parametrize("op", ["silu_and_mul_quant", "silu_and_mul_quant_1x128"])
def test_torch_s_way_is_near_enough_to_be_timed_beside_it(op):
    spec = registry.spec(op)
    case = bench.bench_cases(spec)[0]
    case = replace(case, shape=make_shape(spec, {"N": 200}, {"x": (3,)}, dict(case.shape.params)))
    tensors, params = bench.made(case, spec, torch.device("cpu"), 0), params_of(spec, case)
    outputs = list(runner.function(op)(**tensors, **params))
    found, reasons = baselines.ready(spec, [tensors], params, outputs, ["torch"])
    assert list(found) == ["torch"] and not reasons
