"""A case: one call of an op, with a stable id from which it can be rebuilt.

An id reads op/types/shape/values/layout[/mode], for example
`softmax/bfloat16/N=33,lead=3x5/normal/contiguous`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from portable.conformance.cases.inputs import DTYPES, LAYOUTS, NAMED_LAYOUTS, NAMED_VALUES, VALUES
from portable.spec.model import Input, Output, Spec, size_of

MODES = ("", "out", "in_place", "grad")

Types = tuple[tuple[str, str], ...]
"""A row of the spec's types: variable and dtype."""


class UnknownCase(ValueError):
    """A case id that names nothing; the message says which part."""


@dataclass(frozen=True)
class Shape:
    """Axis sizes, leading dimensions per input, parameters and absent inputs: what fixes all shapes."""

    axes: tuple[tuple[str, int], ...]
    leading: tuple[tuple[str, tuple[int, ...]], ...] = ()
    params: tuple[tuple[str, Any], ...] = ()
    absent: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"{name}={size}" for name, size in self.axes]
        texts = {name: "x".join(map(str, dims)) for name, dims in self.leading if dims}
        if texts and len(set(texts.values())) == 1 and len(texts) == len(self.leading):
            parts.append(f"lead={next(iter(texts.values()))}")
        else:
            parts += [f"lead.{name}={text}" for name, text in texts.items()]
        parts += [f"{name}={value}" for name, value in self.params]
        if self.absent:
            parts.append("no=" + "+".join(self.absent))
        return ",".join(parts)


@dataclass(frozen=True)
class Case:
    """One call of one op: types, shape, value class, layout and mode ("" for a plain call, "out" for
    `out=`, "in_place" for an input as `out=`, "grad" for the gradients through autograd)."""

    op: str
    types: tuple[tuple[str, str], ...]
    shape: Shape
    values: str = "normal"
    layout: str = "contiguous"
    mode: str = ""

    @property
    def id(self) -> str:
        parts = [self.op, types_text(dict(self.types)), str(self.shape), self.values, self.layout]
        return "/".join(parts + [self.mode] * bool(self.mode))

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.shape.params)

    def dtype(self, name: str) -> str:
        """A type variable of the spec, or a dtype itself, as a dtype's name."""
        return dict(self.types).get(name, name)


def types_text(types: Mapping[str, str]) -> str:
    """`bfloat16`, or `bfloat16,W=float32` where a variable differs from the first."""
    variables = {name: dtype for name, dtype in types.items() if name != "acc"}
    first = next(iter(variables.values()))
    return ",".join([first] + [f"{name}={dtype}" for name, dtype in variables.items() if dtype != first])


# Shapes of the tensors of a case ------------------------------------------------------------------


def axis_param(spec: Spec) -> str | None:
    """The parameter that says which dimension is the last axis of the spec, if the op has one."""
    return next((param.name for param in spec.params.values() if param.type == "axis"), None)


def tensor_shape(
    spec: Spec, shape: Shape, tensor: Input | Output, leading: tuple[int, ...]
) -> tuple[int, ...]:
    """A tensor's shape as the caller sees it, its axis where the axis parameter puts it."""
    axes = dict(shape.axes)
    own = tuple(size_of(dim, axes) for dim in tensor.dims)
    full = (*leading, *own) if tensor.leading else own
    name = axis_param(spec)
    if name is not None and tensor.leading and full:
        position = dict(shape.params).get(name, spec.params[name].default)
        moved = list(full[:-1])
        moved.insert(position % len(full), full[-1])
        full = tuple(moved)
    return full


def input_shapes(spec: Spec, shape: Shape) -> dict[str, tuple[int, ...]]:
    """The shape of every input that is present, in the spec's order."""
    leading = dict(shape.leading)
    return {
        name: tensor_shape(spec, shape, tensor, leading.get(name, ()))
        for name, tensor in spec.inputs.items()
        if name not in shape.absent
    }


def params_of(spec: Spec, case: Case) -> dict[str, Any]:
    """The parameters of a case's call: its own, and those that say a dtype, by its types."""
    return case.params | {name: DTYPES[dtype] for name, dtype in spec.dtype_params(dict(case.types)).items()}


def params_by_default(spec: Spec, case: Case) -> dict[str, Any]:
    """The parameters of a case, those by default as well."""
    return {name: param.default for name, param in spec.params.items()} | case.params


def formula_values(spec: Spec, case: Case) -> dict[str, Any]:
    """What the formulas of a spec may name: dtypes, sizes, "B", parameters."""
    types = dict(case.types)
    sizes = dict(case.shape.axes) | {"B": leading_size(spec, case.shape)}
    return types | sizes | params_by_default(spec, case) | spec.dtype_params(types)


def below(spec: Spec, shape: Shape, name: str) -> int | None:
    """The number that every value of an index input is below; None for any other input."""
    field = spec.inputs.get(name)
    limit = field.below if field is not None else None
    return dict(shape.axes)[limit] if isinstance(limit, str) else limit


def otherwise(spec: Spec, shape: Shape, name: str) -> int | None:
    """The value that an index input may have besides those below its limit; None where there is none."""
    field = spec.inputs.get(name)
    value = field.otherwise if field is not None else None
    return dict(shape.params).get(value, spec.params[value].default) if isinstance(value, str) else value


def leading_size(spec: Spec, shape: Shape) -> int:
    """B: how many leading elements the call has, broadcast."""
    import torch

    dims = [leading for _, leading in shape.leading]
    count = 1
    for size in torch.broadcast_shapes(*dims) if dims else ():
        count *= size
    return count


def make_shape(
    spec: Spec,
    axes: Mapping[str, int],
    leading: Any = (),
    params: Mapping[str, Any] | None = None,
    absent: Iterable[str] = (),
) -> Shape:
    """A Shape in canonical order. `leading` is one shape for every input that has leading dimensions, or
    one per input by name; parameters that are None are left out, and those that say a dtype (`params_of`)."""
    names = [name for name, tensor in spec.inputs.items() if tensor.leading]
    by_input = leading if isinstance(leading, Mapping) else dict.fromkeys(names, tuple(leading))
    ordered = tuple((name, tuple(by_input.get(name, ()))) for name in names)
    gone = tuple(name for name in spec.inputs if name in set(absent))
    kept = tuple(
        (name, value)
        for name, value in (params or {}).items()
        if value is not None and name not in spec.dtype_variables
    )
    return Shape(tuple((name, axes[name]) for name in spec.axes), ordered, kept, gone)


# Ids ---------------------------------------------------------------------------------------------


def op_of(case: str) -> str:
    """The op of a case's id."""
    return case.partition("/")[0]


def canonical(case: Case, spec: Spec) -> Case:
    """The case with the first row of types that its present inputs and its parameters allow: an absent input
    does not restrict the row."""
    dtypes = {
        name: case.dtype(each.dtype) for name, each in spec.inputs.items() if name not in case.shape.absent
    }
    row = spec.match_types(dtypes | spec.dtype_params(dict(case.types)))
    return case if row is None else replace(case, types=tuple(row.items()))


def parse(text: str, spec: Spec) -> Case:
    """The case that `text` names, rebuilt from the id alone. Raises UnknownCase."""
    parts = text.split("/")
    if len(parts) not in (5, 6):
        raise UnknownCase(f"{text!r} is not op/types/shape/values/layout[/mode]")
    op, types, shape, values, layout = parts[:5]
    mode = parts[5] if len(parts) == 6 else ""
    if op != spec.op:
        raise UnknownCase(f"{text!r} is not a case of {spec.op}")
    row = next((row for row in spec.types if types_text(row) == types), None)
    if row is None:
        raise UnknownCase(f"{types!r}: expected one of {', '.join(map(types_text, spec.types))}")
    for what, known in ((values, VALUES | NAMED_VALUES), (layout, LAYOUTS + NAMED_LAYOUTS), (mode, MODES)):
        if what not in known:
            raise UnknownCase(f"{what!r}: expected one of {', '.join(filter(None, known))}")
    case = canonical(Case(op, tuple(row.items()), _parse_shape(shape, spec), values, layout, mode), spec)
    if case.id != text:
        raise UnknownCase(f"{text!r}: did you mean {case.id!r}?")
    return case


def _parse_shape(text: str, spec: Spec) -> Shape:
    axes: dict[str, int] = {}
    leading: dict[str, tuple[int, ...]] = {}
    params: dict[str, Any] = {}
    absent: list[str] = []
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise UnknownCase(f"{part!r} in {text!r} is not name=value")
        try:
            if name in spec.axes:
                axes[name] = int(value)
            elif name == "lead":
                dims = tuple(map(int, value.split("x")))
                leading = {key: dims for key, tensor in spec.inputs.items() if tensor.leading}
            elif name.startswith("lead."):
                leading[name.removeprefix("lead.")] = tuple(map(int, value.split("x")))
            elif name == "no":
                absent = value.split("+")
            elif name in spec.params:
                params[name] = _parse_param(value, spec.params[name].type)
            else:
                raise UnknownCase(f"{name!r} in {text!r} is neither an axis nor a parameter of {spec.op}")
        except ValueError as error:
            raise (
                error if isinstance(error, UnknownCase) else UnknownCase(f"{part!r}: not a number")
            ) from error
    missing = [name for name in spec.axes if name not in axes]
    unknown = [name for name in (*absent, *leading) if name not in spec.inputs]
    if missing or unknown:
        what = f"{missing[0]} is missing" if missing else f"{unknown[0]!r} is no input of {spec.op}"
        raise UnknownCase(f"{text!r}: {what}")
    return make_shape(spec, axes, leading, params, absent)


def _parse_param(value: str, kind: str) -> Any:
    if kind in ("int", "axis"):
        return int(value)
    if kind == "float":
        return float(value)
    return value == "True" if kind == "bool" else value
