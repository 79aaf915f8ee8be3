"""Tensors that a behaviour is asked with, the types it is asked in, and when two results are the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from portable import dtypes, errors
from portable.conformance.cases.case import Case, Shape, below, input_shapes, make_shape
from portable.conformance.cases.generate import required_params
from portable.conformance.cases.inputs import DTYPES
from portable.conformance.judge import reference
from portable.dispatch.arguments import span
from portable.runtime.tensors import random_tensor
from portable.spec.model import Output, Spec

Call = Callable[[dict[str, Any]], tuple[torch.Tensor, ...]]
"""The op with its required parameters; takes further arguments by name, and returns all outputs, then the new
contents of the mutated inputs that it is given, which keep their own."""

Types = Mapping[str, str]

EMULATED_PROBLEMS = 8
"""Leading members where each is a problem of its own, as attention's, and an emulated GPU runs them: 48 took
`attention_backward` 2 to 8 s of CPU a behaviour (2026-11-22)."""


class NotApplicable(Exception):
    """The machine or the op lacks what the behaviour needs."""


def sample(
    spec: Spec,
    device: torch.device,
    lead: int = 48,
    size: int = 256,
    seed: int = 0,
    types: Types | None = None,
    absent: Sequence[str] = (),
    batched: bool = False,
) -> dict[str, Any]:
    """N(0, 1) numbers and random indices of one row of types (the spec's first), every axis of one size, or
    of the sizes of the spec's `behaviour_case`. At most EMULATED_PROBLEMS problems on an emulated GPU.
    Operands that broadcast have leading dimensions if `batched`."""
    lead = min(lead, most_leading(spec, device))
    return drawn(spec, shape_of(spec, lead, size, absent, batched), device, types or spec.types[0], seed)


def drawn(spec: Spec, shape: Shape, device: torch.device, row: Types, seed: int = 0) -> dict[str, Any]:
    """N(0, 1) numbers and random indices in a shape; None for inputs that it lacks."""
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Any] = dict.fromkeys(spec.inputs)
    for name, own in input_shapes(spec, shape).items():
        dtype = row.get(spec.inputs[name].dtype, spec.inputs[name].dtype)
        made[name] = random_tensor(own, dtype, generator, below=below(spec, shape, name))
    present = {name: tensor for name, tensor in made.items() if tensor is not None}
    made |= reference.derived(Case(spec.op, tuple(row.items()), shape), spec, present)
    return {name: None if tensor is None else tensor.to(device) for name, tensor in made.items()}


def without_effect(spec: Spec, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """What `function` returns for arguments by name, as a `Call` does: it writes copies of the mutated
    inputs, of the same strides. Those whose elements are far apart are written themselves, then restored."""
    given, restored = dict(arguments), []
    written = [name for name in spec.mutated if isinstance(given.get(name), torch.Tensor)]
    for name in written:
        tensor: torch.Tensor = given[name]
        if span(tensor) > 16 * tensor.numel() * tensor.itemsize:
            restored.append((tensor, tensor.clone()))
        else:
            copy = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
            given[name] = copy.copy_(tensor)
    outputs = function(**given)
    if not written:
        return outputs
    several = outputs if isinstance(outputs, tuple) else () if outputs is None else (outputs,)
    contents = tuple(given[name] for name in written)
    if not restored:
        return (*several, *contents)
    contents = tuple(each.clone() for each in contents)
    for tensor, before in restored:
        tensor.copy_(before)
    return (*several, *contents)


def said_dtypes(spec: Spec, tensors: Mapping[str, Any]) -> dict[str, torch.dtype]:
    """The parameters that say a dtype, by the first row of types that has these tensors."""
    given = {
        name: dtypes.of(t.dtype).name
        for name, t in tensors.items()
        if name in spec.inputs and isinstance(t, torch.Tensor)
    }
    row = spec.match_types(given) or spec.types[0]
    return {name: DTYPES[dtype] for name, dtype in spec.dtype_params(row).items()}


def results(spec: Spec, tensors: Mapping[str, Any]) -> list[Output]:
    """What a `Call` with these tensors returns."""
    return [
        each for name, each in spec.results.items() if name in spec.outputs or tensors.get(name) is not None
    ]


def of_problems(spec: Spec) -> bool:
    """Whether each leading index is an independent problem, as a sequence of attention is, and not a row. Of
    an op of products some inputs may be vectors of their problem, as scales of heads are."""
    led = [each for each in spec.inputs.values() if each.leading]
    enough = any if spec.cost.roof == "matrix" else all
    return spec.leading == "same" and bool(led) and enough(each.rank > 1 for each in led)


def leads(spec: Spec) -> bool:
    return any(each.leading for each in spec.inputs.values())


def most_leading(spec: Spec, device: torch.device) -> int:
    return EMULATED_PROBLEMS if device.type == "cpu" and of_problems(spec) else sys.maxsize


def shape_of(spec: Spec, lead: int, size: int, absent: Sequence[str] = (), batched: bool = False) -> Shape:
    leading: Any = (lead,) if batched or spec.leading == "same" else ()
    axes = spec.behaviour_case.axes if spec.behaviour_case else dict.fromkeys(spec.axes, size)
    return make_shape(spec, axes, leading, required_params(spec)[0], absent)


def in_types(spec: Spec, check: Callable[[Types], str | None], both: bool = True) -> str | None:
    """`check` in the spec's first row of types and in float32 alone, where a last bit is not rounded away;
    in the second only if the first is refused, where not `both`. Raises PinError if both are."""
    wide = [row for row in spec.types[1:] if set(row.values()) == {"float32"}]
    refusals = []
    rows = [spec.types[0], *wide[:1]]
    for row in rows:
        try:
            wrong = check(row)
        except errors.PinError as refusal:
            refusals.append(refusal)
            continue
        if wrong:
            return f"in {next(iter(row.values()))}, {wrong}"
        if not both:
            return None
    if len(refusals) == len(rows):
        raise refusals[0]
    return None


def same(one: tuple[torch.Tensor, ...], two: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def near(one: torch.Tensor | None, two: torch.Tensor | None) -> bool:
    """Whether two tensors of one shape and type differ by a few roundings of the largest element at most."""
    if one is None or two is None or one.shape != two.shape or one.dtype != two.dtype:
        return False
    if not one.numel():
        return True
    limit = reference.GRADIENT_ROUNDINGS * torch.finfo(one.dtype).eps * float(two.abs().max())
    return bool((one.double() - two.double()).abs().max() <= limit)
