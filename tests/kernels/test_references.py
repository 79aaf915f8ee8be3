"""The float64 references: against torch, against autograd, and their error scales."""

import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from portable.dispatch import gradient
from portable.spec import registry
from portable.spec.model import Case

from .op_cases import OPS, arguments, call, in_float64, inputs, outputs

FORWARD = tuple(name for name in OPS if registry.spec(name).gradient)


def gradient_formula(op: str) -> Any:
    """The gradient of an op: what has `save` and `backward`."""
    return gradient.load(registry.spec(op))


ACTIVATIONS = [None, "relu", "gelu", "gelu_tanh", "silu"]


def reference(op):
    return registry.load_module(registry.spec(op).reference.entry.file)


def doubles(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def same(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-12)


def test_forward_references_are_torch_s():
    x, w, b, gate = doubles((3, 5, 33), (33,), (33,), (3, 5, 33))
    same(reference("softmax").softmax(x, 1), torch.softmax(x, 1))
    same(reference("rms_norm").rms_norm(x, w, eps=1e-3), F.rms_norm(x, (33,), w, 1e-3))
    same(reference("layer_norm").layer_norm(x, w, b, eps=1e-3), F.layer_norm(x, (33,), w, b, 1e-3))
    same(reference("layer_norm").layer_norm(x, None, b), F.layer_norm(x, (33,), None, b, 1e-5))
    same(reference("swiglu").swiglu(gate, x), F.silu(gate) * x)
    a, c = doubles((2, 1, 4, 5), (3, 5, 6))
    same(reference("matmul").matmul(a, c), a @ c)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_is_torch_s(activation):
    x, w, b = doubles((3, 5, 8), (6, 8), (6,))
    apply = {None: lambda z: z, "relu": F.relu, "gelu": F.gelu, "silu": F.silu,
             "gelu_tanh": lambda z: F.gelu(z, approximate="tanh")}[activation]  # fmt: skip
    same(reference("linear").linear(x, w, b, activation=activation), apply(F.linear(x, w, b)))


def gradients(function, tensors, grad):
    leaves = [each.clone().requires_grad_() for each in tensors]
    return torch.autograd.grad(function(*leaves), leaves, grad)


@pytest.mark.parametrize("dim", [-1, 0])
def test_softmax_backward_is_the_derivative(dim):
    x, dy = doubles((6, 9), (6, 9))
    module = reference("softmax")
    (expected,) = gradients(lambda x: module.softmax(x, dim), [x], dy)
    same(module.softmax_backward(dy, module.softmax(x, dim), dim), expected)


@pytest.mark.parametrize("shape", [(4, 3, 9), (1, 1), (7, 1), (1, 40), (9,), (0, 9)])
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_norm_backwards_are_the_derivatives(op, shape):
    x, dy, w, b = doubles(shape, shape, shape[-1:], shape[-1:])
    module = reference(op)
    forward, backward = getattr(module, op), getattr(module, f"{op}_backward")
    more = [w] if op == "rms_norm" else [w, b]
    for given in range(len(more) + 1):
        got = backward(dy, x, *more[:given], eps=1e-2)
        expected = gradients(lambda *each: forward(*each, eps=1e-2), [x, *more[:given]], dy)
        for one, other in zip(got, expected, strict=False):
            same(one, other)
        for empty in got[1 + given :]:
            assert empty.shape == (0,)
    x, dy, *_ = doubles(shape, shape, seed=1)
    if op == "layer_norm":
        (_, expected) = gradients(lambda x, b: forward(x, None, b, eps=1e-2), [x, b], dy)
        _, dweight, dbias = backward(dy, x, None, b, eps=1e-2)
        assert dweight.shape == (0,)
        same(dbias, expected)


def test_swiglu_backward_is_the_derivative():
    gate, up, dy = doubles((5, 33), (5, 33), (5, 33))
    module = reference("swiglu")
    expected = gradients(module.swiglu, [gate * 4, up], dy)
    for one, other in zip(module.swiglu_backward(dy, gate * 4, up), expected, strict=True):
        same(one, other)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_op_that_is_recorded_instead_answers_the_same_first(activation):
    x, w, b = doubles((3, 5, 8), (6, 8), (6,))
    instead = gradient_formula("linear").forward({"activation": activation})
    assert instead == (None if activation in (None, "relu") else "linear_with_preactivation")
    if instead is not None:
        spec, other = registry.spec("linear"), registry.spec(instead)
        assert (spec.inputs, list(spec.params)) == (other.inputs, list(other.params))
        y, z = reference("linear").linear_with_preactivation(x, w, b, activation=activation)
        same(y, reference("linear").linear(x, w, b, activation=activation))
        same(z, F.linear(x, w, b))


@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
def test_activation_backward_is_the_derivative(activation):
    z, dy = doubles((9, 33), (9, 33))
    z = z * 3
    module = reference("linear")
    (expected,) = gradients(lambda z: module.activate(z, activation), [z], dy)
    same(module.activation_backward(dy, z, activation), expected)
    dz, dbias = module.activation_backward_sums(dy, z, activation)
    same(dz, expected)
    same(dbias, expected.reshape(-1, expected.shape[-1]).sum(0))


def test_relu_is_flat_at_zero_and_ignores_what_it_masks():
    module = reference("linear")
    z = torch.tensor([0.0, -0.0, -1.0, 1.0], dtype=torch.float64)
    dy = torch.tensor([3.0, 3.0, float("inf"), 3.0], dtype=torch.float64)
    assert module.activation_backward(dy, z, "relu").tolist() == [0.0, 0.0, 0.0, 3.0]


def test_special_values_follow_torch():
    inf, nan = float("inf"), float("nan")
    softmax = reference("softmax").softmax
    rows = torch.tensor([[1.0, nan, 2.0], [-inf, -inf, -inf], [1.0, inf, 2.0], [-inf, 0.0, 0.0]]).double()
    y = softmax(rows)
    assert y[:3].isnan().all() and y[3].tolist() == [0.0, 0.5, 0.5]
    norm = reference("layer_norm").layer_norm
    assert norm(torch.full((1, 4), 3.0).double()).tolist() == [[0.0] * 4]


@pytest.mark.parametrize("op", [op for op in OPS if registry.spec(op).reference.error_scale])
def test_magnitudes_are_scales_of_the_outputs(op):
    spec = registry.spec(op)
    row = spec.types[0]
    for case in spec.cases:
        tensors = in_float64(inputs(spec, row, case, scale=3.0))
        results = outputs(spec, call(spec.reference.entry, spec, case, tensors))
        scales = call(spec.reference.error_scale, spec, case, tensors)
        assert list(scales) == list(spec.results)
        for name, scale in scales.items():
            assert scale.shape == results[name].shape and scale.dtype == torch.float64
            assert scale.isfinite().all() and (scale >= 0).all()


def test_tf32_widens_the_magnitude_enough_for_cut_factors_and_not_for_bfloat16():
    module = reference("matmul")
    a, b = doubles((32, 4096), (4096, 32))
    a, b = a.float(), b.float()
    exact = a.double() @ b.double()
    scale = module.error_scale(a.double(), b.double(), precision="tf32")["c"]
    bound = 2 * 4096**0.5 * 2.0**-23 * (exact.abs() + scale)

    def cut(x, bits):
        return ((x.view(torch.int32) >> (23 - bits)) << (23 - bits)).view(torch.float32).double()

    assert ((cut(a, 10) @ cut(b, 10) - exact).abs() <= bound).all()
    assert not ((cut(a, 7) @ cut(b, 7) - exact).abs() <= bound).all()


# The gradient formulas, with the references standing in for the ops that they call.


@pytest.fixture
def stand_ins(monkeypatch):
    functions = {op: getattr(reference(op), registry.spec(op).reference.entry.function) for op in OPS}
    stand_in = types.SimpleNamespace(**functions)
    monkeypatch.setattr(gradient, "portable", stand_in)
    for op in FORWARD:
        if isinstance(registry.spec(op).gradient, Path):
            monkeypatch.setattr(gradient_formula(op), "portable", stand_in, raising=False)


MORE_CASES = {
    "matmul": [Case({"M": 3, "N": 4, "K": 5}, leading) for leading in (
        {"a": (2,), "b": ()}, {"a": (), "b": (2,)}, {"a": (1,), "b": (2,)}, {"a": (2, 3), "b": ()},
        {"a": (3,), "b": (2, 1)}, {"a": (0,), "b": ()}, {"a": (0, 2), "b": (2,)})],
    "linear": [Case({"N": 3, "K": 4}, {"x": ()}), Case({"N": 3, "K": 4}, {"x": (0,)}),
               Case({"N": 0, "K": 4}, {"x": (2, 3)}), Case({"N": 3, "K": 4}, {"x": (2,)}, ("bias",))],
    "linear_with_preactivation": [Case({"N": 3, "K": 4}, {"x": leading}, absent, {"activation": "gelu"})
                                  for leading, absent in (((), ()), ((0,), ()), ((2,), ("bias",)))],
}  # fmt: skip


def recorded(formula, params):
    """Whether the op's own formula is used, not another op's."""
    return getattr(formula, "forward", lambda params: None)(params) is None


@pytest.mark.parametrize("op", FORWARD)
def test_gradient_formulas_are_the_derivatives(op, stand_ins):
    spec = registry.spec(op)
    formula = gradient_formula(op)
    # A reference that rounds in between does not in this row: what it then computes has a derivative.
    unrounded = next((row for row in spec.types if row.get("T") == "float64"), None)
    small = [case for case in spec.cases if case.axes.get("N", 0) <= 1000]
    for case in [*small, *MORE_CASES.get(op, [])]:
        tensors = in_float64(inputs(spec, spec.types[0], case))
        leaves = {
            name: each.clone().requires_grad_()
            for name, each in tensors.items()
            if each is not None
            and each.is_floating_point()
            and spec.inputs[name].derived is None
            and spec.inputs[name].gradient
        }
        values = arguments(spec, case, tensors).arguments
        params = {name: values[name] for name in spec.params}
        if not recorded(formula, params):
            continue
        made = call(spec.reference.entry, spec, case, {**tensors, **leaves}, unrounded)
        results = tuple(outputs(spec, made).values())
        generator = torch.Generator().manual_seed(3)
        grads = [torch.randn(y.shape, dtype=torch.float64, generator=generator) for y in results]
        expected = torch.autograd.grad(results, list(leaves.values()), grads)
        expected = dict(zip(leaves, expected, strict=True))
        saved = formula.save(tensors, tuple(y.detach() for y in results), params)
        assert isinstance(saved, tuple) and all(each is None or torch.is_tensor(each) for each in saved)
        for wanted in [set(leaves), *({name} for name in leaves)]:
            needs = {name: name in wanted for name in spec.inputs}
            got = formula.backward(saved, params, needs, *grads)
            assert set(got) == set(spec.inputs)
            for name, each in got.items():
                if name in wanted:
                    same(each, expected[name])
                else:
                    assert each is None, name


def test_precision_reaches_the_products_of_the_gradient(monkeypatch):
    seen = []
    formula = gradient_formula("matmul")

    def matmul(a, b, *, precision):
        seen.append(precision)
        return a @ b

    monkeypatch.setattr(formula, "portable", types.SimpleNamespace(matmul=matmul))
    a, b, dc = doubles((3, 4), (4, 5), (3, 5))
    formula.backward((a, b), {"precision": "tf32"}, {"a": True, "b": True}, dc)
    assert seen == ["tf32", "tf32"]
