"""Cases: what a run asks of an op, each with a stable id from which it can be rebuilt.

An id reads op/types/shape/values/layout[/mode], for example
`softmax/bfloat16/N=33,lead=3x5/normal/contiguous`. Shapes are the spec's own cases first, then sizes
around the powers of two where masks and tails go wrong, then primes. Shape, types, values and layout
are combined pairwise: every pair of choices meets in some case, their full product does not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from portable.conformance.inputs import DTYPES, LAYOUTS, VALUES
from portable.spec import Axis, Input, Output, Spec

SMOKE_LIMIT = 36
SMOKE_MODES = 4
LARGE = 1 << 16
"""Elements of one tensor beyond which a shape is left out of the `out=` and gradient cases."""

BOUNDARY = (31, 257, 64, 1, 127, 33, 129, 2, 255, 63, 32, 128, 65, 7, 256, 61, 130, 251)
"""Sizes around powers of two, and primes, in an order that puts unlike sizes side by side."""
STRIDES = (1, 5, 7)
"""How far apart the axes walk through BOUNDARY, so that each size meets several of the others."""

MODES = ("", "out", "grad")


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
    `out=`, "grad" for the gradients through autograd)."""

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
    own = tuple(axes[dim] if isinstance(dim, str) else dim for dim in tensor.dims)
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


def leading_size(spec: Spec, shape: Shape) -> int:
    """B: how many leading elements the call has, broadcast."""
    import torch

    dims = [leading for _, leading in shape.leading]
    count = 1
    for size in torch.broadcast_shapes(*dims) if dims else ():
        count *= size
    return count


# Making cases -------------------------------------------------------------------------------------


def make_shape(
    spec: Spec,
    axes: Mapping[str, int],
    leading: Any = (),
    params: Mapping[str, Any] | None = None,
    absent: Iterable[str] = (),
) -> Shape:
    """A Shape in canonical order. `leading` is one shape for every input that has leading dimensions, or
    one per input by name; parameters that are None are left out."""
    names = [name for name, tensor in spec.inputs.items() if tensor.leading]
    by_input = leading if isinstance(leading, Mapping) else dict.fromkeys(names, tuple(leading))
    ordered = tuple((name, tuple(by_input.get(name, ()))) for name in names)
    gone = tuple(name for name in spec.inputs if name in set(absent))
    kept = tuple((name, value) for name, value in (params or {}).items() if value is not None)
    return Shape(tuple((name, axes[name]) for name in spec.axes), ordered, kept, gone)


def spec_shapes(spec: Spec) -> list[Shape]:
    """The shapes of the spec's own cases, in its order."""
    return [make_shape(spec, case.axes, case.leading, case.params, case.absent) for case in spec.cases]


def boundary_shapes(spec: Spec) -> list[Shape]:
    """Every size of BOUNDARY in every axis, with changing sizes of the others, and rows to match."""
    required = required_params(spec)
    shapes = []
    for turn, _ in enumerate(BOUNDARY):
        axes = {}
        for place, axis in enumerate(spec.axes.values()):
            step = STRIDES[place % len(STRIDES)]
            axes[axis.name] = legal(axis, BOUNDARY[(turn * step + place) % len(BOUNDARY)])
        lead: tuple[int, ...] = ()
        if spec.leading == "same":
            lead = (BOUNDARY[(turn * 7 + 3) % len(BOUNDARY)],)
        shapes.append(make_shape(spec, axes, lead, required[turn % len(required)]))
    return shapes


def legal(axis: Axis, size: int) -> int:
    """The legal size of an axis that is nearest to `size`."""
    size = max(size, axis.low)
    return size if axis.high is None else min(size, axis.high)


def variant_shapes(spec: Spec) -> list[Shape]:
    """Other dimensions for an axis parameter, no leading dimensions, absent inputs, zero rows."""
    axes = {name: legal(axis, 40 + place) for place, (name, axis) in enumerate(spec.axes.items())}
    params = required_params(spec)[0]
    shapes = []
    name = axis_param(spec)
    if name is not None:
        for dim in (0, 1, -2, 2):
            shapes.append(make_shape(spec, axes, (3, 5), {**params, name: dim}))
    if spec.leading == "same":
        shapes.append(make_shape(spec, axes, (), params))
        shapes.append(make_shape(spec, axes, (0,), params))
        shapes.append(make_shape(spec, axes, (2, 1, 3, 2), params))
    for tensor in spec.inputs.values():
        if tensor.optional:
            shapes.append(make_shape(spec, axes, (6,), params, [tensor.name]))
    return shapes


def required_params(spec: Spec) -> list[dict[str, Any]]:
    """Parameter settings for shapes that are not the spec's own: the settings its cases use."""
    needed = [param.name for param in spec.params.values() if param.required]
    if not needed:
        return [{}]
    found = []
    for case in spec.cases:
        setting = {name: case.params[name] for name in needed}
        if setting not in found:
            found.append(setting)
    return found


def elements(spec: Spec, shape: Shape) -> int:
    """Elements of the largest input."""
    largest = 0
    for dims in input_shapes(spec, shape).values():
        count = 1
        for size in dims:
            count *= size
        largest = max(largest, count)
    return largest


def cases(spec: Spec, tier: str = "core") -> list[Case]:
    """The cases of one op: tier "smoke" (under 40) or "core" (a few hundred, the smoke cases first)."""
    types = [tuple(row.items()) for row in spec.types if all(dtype in DTYPES for dtype in row.values())]
    own = spec_shapes(spec)
    shapes = list(dict.fromkeys(own + boundary_shapes(spec) + variant_shapes(spec)))
    factors: list[list[Any]] = [types, list(VALUES), list(LAYOUTS), shapes]
    plain = [Case(spec.op, types[number % len(types)], shape) for number, shape in enumerate(own)]
    met = [
        tuple(map(list.index, factors, (case.types, case.values, case.layout, case.shape))) for case in plain
    ]
    for row in pairwise([len(factor) for factor in factors], met):
        chosen = [factor[index] for factor, index in zip(factors, row, strict=True)]
        plain.append(Case(spec.op, chosen[0], chosen[3], chosen[1], chosen[2]))
    extra = list(mode_cases(spec, types))
    if tier == "smoke":
        extra = extra[:SMOKE_MODES]
        plain = plain[: SMOKE_LIMIT - len(extra)]
    return list(dict.fromkeys(canonical(case, spec) for case in plain + extra))


def canonical(case: Case, spec: Spec) -> Case:
    """The case with the first row of types that its present inputs allow: an absent input tells no type."""
    dtypes = {
        name: case.dtype(each.dtype) for name, each in spec.inputs.items() if name not in case.shape.absent
    }
    row = spec.match_types(dtypes)
    return case if row is None else replace(case, types=tuple(row.items()))


def mode_cases(spec: Spec, types: list[tuple[tuple[str, str], ...]]) -> Iterator[Case]:
    """`out=` and gradient cases: the spec's shapes, every type in turn, N(0, 1) data.

    Gradients are not asked where an axis is 1: a normalised row of one element has a gradient that is all
    cancellation, which the norm-wise bound does not know; the companion op's own magnitude does.
    """
    modes = ["out"] * (spec.out is not None) + ["grad"] * (spec.gradient is not None)
    shapes = [shape for shape in spec_shapes(spec) if elements(spec, shape) <= LARGE]
    shapes.sort(key=lambda shape: -elements(spec, shape))
    for number in range(max(len(shapes), len(types))):
        shape = shapes[number % len(shapes)]
        for mode in modes:
            if mode != "grad" or 1 not in dict(shape.axes).values():
                yield Case(spec.op, types[number % len(types)], shape, mode=mode)


def pairwise(sizes: list[int], met: Iterable[tuple[int, ...]] = ()) -> Iterator[tuple[int, ...]]:
    """Rows of indices, one per factor, in which every pair of choices of two factors meets.

    Greedy and deterministic: each row starts from a pair not met yet and fills the other factors with
    whichever choice meets the most new pairs, ties in rotation. Rows in `met` count as there already.
    """
    count = len(sizes)
    missing = {
        (one, a, two, b)
        for one, two in combinations(range(count), 2)
        for a in range(sizes[one])
        for b in range(sizes[two])
    }
    for there in met:
        missing -= _pairs(there)
    queue = sorted(missing, key=_scattered)
    turn = 0
    while queue:
        seed = queue.pop()
        if seed not in missing:
            continue
        turn += 1
        row: dict[int, int] = {seed[0]: seed[1], seed[2]: seed[3]}
        for factor in (place for place in range(count) if place not in row):
            new = [
                sum(_pair(o, row[o], factor, choice) in missing for o in row)
                for choice in range(sizes[factor])
            ]
            row[factor] = max(range(sizes[factor]), key=lambda c: (new[c], -((c - turn) % sizes[factor])))
        done = tuple(row[place] for place in range(count))
        missing -= _pairs(done)
        yield done


def _scattered(pair: tuple[int, int, int, int]) -> int:
    """An order that mixes the factors, so that a prefix of the rows touches all of them."""
    mixed = 0
    for number in pair:
        mixed = (mixed ^ (number + 1)) * 2654435761 % 2**32
        mixed ^= mixed >> 15
    return mixed


def _pair(one: int, a: int, two: int, b: int) -> tuple[int, int, int, int]:
    return (one, a, two, b) if one < two else (two, b, one, a)


def _pairs(row: tuple[int, ...]) -> set[tuple[int, int, int, int]]:
    return {(one, row[one], two, row[two]) for one, two in combinations(range(len(row)), 2)}


# From an id back to a case ------------------------------------------------------------------------


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
    for what, known in ((values, VALUES), (layout, LAYOUTS), (mode, MODES)):
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
