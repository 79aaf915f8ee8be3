"""The references against a second text that shares nothing with them: torch's own functions, and autograd.

An op whose torch implementation is the rounded reference (`run: reference`) has no other check of its maths.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from portable.spec import registry

from .op_cases import call, in_float64, inputs, outputs


def rms_norm(x, weight, eps, weight_offset, cast_before_weight):
    """With torch's gradient as if nothing were rounded before the weight."""
    y = F.rms_norm(x, x.shape[-1:], None, eps)
    if weight is None:
        return y
    if cast_before_weight:
        y = y + (y.to(torch.bfloat16).to(y.dtype) - y).detach()
    return y * (weight + weight_offset)


FORWARD = {
    "swiglu": lambda gate, up: F.silu(gate) * up,
    "softmax": lambda x, dim: F.softmax(x, dim),
    "log_softmax": lambda x, dim: F.log_softmax(x, dim),
    "rms_norm": rms_norm,
    "layer_norm": lambda x, weight, bias, eps: F.layer_norm(x, x.shape[-1:], weight, bias, eps),
}
RUN_THE_REFERENCE = [*FORWARD, *(f"{op}_backward" for op in FORWARD)]


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11, equal_nan=True)


def cases(op):
    return [case for case in registry.spec(op).cases if case.axes["N"] not in (0, 65537)]


@pytest.mark.parametrize("op", FORWARD)
def test_the_reference_is_torchs_function(op):
    spec = registry.spec(op)
    for case in cases(op):
        tensors = in_float64(inputs(spec, spec.types[0], case))
        params = {name: case.params.get(name, param.default) for name, param in spec.params.items()}
        got = call(spec.reference.entry, spec, case, tensors)
        close(got, FORWARD[op](*tensors.values(), *params.values()))


@pytest.mark.parametrize("op", FORWARD)
def test_the_backward_reference_is_its_derivative(op):
    spec, forward = registry.spec(f"{op}_backward"), registry.spec(op)
    for case in cases(spec.op):
        tensors = in_float64(inputs(spec, spec.types[0], case))
        params = {name: case.params.get(name, param.default) for name, param in spec.params.items()}
        leaves = {
            name: None if (x := tensors[name]) is None else x.clone().requires_grad_()
            for name in forward.inputs
            if name in tensors
        }
        if op == "log_softmax":
            y = tensors["y"]
            assert y is not None
            tensors["y"] = torch.log_softmax(y, -1)
            leaves = {"x": tensors["y"].clone().requires_grad_()}
        if op == "softmax":  # its gradient takes the output: any x with this softmax will do
            y = tensors["y"]
            assert y is not None
            leaves = {"x": y.abs().add(0.1).log().requires_grad_()}
        y = FORWARD[op](*leaves.values(), *params.values())
        given = [each for each in leaves.values() if each is not None]
        expected = torch.autograd.grad(y, given, tensors["dy"])
        if op == "softmax":
            tensors = {**tensors, "y": y.detach()}
        found = outputs(spec, call(spec.reference.entry, spec, case, tensors))
        got = [found[f"d{name}"] for name, each in leaves.items() if each is not None]
        for one, other in zip(got, expected, strict=True):
            close(one, other)


@pytest.mark.parametrize("op", RUN_THE_REFERENCE)
def test_the_torch_implementation_rounds_once_to_the_type_of_its_output(op):
    spec = registry.spec(op)
    implementation = spec.implementation("torch")
    assert implementation is not None
    for row in spec.types:
        case = next(each for each in spec.cases if each.axes["N"] == 1000)
        tensors = inputs(spec, row, case)
        got = outputs(spec, call(implementation.entry, spec, case, tensors))
        for name, output in spec.outputs.items():
            if output.when is None or tensors[output.when] is not None:
                assert got[name].dtype == getattr(torch, row.get(output.dtype, output.dtype)), (op, name)
