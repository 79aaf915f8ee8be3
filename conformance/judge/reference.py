"""What a case's answer must be: inputs, float64 reference on the CPU, and the bound of each output."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from portable import dtypes
from portable.backend import Backend
from portable.conformance.cases import inputs
from portable.conformance.cases.case import (
    Case,
    axis_param,
    below,
    formula_values,
    input_shapes,
    leading_size,
    otherwise,
    params_by_default,
    tensor_shape,
)
from portable.conformance.judge import order_independent as exact
from portable.conformance.judge.bound import Tolerance, Verdict, integers, integers_exact, judge, judge_equal
from portable.conformance.text import NOT_CONTIGUOUS
from portable.dispatch import select
from portable.plan import Device
from portable.runtime.tensors import widened
from portable.spec import registry
from portable.spec.model import Implementation, Input, Output, Spec

INTEGERS = frozenset({"small_integers", "ties"})
PRODUCTS = frozenset({"one_hot", "powers_of_two"})
"""Value classes whose results must come out bit for bit where the reference proves it: as sums of
integers, or as sums of products of which no partial sum rounds."""

TF32_BITS = 10

GRADIENT_ROUNDINGS = 4.0
"""Roundings to the input type that a gradient through autograd may take on its way (the saved output,
the upstream gradient, the pre-activation), relative to the largest gradient of the tensor."""


@dataclass(frozen=True)
class Expected:
    """One output: its float64 reference and error scale, its tolerance and its type."""

    ref: torch.Tensor
    error_scale: torch.Tensor | None
    tolerance: Tolerance
    dtype: torch.dtype
    exact: bool = False
    before: torch.Tensor | None = None
    kept: torch.Tensor | None = None
    """Of a mutated input: its contents before the call, and where they must keep their bits."""

    def judge(self, got: Any, bias: bool) -> Verdict:
        if not isinstance(got, torch.Tensor):
            return Verdict("Fail.dtype", note=f"got a {type(got).__name__}, expected a tensor")
        verdict = self._judge(got, bias)
        if self.before is None or self.kept is None or not verdict.passed:
            return verdict
        changed = inputs.different_bits(got.cpu(), self.before) & self.kept
        if not changed.any():
            return verdict
        first = [int(each) for each in changed.nonzero()[0]]
        note = f"{int(changed.sum())} elements changed that the op does not write, the first {first}"
        return Verdict("Fail.value", note=note)

    def _judge(self, got: torch.Tensor, bias: bool) -> Verdict:
        if not dtypes.of(self.dtype).is_float:
            return judge_equal(got, self.ref, self.dtype)
        return judge(
            got,
            self.ref,
            self.error_scale,
            self.tolerance,
            self.dtype,
            exact=self.exact,
            bias=bias and not self.exact,
        )


@dataclass(frozen=True)
class MaterializedCase:
    """A case with its data: its input tensors, its parameters and what each output must be."""

    case: Case
    spec: Spec
    inputs: dict[str, inputs.Input]
    expected: dict[str, Expected]

    @property
    def sha256(self) -> dict[str, str]:
        return {name: made.sha256 for name, made in self.inputs.items()}

    def on(self, implementation: Implementation, backend: Backend, device: Device) -> MaterializedCase:
        """The case with the bound that the implementation has on this device, where it has one of its own: it
        keeps fewer bits, with which sums of distinct powers of two are not exact. Those of integers are."""
        formula = select.accumulation_ulp(implementation, backend, device)
        if formula is None or self.case.mode == "grad":
            return self
        steps = float(formula.evaluate(**formula_values(self.spec, self.case)))
        expected = {
            name: replace(
                each,
                tolerance=replace(each.tolerance, accumulation_ulp=steps),
                exact=each.exact and self.case.values not in PRODUCTS,
            )
            for name, each in self.expected.items()
        }
        return replace(self, expected=expected)

    @property
    def biased_values(self) -> bool:
        """Whether the signed-bias test holds: independent N(0, 1) data, not repeated by a stride of 0."""
        return self.case.values == "normal" and self.case.layout != "expanded" and self.case.mode != "grad"

    def strided(self) -> str:
        """A line of a failure's message: the inputs that are not contiguous. "" where all are."""
        odd = [
            f"{name} of shape {made.shape} with strides {made.strides}"
            for name, made in self.inputs.items()
            if not made.tensor.is_contiguous()
        ]
        return f"\n{NOT_CONTIGUOUS}{', '.join(odd)}" if odd else ""


def materialize(case: Case, spec: Spec) -> MaterializedCase:
    """Make the case's inputs and expected outputs; the same on every machine."""
    made = {}
    mantissa = TF32_BITS if representable(case) else None
    for position, (name, shape) in enumerate(input_shapes(spec, case.shape).items()):
        field = spec.inputs[name]
        own = field.values.get(case.values, field.values.get("others", case.values))
        values = "normal" if field.derived else own
        layout = _layout(case, field)
        made[name] = inputs.make(
            *(case.id, name, shape, case.dtype(field.dtype), values, layout, position, mantissa),
            below=below(spec, case.shape, name),
            otherwise=otherwise(spec, case.shape, name),
        )
    for name, tensor in derived(case, spec, {name: each.tensor for name, each in made.items()}).items():
        made[name] = inputs.place(name, tensor, _layout(case, spec.inputs[name]), list(made).index(name))
    if case.mode == "grad":
        shapes = _output_shapes(case, spec)
        for name, output in spec.outputs.items():
            shape, dtype = shapes[name], case.dtype(output.dtype)
            made[f"d{name}"] = inputs.make(
                case.id, f"d{name}", shape, dtype, case.values, "contiguous", mantissa=mantissa
            )
        return MaterializedCase(case, spec, made, _gradients(case, spec, made))
    return MaterializedCase(case, spec, made, _outputs(case, spec, made, scale_of=_strict(case, spec)))


def _layout(case: Case, field: Input) -> str:
    """The case's layout, where the elements of what is written in place have memory of their own."""
    return "contiguous" if field.mutated and case.layout in inputs.REPEATING else case.layout


def derived(case: Case, spec: Spec, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inputs that follow from others, rounded to their types, for CPU tensors by input name."""
    wanted = {name: field for name, field in spec.inputs.items() if field.derived and name in tensors}
    own = {name: widened(tensor) for name, tensor in tensors.items() if name not in wanted}
    given = {**dict.fromkeys(spec.inputs), **own}
    results = {entry: _call(registry.load_entry(entry), case, spec, given)
               for entry in {field.derived for field in wanted.values()} if entry}  # fmt: skip
    return {
        name: results[field.derived][name].to(inputs.DTYPES[case.dtype(field.dtype)])
        for name, field in wanted.items() if field.derived
    }  # fmt: skip


def failed(error: Exception, spec: Spec) -> str:
    """What to say where `materialize` raised: the reference's own fault, or that of the spec's inputs."""
    row = spec.types[0]
    drawn = [
        name for name, field in spec.inputs.items()
        if field.below is None and not field.derived
        and not dtypes.of(inputs.DTYPES[row.get(field.dtype, field.dtype)]).is_float
    ]  # fmt: skip
    hint = (
        f"; input {drawn[0]} has no limit: if it is an index, give it `below: <axis>` in the spec"
        if drawn
        else ""
    )
    return f"the reference failed: {type(error).__name__}: {error}{hint}"


def representable(case: Case) -> bool:
    """Whether float32 inputs are rounded to TF32 beforehand, so that a call that allows TF32 loses nothing
    by it and is held to the bound, and to the exactness, of float32.

    N(0, 1) data keep their bits: there the wider bound holds that the reference gives such a call.
    """
    return "tf32" in case.params.values() and (case.values != "normal" or case.mode == "grad")


def _strict(case: Case, spec: Spec) -> Case:
    """The case whose error scale holds: without TF32 where the inputs lose nothing by it."""
    if not representable(case):
        return case
    kept = tuple((name, value) for name, value in case.shape.params if value != "tf32")
    return replace(case, shape=replace(case.shape, params=kept))


def answer(case: Case, spec: Spec, tensors: Mapping[str, torch.Tensor]) -> dict[str, Expected]:
    """What the op's outputs must be for these CPU tensors (by input name, absent ones left out)."""
    return _outputs(case, spec, tensors)


def _outputs(
    case: Case, spec: Spec, made: Mapping[str, Any], scale_of: Case | None = None
) -> dict[str, Expected]:
    """The outputs for these inputs; the error scale is that of the case `scale_of`."""
    tensors = {name: each.tensor if isinstance(each, inputs.Input) else each for name, each in made.items()}
    wide = {name: widened(tensors[name]) if name in tensors else None for name in spec.inputs}
    refs = reference(case, spec, wide)
    scales: dict[str, Any] = {}
    if spec.reference.error_scale is not None:
        entry = registry.load_entry(spec.reference.error_scale)
        scales = _named(spec, _call(entry, scale_of or case, spec, wide))
    acc = inputs.DTYPES[dict(case.types)["acc"]]
    exactly = _exactly(case, spec, tensors, refs, acc)
    known = formula_values(spec, case)
    expected = {}
    kept = _kept(case, spec, wide, refs)
    for name, output in spec.results.items():
        if name in spec.mutated and name not in tensors:
            continue
        dtype = inputs.DTYPES[case.dtype(output.dtype)]
        if not dtypes.of(dtype).is_float:
            expected[name] = _equal(refs[name], output, _output_shapes(case, spec)[name], dtype, tensors)
            continue
        limits = spec.tolerance[name]
        tolerance = _tolerance(limits.result_ulp, float(limits.accumulation_ulp.evaluate(**known)), acc)
        if output.when is not None and output.when not in tensors:
            expected[name] = Expected(torch.empty(0, dtype=torch.float64), None, tolerance, dtype)
            continue
        ref, scale = refs[name], scales.get(name)
        if tuple(ref.shape) != _output_shapes(case, spec)[name] or ref.dtype != torch.float64:
            raise ValueError(f"the reference of {spec.op} gives {name} as {ref.dtype} {tuple(ref.shape)}")
        if scale is not None:
            scale = scale.to(torch.float64).broadcast_to(ref.shape)
        expected[name] = Expected(
            ref, scale, tolerance, dtype, exactly.get(name, False) or limits.result_ulp == 0
        )
    for name, where in kept.items():
        expected[name] = replace(expected[name], before=tensors[name], kept=where)
    return expected


def _kept(
    case: Case, spec: Spec, wide: Mapping[str, torch.Tensor | None], refs: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Where the op leaves a mutated input as it is: where its reference does, whatever the contents are."""
    before = {name: tensor for name in spec.mutated if (tensor := wide[name]) is not None}
    if not before:
        return {}
    others = {name: torch.where(tensor == 1, 0, 1).to(tensor.dtype) for name, tensor in before.items()}
    again = reference(case, spec, {**wide, **others})
    return {
        name: ~inputs.different_bits(refs[name], tensor) & ~inputs.different_bits(again[name], others[name])
        for name, tensor in before.items()
    }


def _equal(
    ref: Any, output: Output, shape: tuple[int, ...], dtype: torch.dtype, present: Mapping[str, Any]
) -> Expected:
    """What an output of integers or bools must be: the reference, element by element."""
    tolerance = Tolerance(0.0, 0.0, torch.float64)
    if output.when is not None and output.when not in present:
        return Expected(torch.empty(0, dtype=dtype), None, tolerance, dtype, True)
    if tuple(ref.shape) != shape or ref.is_floating_point():
        raise ValueError(f"the reference gives {output.name} as {ref.dtype} {tuple(ref.shape)}, not {dtype}")
    return Expected(ref, None, tolerance, dtype, True)


def reference(case: Case, spec: Spec, wide: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """The spec's outputs by name, in float64 (integers and bools as they are), for CPU tensors as `widened`
    (None or left out where absent)."""
    return _named(spec, _call(registry.load_entry(spec.reference.entry), case, spec, wide))


def _exactly(
    case: Case, spec: Spec, tensors: Mapping[str, torch.Tensor], refs: Mapping[str, Any], acc: torch.dtype
) -> dict[str, bool]:
    """By output: whether it must equal its reference bit for bit. Large numbers of 8 bits are all integers:
    there a reference of integers says nothing of a root that took part."""
    present = {name: ref for name, ref in refs.items()
               if isinstance(ref, torch.Tensor) and ref.is_floating_point() and ref.numel()
               and dtypes.of(inputs.DTYPES[case.dtype(spec.results[name].dtype)]).bits > 8}  # fmt: skip
    if case.values not in INTEGERS | PRODUCTS:
        return {}
    wide = {name: widened(tensor) for name, tensor in tensors.items()}
    absent: dict[str, Any] = dict.fromkeys(name for name in spec.inputs if name not in wide)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():  # indices are no operands
            absent[name] = wide.pop(name)

    def evaluate(given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        outputs = reference(case, spec, {**absent, **given})
        return {name: outputs[name] for name in present}

    if case.values in INTEGERS:
        numbers = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
        found = {name: integers_exact(ref, numbers, acc) for name, ref in present.items()}
        if any(found.values()):
            # exp(-100) is lost beside 1: an exponential shows at inputs of 0, where it is 1.
            zero = evaluate({name: torch.zeros_like(tensor) for name, tensor in wide.items()})
            found = {name: yes and integers(zero[name]) for name, yes in found.items()}
        return found
    return exact.order_independent(evaluate, wide, present, acc)


def _tolerance(result: float, steps: float, acc: torch.dtype) -> Tolerance:
    """The spec's tolerance; for float64 results the oracle rounds as much as the op does, so twice it."""
    return (
        Tolerance(result + 0.5, 2 * steps, acc)
        if acc == torch.float64 and result
        else Tolerance(result, steps, acc)
    )


Gradients = Callable[[Mapping[str, torch.Tensor], Sequence[torch.Tensor]], "dict[str, torch.Tensor]"]
"""Float64 gradients by input, from inputs by name and the outputs' upstream gradients."""


def _gradients(case: Case, spec: Spec, made: Mapping[str, inputs.Input]) -> dict[str, Expected]:
    """Float64 gradients through the reference. Those of products are products and have the op's own bound.

    Others have a norm-wise bound, since they pass through several ops: each is strictly judged where it is
    computed, in the backward op; this checks that the formula is wired up right.
    """
    tensors = {name: each.tensor for name, each in made.items()}
    wide = {name: widened(tensors[name]) if name in tensors else None for name in spec.inputs}
    present = {name: widened(each) for name, each in spec.differentiable(tensors).items()}
    floats = [
        name for name, each in spec.outputs.items()
        if dtypes.of(inputs.DTYPES[case.dtype(each.dtype)]).is_float
    ]  # fmt: skip

    def gradients(
        given: Mapping[str, torch.Tensor], upstream: Sequence[torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in given.items()}
        with torch.enable_grad():
            arguments = {**wide, **leaves}
            result = _named(spec, _call(registry.load_entry(spec.reference.entry), case, spec, arguments))
            outputs = [result[name] for name in floats]
            found = torch.autograd.grad(outputs, list(leaves.values()), upstream, allow_unused=True)
        return {
            name: torch.zeros_like(leaf) if grad is None else grad.detach()
            for (name, leaf), grad in zip(leaves.items(), found, strict=True)
        }

    upstream = [made[f"d{name}"].tensor.to(torch.float64) for name in floats]
    grads = gradients(present, upstream)
    products = _product_gradients(case, spec, gradients, present, upstream, grads)
    acc = inputs.DTYPES[dict(case.types)["acc"]]
    longest = max(
        [1, *(size for each in made.values() for size in each.shape), leading_size(spec, case.shape)]
    )
    kinds = {inputs.DTYPES[case.dtype(each.dtype)] for each in spec.inputs.values()}
    narrow = max(dtypes.of(each).eps for each in kinds if each.is_floating_point)
    factor = 8 + 4 * math.sqrt(longest) + GRADIENT_ROUNDINGS * narrow / dtypes.of(acc).eps
    expected = {}
    for name, grad in grads.items():
        dtype = inputs.DTYPES[case.dtype(spec.inputs[name].dtype)]
        if name in products:
            expected[f"d{name}"] = Expected(grad, *products[name], dtype)
            continue
        largest = grad.abs().max() if grad.numel() else torch.zeros((), dtype=torch.float64)
        expected[f"d{name}"] = Expected(grad, largest.expand(grad.shape), Tolerance(0.51, factor, acc), dtype)
    return expected


def _product_gradients(
    case: Case,
    spec: Spec,
    gradients: Gradients,
    present: Mapping[str, torch.Tensor],
    upstream: Sequence[torch.Tensor],
    grads: Mapping[str, torch.Tensor],
) -> dict[str, tuple[torch.Tensor, Tolerance]]:
    """Error scale and tolerance by input where the op is a product, linear in each: no gradient depends on
    its own input. Left out are TF32, and sums over batches that an input lacks, whose parts are rounded.

    The scale is the root of the sum of squares, as the op's own is, and the tolerance that of as many terms.
    """
    if spec.cost.roof != "matrix" or spec.boundary or representable(case):
        return {}
    for name, tensor in present.items():
        if not torch.equal(gradients({**present, name: -tensor}, upstream)[name], grads[name]):
            return {}
    squares, counts = (
        gradients({n: change(t) for n, t in present.items()}, [change(each) for each in upstream])
        for change in (torch.square, torch.ones_like)
    )
    (limits,) = spec.tolerance.values()
    acc, axes = inputs.DTYPES[dict(case.types)["acc"]], dict(case.shape.axes)
    summed = set(axes).difference(*(output.dims for output in spec.outputs.values()))
    known = formula_values(spec, case)
    leading = dict(case.shape.leading)
    found = {}
    for name, square in squares.items():
        if square.numel() and (spec.leading == "same" or math.prod(leading[name]) == known["B"]):
            known |= dict.fromkeys(summed, max(1, int(counts[name].max())))
            steps = float(limits.accumulation_ulp.evaluate(**known))
            found[name] = square.sqrt(), _tolerance(limits.result_ulp, steps, acc)
    return found


def _output_shapes(case: Case, spec: Spec) -> dict[str, tuple[int, ...]]:
    dims = [leading for _, leading in case.shape.leading]
    leading = tuple(torch.broadcast_shapes(*dims)) if dims else ()
    return {name: tensor_shape(spec, case.shape, output, leading) for name, output in spec.results.items()}


def _call(function: Callable[..., Any], case: Case, spec: Spec, wide: Mapping[str, Any]) -> Any:
    """A function of a reference file, called by name with the op's axis moved last and back again, and with
    indices as int64. One that takes `types` or `axes` gets the case's row of types or its sizes; one that
    takes `bits` gets random bits of the case, to make integers of."""
    axis_name = axis_param(spec)
    arguments: dict[str, Any] = params_by_default(spec, case)
    axis = arguments[axis_name] if axis_name is not None else -1
    for name, tensor in wide.items():
        if tensor is not None and spec.inputs[name].below is not None:
            tensor = widened(tensor, index=True)
        moves = axis_name is not None and spec.inputs[name].leading
        arguments[name] = tensor.movedim(axis, -1) if tensor is not None and moves else tensor
    if axis_name is not None:
        arguments[axis_name] = -1
    facts = {"types": dict(case.types), "axes": dict(case.shape.axes), "bits": inputs.Bits(f"{case.id}/bits")}
    result = _named(spec, registry.call_by_name(function, arguments, facts))
    if axis_name is None:
        return result
    return {
        name: tensor.movedim(-1, axis)
        if tensor is not None and (spec.results.get(name) or spec.inputs[name]).leading and tensor.dim()
        else tensor
        for name, tensor in result.items()
    }


def _named(spec: Spec, result: Any) -> dict[str, Any]:
    """A reference's result by output name, however it returned it."""
    if isinstance(result, Mapping):
        return dict(result)
    several = result if isinstance(result, (tuple, list)) else (result,)
    return dict(zip(spec.results, several, strict=True))
