"""Assertions for other people's tests: a result held to an op's own bound, in place of a chosen rtol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from portable.conformance.cases.case import Case, make_shape
from portable.conformance.judge import reference
from portable.dispatch import arguments, compiled_call, dispatcher
from portable.errors import ArgumentError
from portable.spec import registry
from portable.spec.model import Spec


def assert_within(actual: Tensor | Sequence[Tensor], op: str, *inputs: Any, **params: Any) -> None:
    """Assert that `actual` is what the op computes of these arguments, each element within the op's bound.

    actual: the op's output, or its outputs in the spec's order, and then the contents of the tensors that it
    writes in place, of which `inputs` have those from before; later ones may be left out. On any device, of
    the shape and dtype that `torch.ops.portable.<op>` gives. op: a name of `portable.ops()`, or of an
    internal op (`softmax_backward`). inputs, params: the op's arguments as its page in docs/ops has them,
    tensors on any device. They must be those that `actual` was computed from, bit for bit.

    The reference is computed in float64 on the CPU, so take tensors of a test's size. The bound of an element
    is the spec's: one rounding to the output's dtype, and the accumulation in float32 over so many terms.

    Raises AssertionError with the output, the first wrong element, its bound and error in ULP, and where the
    wrong ones lie; PortableError that names the argument where the call itself is wrong.
    """
    __tracebackhide__ = True
    name = registry.op_name(
        op, "testing.assert_within", "op", "portable.testing.assert_within(actual, {}, ...)"
    )
    spec = registry.spec(name)
    outputs = [actual] if isinstance(actual, Tensor) else list(actual)
    if not 1 <= len(outputs) <= len(spec.results) or not all(isinstance(each, Tensor) for each in outputs):
        expected = f"a tensor, or up to {len(spec.results)}: {', '.join(spec.results)}"
        raise ArgumentError(
            "testing.assert_within", "actual", actual, expected, "Pass what the kernel returned"
        )
    expected, lacking = _expected(spec, inputs, params)
    for (output, each), got in zip(expected.items(), outputs, strict=False):
        verdict = each.judge(got if not lacking else got.reshape(each.ref.shape), bias=False)
        if not verdict.passed:
            raise AssertionError(f"{name}, output {output}: {verdict}")


def _expected(
    spec: Spec, inputs: Sequence[Any], params: dict[str, Any]
) -> tuple[dict[str, reference.Expected], list[str]]:
    """What each output must be, and the axes that the inputs were given without (vectors of a product)."""
    bound = dict(zip(spec.signature.parameters, dispatcher.op(spec.op).bound(inputs, params), strict=True))
    whole, lacking = compiled_call.unsqueezed(spec, [bound[name] for name in spec.inputs])
    arguments.check_tensors(spec, whole)
    values = arguments.check_params(spec, [bound[name] for name in spec.params], whole)
    signature, _ = compiled_call.call_signature(spec, whole, values, None)
    axis = compiled_call.op_axis(spec, values)
    given: dict[str, Tensor] = {}
    leading: dict[str, tuple[int, ...]] = {}
    for (name, field), tensor in zip(spec.inputs.items(), whole, strict=True):
        if tensor is None:
            continue
        given[name] = tensor.detach().cpu()
        if field.leading:
            shape = compiled_call.axis_last(tensor, axis, True).shape
            leading[name] = tuple(shape[: len(shape) - len(field.dims)])
    absent = [name for name in spec.inputs if name not in given]
    shape = make_shape(spec, signature.axes, leading, signature.params, absent)
    case = Case(spec.op, tuple(signature.types.items()), shape)
    return reference.answer(case, spec, given), lacking
