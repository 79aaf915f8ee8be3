"""An op's reference as an implementation: `{name: torch, run: reference}` in a spec."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from portable import dtypes

if TYPE_CHECKING:
    import torch

    from portable.spec.model import RoundedReference


def rounded(function: Callable[..., Any], entry: RoundedReference) -> Callable[..., Any]:
    """A function of the reference's arguments that computes in float32 (float64 for float64), with indices as
    int64, and rounds every output once, to its type in the row of the inputs' dtypes. A reference that takes
    `types` gets that row."""
    import torch

    names = tuple(inspect.signature(function).parameters)

    def widened(name: str, tensor: Any) -> Any:
        if tensor is None:
            return None
        if name in entry.indices:
            return tensor.long()
        if not tensor.is_floating_point():
            return tensor
        return tensor if tensor.dtype == torch.float64 else tensor.to(torch.float32)

    @functools.cache
    def row_and_outputs(
        given: tuple[torch.dtype | None, ...], said: tuple[str, ...]
    ) -> tuple[Mapping[str, str], tuple[torch.dtype, ...]]:
        """The row of types for inputs of these and the types that parameters say, and the outputs' types."""
        present = {name: of for name, of in zip(entry.inputs, given, strict=True) if of is not None}
        row = _row(entry, present, dict(zip(entry.dtype_variables.values(), said, strict=True)))
        return row, tuple(dtypes.of(row.get(dtype, dtype)).storage for _, dtype, _ in entry.outputs)

    def run(*ordered: Any, **named: Any) -> tuple[Any, ...] | Any:
        arguments = {**dict(zip(names, ordered, strict=False)), **named}
        given = {name: arguments.get(name) for name in entry.inputs}
        said = tuple([arguments.pop(name) for name in entry.dtype_variables])
        types = tuple([None if each is None else each.dtype for each in given.values()])
        row, kinds = row_and_outputs(types, said)
        if "types" in names:
            arguments["types"] = row
        arguments |= {name: widened(name, tensor) for name, tensor in given.items()}
        result = function(**arguments)
        if isinstance(result, Mapping):
            result = [result[name] for name, _, _ in entry.outputs]
        several = result if isinstance(result, (tuple, list)) else (result,)
        made = []
        for tensor, kind, (_, _, when) in zip(several, kinds, entry.outputs, strict=True):
            absent = when is not None and given[when] is None
            made.append(tensor.new_empty(0, dtype=kind) if absent else tensor.to(kind))
        return tuple(made) if len(made) > 1 else made[0]

    return run


def _row(entry: RoundedReference, given: Mapping[str, Any], said: Mapping[str, str]) -> Mapping[str, str]:
    """The row of types of these inputs and type variables; the call has been checked, so there is one."""
    names = {name: dtypes.of(dtype).name for name, dtype in given.items()}
    return next(
        row
        for row in entry.types
        if all(row.get(entry.inputs[name], entry.inputs[name]) == dtype for name, dtype in names.items())
        and all(row[variable] == dtype for variable, dtype in said.items())
    )
