"""What must come out exactly does so in any order of summation; TF32 cases lose nothing by their inputs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from portable.conformance.cases import inputs
from portable.conformance.cases.case import Case, make_shape, parse
from portable.conformance.cases.generate import PROBE_INDICES, boundary_shapes, cases
from portable.conformance.judge import order_independent, reference
from portable.kernels.linear import reference as linear
from portable.spec import registry


def exact_cases(op, limit=1 << 14):
    """The small ones of the core cases in which every output is exact."""
    for case in cases(registry.spec(op)):
        if case.values in reference.PRODUCTS | reference.INTEGERS and not case.mode:
            materialized = reference.materialize(case, registry.spec(op))
            if materialized.expected and all(each.exact for each in materialized.expected.values()):
                (expected,) = materialized.expected.values()
                if 16 <= expected.ref.numel() <= limit:
                    yield materialized, expected


def summed(terms: torch.Tensor, order: torch.Tensor, step: int) -> torch.Tensor:
    """The sum over the last dimension in the terms' type: chunks of `step` in the given order, each term
    after the other, then the chunks' sums."""
    terms = terms[..., order]
    partial = []
    for chunk in terms.split(step, -1):
        total = torch.zeros_like(chunk[..., 0])
        for k in range(chunk.shape[-1]):
            total = total + chunk[..., k]
        partial.append(total)
    total = torch.zeros_like(terms[..., 0])
    for each in partial:
        total = total + each
    return total


@pytest.mark.parametrize("op", ["matmul", "linear"])
def test_exact_products_do_not_depend_on_the_order(op):
    """Right computations in shuffled orders, accumulated in the accumulator's type, agree bit for bit."""
    asked = set()
    for materialized, expected in exact_cases(op):
        case = materialized.case
        tensors = [each.tensor for each in materialized.inputs.values()]
        acc = inputs.DTYPES[dict(case.types)["acc"]]
        first, second = tensors[0].to(acc), tensors[1].to(acc)
        terms = first.unsqueeze(-2) * (second.mT.unsqueeze(-3) if op == "matmul" else second)
        if len(tensors) > 2:
            bias = tensors[2].to(acc).expand(terms.shape[:-1])
            terms = torch.cat([terms, bias.unsqueeze(-1)], -1)
        if not 0 < terms.numel() <= 1 << 19 or case.params.get("activation"):
            continue
        generator = torch.Generator().manual_seed(len(asked))
        for step in (7, 32):
            order = torch.randperm(terms.shape[-1], generator=generator)
            got = summed(terms, order, step).to(expected.dtype)
            assert torch.equal(got, expected.ref.to(expected.dtype)), f"{case.id}, chunks of {step}"
        asked.add((case.values, case.types))
    assert {values for values, _ in asked} == reference.PRODUCTS | reference.INTEGERS
    assert len(asked) >= 10


def test_sums_over_rows_are_exact_too():
    """dbias of layer_norm_backward is a plain sum: the rule finds it beside outputs that are none."""
    spec = registry.spec("layer_norm_backward")
    found = set()
    for case in cases(spec):
        if case.values in reference.PRODUCTS and "bias" not in case.shape.absent:
            expected = reference.materialize(case, spec).expected
            assert not expected["dx"].exact and not expected["dweight"].exact
            found.add((case.values, expected["dbias"].exact))
    assert found >= {("one_hot", True), ("powers_of_two", True)}


@pytest.mark.parametrize("op", ["softmax", "rms_norm", "layer_norm", "swiglu"])
def test_what_divides_or_exponentiates_is_not_exact(op):
    spec = registry.spec(op)
    for case in cases(spec):
        if case.values in reference.PRODUCTS:
            assert not any(each.exact for each in reference.materialize(case, spec).expected.values()), (
                case.id
            )


@pytest.mark.parametrize(
    "text",
    [
        "linear/bfloat16/N=1,K=128,lead=20,activation=gelu/small_integers/transposed",
        "linear_with_preactivation/float32/N=31,K=15,activation=gelu/ties/transposed",
        "attention/bfloat16,L=float32/H=4,G=2,M=33,N=0,D=64,E=64,causal=True/one_hot/contiguous",
        "attention/float32/H=1,G=1,M=48,N=80,D=128,E=128,scale=100.0,no=bias+sinks/small_integers/expanded",
    ],
)
def test_what_looks_like_a_sum_by_chance_is_not_exact(text):
    """2026-11-23, found by fuzzing: gelu was 0 below -8.3 in the reference, and an lse without keys is a
    sink, which base 2 may round. 2026-11-26, on an H100: so is the lse of scores that lie 100 apart."""
    spec = registry.spec(text.split("/")[0])
    expected = reference.materialize(parse(text, spec), spec).expected
    assert not expected["lse" if spec.op == "attention" else "y"].exact


def test_gelu_of_the_reference_does_not_cancel():
    values = [-36.0, -20.0, -11.0, -8.5, -3.0, -0.1, 0.0, 0.1, 3.0, 11.0]
    erf = [z * 0.5 * math.erfc(-z / math.sqrt(2)) for z in values]
    tanh = [z / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))) for z in values[2:]]
    for name, wanted in (("gelu", erf), ("gelu_tanh", tanh)):
        z, wanted = (torch.tensor(each, dtype=torch.float64) for each in (values[-len(wanted) :], wanted))
        torch.testing.assert_close(linear.activate(z, name), wanted, rtol=1e-12, atol=0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-6, 6), min_size=2, max_size=24),
    st.integers(-8, 8),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_what_the_rule_calls_exact_is(exponents, shift, seed, wide):
    """Rows of whole numbers of any granule: where the rule says so, float16 sums agree in every order."""
    generator = torch.Generator().manual_seed(seed)
    most = 2**9 if wide else 2**2
    digits = torch.randint(-most, most, (16, len(exponents)), generator=generator)
    a = torch.ldexp(digits.double(), torch.tensor(exponents) + shift)
    b = torch.ones(len(exponents), 1, dtype=torch.float64)

    def product(tensors):
        return {"c": tensors["a"] @ tensors["b"]}

    tensors = {"a": a, "b": b}
    verdict = order_independent.order_independent(product, tensors, product(tensors), torch.float16)["c"]
    orders = [torch.randperm(len(exponents), generator=generator) for _ in range(6)]
    sums = [summed(a.half(), order, 1 + seed % 5).double()[:, None] for order in orders]
    if verdict:
        assert all(torch.equal(each, product(tensors)["c"]) for each in sums)


def test_the_rule_refuses_what_rounds():
    def proved(function, **tensors):
        return order_independent.order_independent(function, tensors, function(tensors), torch.float32)["c"]

    def product(tensors):
        return {"c": tensors["a"] @ tensors["b"]}

    def twenty(step):
        return torch.ldexp(torch.ones(16, 20, dtype=torch.float64), step * (torch.arange(20) - 10))

    ones, fits = torch.ones(20, 1, dtype=torch.float64), twenty(1)
    assert proved(product, a=fits, b=ones)
    assert not proved(product, a=twenty(2), b=ones), "the terms span more than a mantissa"
    assert not proved(product, a=fits[:15], b=ones), "too few elements to tell"

    def mean(tensors):
        return {"c": tensors["a"].sum(-1, keepdim=True) / 7}

    assert not proved(mean, a=fits)

    def square(tensors):
        return {"c": tensors["a"].square().sum(-1, keepdim=True)}

    assert not proved(square, a=fits)


def test_granule():
    def of(*values):
        return order_independent.granule(torch.tensor(values, dtype=torch.float64))

    assert of(1.0, 2.0) == 0 and of(0.75) == -2 and of(0.0) == 0 and of(-12.0, 0.0) == 2
    assert of(1 + 2.0**-52) == -52 and of(2.0**-1074) == -1074


@pytest.mark.filterwarnings("error")
def test_infinities_are_multiples_of_every_granule():
    """They were cast to integers, with NumPy's warning. One that reaches a sum leaves it out of the rule."""
    rows = torch.arange(1.0, 65.0, dtype=torch.float64).reshape(16, 4)
    spoilt = torch.cat([rows, torch.full((16, 1), math.inf, dtype=torch.float64)], 1)

    def proved(columns):
        def total(tensors):
            return {"c": tensors["a"][:, :columns].sum(-1)}

        given = {"a": spoilt}
        return order_independent.order_independent(total, given, total(given), torch.float32)["c"]

    inf = torch.tensor([math.inf, -math.inf, 0.75], dtype=torch.float64)
    assert order_independent.granule(inf) == -2 and order_independent.granule(inf[:2]) == 0
    assert proved(4) and not proved(5)


# TF32 ---------------------------------------------------------------------------------------------------


def tf32_case(values: str, types: str = "float32", mode: str = "") -> Case:
    text = f"matmul/{types}/M=65,N=72,K=127,precision=tf32/{values}/contiguous" + (f"/{mode}" if mode else "")
    return parse(text, registry.spec("matmul"))


def low_bits(tensor: torch.Tensor) -> bool:
    """Whether a float32 tensor has bits below a mantissa of ten."""
    finite = tensor[tensor.isfinite()].contiguous()
    return bool((finite.view(torch.int32) & 0x1FFF).any())


@pytest.mark.parametrize("values", sorted(inputs.VALUES))
def test_inputs_of_a_tf32_case_are_tf32_numbers(values):
    spec = registry.spec("matmul")
    materialized = reference.materialize(tf32_case(values), spec)
    rounded = not any(low_bits(each.tensor) for each in materialized.inputs.values())
    assert rounded == (values != "normal") or values in ("small_integers", "ties", "powers_of_two")
    plain = reference.materialize(parse(tf32_case(values).id.replace(",precision=tf32", ""), spec), spec)
    got, other = materialized.expected["c"].error_scale, plain.expected["c"].error_scale
    assert got is not None and other is not None
    if values == "normal":
        assert (got > 4 * other).all(), "full mantissas are judged by the wider bound"
    if values in ("small_integers", "one_hot", "powers_of_two"):
        assert materialized.expected["c"].exact


def test_the_gradient_of_a_tf32_case_is_of_tf32_numbers_too():
    materialized = reference.materialize(tf32_case("normal", mode="grad"), registry.spec("matmul"))
    assert not any(low_bits(each.tensor) for each in materialized.inputs.values())


def test_the_magnitude_of_a_rounded_tf32_case_is_the_ordinary_one():
    spec = registry.spec("matmul")
    materialized = reference.materialize(tf32_case("large_range"), spec)
    a, b = (each.tensor.double() for each in materialized.inputs.values())
    magnitude = materialized.expected["c"].error_scale
    assert magnitude is not None and torch.equal(magnitude, (a.square() @ b.square()).sqrt())


@pytest.mark.parametrize("types", ["bfloat16", "float16"])
def test_16_bit_types_keep_their_values_under_tf32(types):
    spec = registry.spec("matmul")
    case = tf32_case("large_range", types)
    made = inputs.make(case.id, "a", (65, 127), types, "large_range", "contiguous")
    assert reference.materialize(case, spec).inputs["a"].sha256 == made.sha256


def test_probe_shapes_leave_out_what_is_optional():
    """Without a bias linear is a sum of products: half of its probes must be so."""
    spec = registry.spec("linear")
    shape = boundary_shapes(spec)[PROBE_INDICES[0]]
    bare = make_shape(spec, dict(shape.axes), dict(shape.leading), {}, ["bias"])
    assert any(case.shape == bare and case.values == "one_hot" for case in cases(spec))


@pytest.mark.parametrize(
    "text, strict",
    [
        ("matmul/bfloat16/M=33,N=17,K=40,lead=3/normal/contiguous/grad", {"da", "db"}),
        ("matmul/float32/M=33,N=17,K=40,lead.a=5/normal/contiguous/grad", {"da"}),  # db sums over the batch
        ("matmul/float16/M=65,N=72,K=127,precision=tf32/normal/contiguous/grad", set()),
        ("linear/bfloat16/N=129,K=65,lead=127/normal/contiguous/grad", {"dx", "dweight", "dbias"}),
        ("linear/float16/N=129,K=65,lead=127,activation=relu,no=bias/normal/contiguous/grad", set()),
        ("rms_norm/float32/N=33,lead=3x5,eps=0.1/normal/contiguous/grad", set()),
    ],
)
def test_gradients_of_products_have_the_bound_of_products(text, strict):
    """An error scale of its own for each element; others have the largest gradient as the scale of all."""
    spec = registry.spec(text.partition("/")[0])
    expected = reference.materialize(parse(text, spec), spec).expected
    scales = {name: each.error_scale for name, each in expected.items()}
    assert {n for n, scale in scales.items() if scale is not None and len(scale.unique()) > 1} == strict
