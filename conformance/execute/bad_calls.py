"""Calls that an op must refuse, derived from its spec, each with the error that the documentation names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from portable import errors
from portable.conformance.cases.case import axis_param
from portable.spec.formula import Formula
from portable.spec.model import Input, Param, Spec

STRANGE_DTYPE = torch.int64
STRANGE_NAME = "no_such_argument"
"""No op takes either; skipped for a spec that takes 64-bit integers."""


MISSING = object()
"""In the place of an argument that is not given."""


@dataclass(frozen=True)
class BadCall:
    """`arguments` by name, what is wrong with them, and the class of error that must come."""

    what: str
    arguments: dict[str, Any]
    error: type[errors.PortableError]


def bad_calls(spec: Spec, good: Mapping[str, Any]) -> Iterator[BadCall]:
    """Every bad call: `good` (inputs by name, parameters by name) with one thing wrong.

    The wrong tensors are on the device of the good ones, but for those that are wrong by their device.
    """
    present = {name: spec.inputs[name] for name in spec.inputs if isinstance(good.get(name), torch.Tensor)}

    def bad(what: str, error: type[errors.PortableError], **changes: Any) -> BadCall:
        return BadCall(what, {**good, **changes}, error)

    for name, field in present.items():
        tensor = good[name]
        others = [other for other in present if other != name]
        yield bad(f"{name} is a list", errors.NotATensorError, **{name: [1.0]})
        if str(STRANGE_DTYPE).removeprefix("torch.") not in spec.legal_dtypes(name):
            yield bad(f"{name} is {STRANGE_DTYPE}", errors.DtypeError, **{name: tensor.to(STRANGE_DTYPE)})
        for dtype in _mixed(spec, name, good, present):
            yield bad(f"{name} alone is {dtype}", errors.DtypeError, **{name: tensor.to(dtype)})
        least = field.rank - bool(field.squeeze)
        if least or (axis_param(spec) and not field.squeeze):
            flat = tensor.reshape(-1)[0] if least <= 1 else tensor.reshape(-1)
            yield bad(f"{name} has {flat.dim()} dimensions", errors.RankError, **{name: flat})
        if not field.leading:
            yield bad(f"{name} has a dimension too many", errors.RankError, **{name: tensor[None]})
        for place, size in _wrong_sizes(spec, field, tensor, [present[other] for other in others]):
            shape = list(tensor.shape)
            shape[place] = size
            yield bad(f"{name} has shape {tuple(shape)}", errors.ShapeError, **{name: tensor.new_ones(shape)})
        if tensor.device.type != "cpu" and others:
            yield bad(f"{name} is on the CPU", errors.DeviceError, **{name: tensor.cpu()})
    yield from _leading(spec, good, present)
    for param in spec.params.values():
        for value in _strange_values(param):
            yield bad(f"{param.name} is {value!r}", errors.ParameterError, **{param.name: value})
    for name in [*(each.name for each in spec.inputs.values() if not each.optional), *_required(spec)]:
        yield bad(f"{name} is missing", errors.SignatureError, **{name: MISSING})
    yield bad(f"there is no argument {STRANGE_NAME}", errors.SignatureError, **{STRANGE_NAME: 1})
    if spec.out is not None:
        some = next(good[name] for name in present)
        yield bad("out is a list", errors.OutputError, out=[1.0])
        yield bad("out has another shape", errors.OutputError, out=some.new_empty((1, 2, 3, 5)))


def _mixed(
    spec: Spec, name: str, good: Mapping[str, Any], present: Mapping[str, Input]
) -> Iterator[torch.dtype]:
    """A dtype that the spec allows for this input, but not beside the others."""
    dtypes = {other: str(good[other].dtype).removeprefix("torch.") for other in present}
    for dtype in spec.legal_dtypes(name):
        if spec.match_types({**dtypes, name: dtype}) is None:
            yield getattr(torch, dtype)
            return


def _wrong_sizes(
    spec: Spec, field: Input, tensor: torch.Tensor, others: list[Input]
) -> Iterator[tuple[int, int]]:
    """Dimensions and sizes that contradict the spec or another input."""
    for place, dim in enumerate(field.dims, tensor.dim() - field.rank):
        if isinstance(dim, (int, Formula)) or any(dim in other.dims for other in others):
            yield place, tensor.shape[place] + 1
        elif spec.axes[dim].low:
            yield place, spec.axes[dim].low - 1
    if spec.leading == "same" and field.leading and any(other.leading for other in others):
        yield 0, tensor.shape[0] + 1


def _leading(spec: Spec, good: Mapping[str, Any], present: Mapping[str, Input]) -> Iterator[BadCall]:
    """Leading dimensions of 2 and of 3, which do not broadcast."""
    names = [name for name, field in present.items() if field.leading]
    if spec.leading == "broadcast" and len(names) > 1:
        own = {name: good[name].expand(size, *good[name].shape) for size, name in enumerate(names[:2], 2)}
        yield BadCall("leading dimensions of 2 and 3", {**good, **own}, errors.ShapeError)


def _required(spec: Spec) -> list[str]:
    return [param.name for param in spec.params.values() if param.required]


def _strange_values(param: Param) -> list[Any]:
    known = {"choice": ["no_such_choice", 1], "bool": ["yes"], "axis": [99, "last"]}
    return known.get(param.type, ["one"]) + ([] if param.nullable else [None])
