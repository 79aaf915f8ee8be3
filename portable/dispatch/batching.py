"""vmap: the new dimension becomes a leading one of the op, or the op is called for each element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from portable import dtypes
from portable.dispatch import arguments, fast_path
from portable.errors import UnsupportedTransformError

if TYPE_CHECKING:
    from portable.spec.model import Spec


def register(
    spec: Spec, signature: arguments.Signature, overload: Any, library: torch.library.Library
) -> None:
    """Register the op's rule for vmap."""

    def rule(info: Any, in_dims: Any, *args: Any, **kwargs: Any) -> Any:
        values = signature.bind(args, kwargs)
        inputs, params, _ = signature.split(values)
        if name := arguments.writes(spec, inputs):
            what = f"argument {name!r} is written in place, under a transform of torch.func"
            raise UnsupportedTransformError(spec.op, what, "Call the op outside of it")
        dims, _, _ = signature.split([*in_dims, *[None] * (len(values) - len(in_dims))])

        def call(tensors: Sequence[Any]) -> Any:
            given = signature.join(tensors, params)
            return overload(**dict(zip(signature.names, given, strict=False)))

        if not info.batch_size or not _is_leading(spec, dims):
            result = _one_by_one(call, inputs, dims, info.batch_size)
        else:
            logical = _elements(inputs, dims, 0)
            params = [
                dtypes.of(value).storage if param.type == "dtype" else value
                for param, value in zip(
                    spec.params.values(),
                    arguments.check_params(spec, params, logical),  # an axis is counted from the end
                    strict=True,
                )
            ]
            result = call(_moved(spec, inputs, dims, logical, info.batch_size))
        return result, (0 if len(spec.outputs) == 1 else (0,) * len(spec.outputs))

    torch.library.register_vmap(f"portable::{spec.op}", fast_path.untraced(rule), lib=library)


def register_out(spec: Spec, library: torch.library.Library) -> None:
    """Register that vmap does not write `out`."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise no_out(spec.op)

    library.impl(f"{spec.op}.out", refuse, "FuncTorchBatched")


def no_out(op: str) -> UnsupportedTransformError:
    """The error of `out=` under a transform of torch.func."""
    return UnsupportedTransformError(op, "out= under a transform of torch.func", "Leave out= away")


def _is_leading(spec: Spec, dims: Sequence[int | None]) -> bool:
    """Whether all that is batched has leading dimensions, and all outputs."""
    fields = [field for field, dim in zip(spec.inputs.values(), dims, strict=True) if dim is not None]
    return all(field.leading for field in (*fields, *spec.outputs.values()))


def _elements(inputs: Sequence[Any], dims: Sequence[int | None], i: int) -> list[Any]:
    return [x if d is None else x.select(d, i) for x, d in zip(inputs, dims, strict=True)]


def _moved(
    spec: Spec, inputs: Sequence[Any], dims: Sequence[int | None], logical: Sequence[Any], size: int
) -> list[Any]:
    """The inputs with the new dimension as the first leading one."""
    fields = list(spec.inputs.values())
    ranks = [x.dim() - f.rank for f, x in zip(fields, logical, strict=True) if x is not None and f.leading]
    moved = []
    for field, x, d in zip(fields, inputs, dims, strict=True):
        if x is None or (d is None and (not field.leading or spec.leading == "broadcast")):
            moved.append(x)
            continue
        x = x.movedim(d, 0) if d is not None else x.expand(size, *x.shape)
        while x.dim() - 1 - field.rank < max(ranks):
            x = x.unsqueeze(1)
        moved.append(x)
    return moved


def _one_by_one(call: Any, inputs: Sequence[Any], dims: Sequence[int | None], size: int) -> Any:
    """A call per element, for what the op has no leading dimension for: a weight, or packed sequences."""
    if not size:  # the shapes of one say those of none
        shapes = [
            None if d is None else [*x.shape[:d], *x.shape[d + 1 :]]
            for x, d in zip(inputs, dims, strict=True)
        ]
        given = [x if s is None else x.new_zeros(s) for x, s in zip(inputs, shapes, strict=True)]
        found = call(given)
        if isinstance(found, tuple):
            return tuple(each.new_empty((0, *each.shape)) for each in found)
        return found.new_empty((0, *found.shape))
    made = [call(_elements(inputs, dims, i)) for i in range(size)]
    if isinstance(made[0], tuple):
        return tuple(torch.stack(each) for each in zip(*made, strict=True))
    return torch.stack(made)
