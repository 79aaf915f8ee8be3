"""The implementations that run through torch, on the CPU, against the references and the bound."""

import inspect
from typing import Any

import pytest
import torch

from portable.conformance.execute.samples import without_effect
from portable.kernels._lib.torch_products import wide_sums
from portable.spec import registry
from portable.spec.model import Spec

from .op_cases import OPS, bounds, call, combinations, in_float64, inputs, label, outputs

VALUES = {"normal": {}, "large": {"scale": 30.0}, "small": {"scale": 1e-3}, "offset": {"offset": 50.0}}


def torch_module(spec: Spec) -> Any:
    """The module of the op's implementation in torch."""
    implementation = spec.implementation("torch")
    assert implementation is not None, spec.op
    return registry.load_module(implementation.entry.file)


def run(spec, case, tensors):
    implementation = next(each for each in spec.implementations if each.kind == "run")
    result = without_effect(spec, lambda **given: call(implementation.entry, spec, case, given), tensors)
    return outputs(spec, result)


def worst(got, reference, allowed):
    """The largest error in units of the bound; none where the result is the rounded reference, which may be
    an infinity or NaN."""
    rounded, got = reference.to(got.dtype).double(), got.double()  # numbers of 8 bits cannot be compared
    same = (got == rounded) | (got.isnan() & reference.isnan())
    error = torch.where(same, 0.0, (got - reference).abs() / allowed)
    return error.max().item() if error.numel() else 0.0


@pytest.mark.slow
@pytest.mark.parametrize("combination", list(combinations()), ids=label)
def test_results_are_within_the_bound(combination):
    op, row, number = combination
    spec = registry.spec(op)
    row, case = spec.types[row], spec.cases[number]
    for values in VALUES.values():
        tensors = inputs(spec, row, case, **values)
        before = {name: None if each is None else each.clone() for name, each in tensors.items()}
        got = run(spec, case, tensors | spec.dtype_params(row))
        reference, allowed = bounds(spec, row, case, tensors)
        for name, output in spec.results.items():
            assert got[name].shape == reference[name].shape
            if not (output.when and tensors[output.when] is None):
                assert got[name].dtype == getattr(torch, row.get(output.dtype, output.dtype))
            assert worst(got[name], reference[name], allowed[name]) <= 1, (name, values)
        for name, each in before.items():
            after = tensors[name]
            assert each is None or (after is not None and torch.equal(each, after)), f"{name} was written to"


def weights_are_rounded_on_the_way(op: str) -> bool:
    """Whether the op's bound pays for weights that were rounded to the operands' type, which hides a cut."""
    scale = registry.spec(op).reference.error_scale
    return scale is not None and "types" in inspect.signature(registry.load_entry(scale)).parameters


# The others copy, or give integers.
ROUNDED = [
    op
    for op in OPS
    if any(
        limit.result_ulp
        for name, limit in registry.spec(op).tolerance.items()
        if name in registry.spec(op).outputs
    )
]


@pytest.mark.parametrize("op", [op for op in ROUNDED if not weights_are_rounded_on_the_way(op)])
def test_the_bound_refuses_bfloat16_that_is_cut_instead_of_rounded(op):
    spec = registry.spec(op)
    row = spec.types[0]
    case = max((each for each in spec.cases if each.params.get("activation") != "relu"),
               key=lambda each: each.batch * each.axes.get("N", 1))  # fmt: skip
    tensors = inputs(spec, row, case)
    reference, allowed = bounds(spec, row, case, tensors)
    for name in spec.outputs:
        if not spec.tolerance[name].result_ulp:  # copied
            continue
        exact = reference[name].float()
        cut = (exact.view(torch.int32) >> 16 << 16).view(torch.float32)
        assert worst(cut, reference[name], allowed[name]) > 1


def test_the_bound_refuses_rms_norm_rounded_before_the_weight():
    spec = registry.spec("rms_norm")
    row, case = spec.types[0], spec.cases[-1]
    tensors = inputs(spec, row, case)
    reference, allowed = bounds(spec, row, case, tensors)
    given, weight = tensors["x"], tensors["weight"]
    assert given is not None and weight is not None
    x = given.float()
    twice = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)).bfloat16() * weight
    assert worst(twice, reference["y"], allowed["y"]) > 1


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activation_slopes_stay_finite_for_the_largest_floats(activation):
    spec = registry.spec("activation_backward")
    module = torch_module(spec)
    largest = torch.finfo(torch.float32).max
    z = torch.tensor([largest, -largest, 1e20, -1e20, 30.0, -30.0])
    got = module.activation_backward(torch.ones(6), z, activation)
    assert got[::2].tolist() == [1.0, 1.0, 1.0] and got[1::2].abs().max() < 1e-10


def test_nan_and_infinity_propagate_as_in_the_reference():
    inf, nan = float("inf"), float("nan")
    for op, name in (("softmax", "x"), ("rms_norm", "x"), ("layer_norm", "x"), ("swiglu", "gate")):
        spec = registry.spec(op)
        case = next(each for each in spec.cases if each.axes["N"] == 33)
        for dtype in (torch.bfloat16, torch.float32):
            for value in (nan, inf, -inf):
                tensors = inputs(spec, spec.types[0], case)
                tensors = {key: each.to(dtype) for key, each in tensors.items() if each is not None}
                tensors[name][1, 2, 5] = value
                got = run(spec, case, tensors)["y"]
                expected = call(spec.reference.entry, spec, case, in_float64(tensors))
                assert torch.equal(got.isnan(), expected.isnan()), (op, dtype, value)


@pytest.mark.parametrize(
    "dtype, name",
    [
        (torch.bfloat16, "allow_bf16_reduced_precision_reduction"),
        (torch.float16, "allow_fp16_reduced_precision_reduction"),
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_16_bit_products_are_summed_in_float32(dtype, name, before):
    """A setting of the process, off within the block and back after it, whatever happens there."""
    setting = torch.backends.cuda.matmul
    found = getattr(setting, name)
    setattr(setting, name, before)
    try:
        with pytest.raises(ZeroDivisionError), wide_sums(dtype):
            assert getattr(setting, name) is False
            raise ZeroDivisionError
        assert getattr(setting, name) is before
    finally:
        setattr(setting, name, found)


def test_float32_products_do_not_follow_the_process_wide_setting():
    spec = registry.spec("matmul")
    module = torch_module(spec)
    setting = torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue] - set at run time
    a = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    expected = module.matmul(a, a)
    before = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        assert torch.equal(module.matmul(a, a), expected)
        assert setting.fp32_precision == "bf16"
    finally:
        setting.fp32_precision = before
