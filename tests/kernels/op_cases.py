"""Inputs and the accuracy bound for tests that go through every op's spec."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from portable.conformance.cases.case import make_shape
from portable.conformance.judge import reference as oracle
from portable.spec import registry
from portable.spec.model import Case, Input, Spec, size_of

OPS = tuple(registry.op_folders())


def combinations(ops: tuple[str, ...] = OPS) -> Iterator[tuple[str, int, int]]:
    """Every (op, row of types, case)."""
    for op in ops:
        spec = registry.spec(op)
        for row in range(len(spec.types)):
            for case in range(len(spec.cases)):
                yield op, row, case


def label(combination: tuple[str, int, int]) -> str:
    op, row, case = combination
    spec = registry.spec(op)
    types = "-".join(spec.types[row][name] for name in spec.type_variables)
    return f"{op}-{types}-{spec.cases[case].label}"


def shape_of(tensor: Input, case: Case) -> tuple[int, ...]:
    leading = case.leading.get(tensor.name, ()) if tensor.leading else ()
    return (*leading, *(size_of(dim, case.axes) for dim in tensor.dims))


def inputs(
    spec: Spec, row: Mapping[str, str], case: Case, *, scale: float = 1.0, offset: float = 0.0
) -> dict[str, Tensor | None]:
    """The inputs of one case: normal values, `offset` added to x alone; softmax's output where y goes in."""
    found: dict[str, Tensor | None] = {}
    for name, tensor in spec.inputs.items():
        if name in case.absent:
            found[name] = None
            continue
        if isinstance(tensor.below, str):
            found[name] = _indices(tensor, case, row)
            continue
        seed = zlib.crc32(f"{spec.op} {case.label} {name}".encode())
        if tensor.below is not None:
            limit = tensor.below if isinstance(tensor.below, int) else case.axes[tensor.below]
            drawn = torch.randint(
                limit, shape_of(tensor, case), generator=torch.Generator().manual_seed(seed)
            )
            found[name] = drawn.to(getattr(torch, row.get(tensor.dtype, tensor.dtype)))
            continue
        values = torch.randn(shape_of(tensor, case), generator=torch.Generator().manual_seed(seed))
        values = values * scale + (offset if name == "x" else 0.0)
        if name == "y":
            values = torch.softmax(values, -1)
        found[name] = values.to(getattr(torch, row.get(tensor.dtype, tensor.dtype)))
    shape = make_shape(spec, case.axes, case.leading, case.params, case.absent)
    present = {name: each for name, each in found.items() if each is not None}
    return found | oracle.derived(oracle.Case(spec.op, tuple(row.items()), shape), spec, present)


def _indices(tensor: Input, case: Case, row: Mapping[str, str]) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{case.label} {tensor.name}".encode()))
    below = case.axes[str(tensor.below)]
    numbers = torch.randint(0, below, shape_of(tensor, case), generator=generator)
    return numbers.to(getattr(torch, row.get(tensor.dtype, tensor.dtype)))


def arguments(spec: Spec, case: Case, tensors: Mapping[str, Any]) -> inspect.BoundArguments:
    """The tensors and the case's parameters, bound as an implementation is called, or the reference: it takes
    no parameters that say a dtype, which are then not among `tensors`."""
    said = spec.dtype_params(spec.types[0]).keys() - tensors.keys()
    bound = inspect.Signature(
        [each for each in spec.signature.parameters.values() if each.name not in ("out", *said)]
    ).bind(**tensors, **case.params)
    bound.apply_defaults()
    return bound


def call(
    entry, spec: Spec, case: Case, tensors: Mapping[str, Any], types: Mapping[str, str] | None = None
) -> Any:
    bound, function = arguments(spec, case, tensors), registry.load_entry(entry)
    if "types" in inspect.signature(function).parameters:
        return function(**bound.arguments, types=types or spec.types[0])
    return function(**bound.arguments)


def outputs(spec: Spec, result: Any) -> dict[str, Tensor]:
    results = result if isinstance(result, tuple) else (result,)
    return dict(zip(spec.results, results, strict=True))


def in_float64(tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {
        name: each.double() if each is not None and each.is_floating_point() else each
        for name, each in tensors.items()
    }


def bounds(
    spec: Spec, row: Mapping[str, str], case: Case, tensors: Mapping[str, Tensor | None]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The reference of each output and how far a result may be from it."""
    exact = in_float64(tensors)
    reference = outputs(spec, call(spec.reference.entry, spec, case, exact, row))
    magnitude = call(spec.reference.error_scale, spec, case, exact, row) if spec.reference.error_scale else {}
    allowed = {}
    for name, ref in reference.items():
        dtype = spec.results[name].dtype
        if name not in spec.tolerance:  # integers
            allowed[name] = torch.full(ref.shape, 0.5, dtype=torch.float64)
            continue
        result = torch.finfo(getattr(torch, row.get(dtype, dtype)))
        tolerance, acc = spec.tolerance[name], torch.finfo(getattr(torch, row["acc"])).eps
        params = {name: param.default for name, param in spec.params.items()} | dict(case.params)
        units = tolerance.accumulation_ulp.evaluate(**{**case.axes, "B": case.batch, **row, **params})
        scale = ref.abs() + magnitude.get(name, 0.0)
        smallest = result.smallest_normal * result.eps
        allowed[name] = tolerance.result_ulp * result.eps * ref.abs() + units * acc * scale + smallest
    return reference, allowed
