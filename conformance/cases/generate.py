"""The cases of each tier, from an op's spec.

Shapes are the spec's own cases first, then sizes
around the powers of two where masks and tails go wrong, then primes. Shape, types, values and layout
are combined pairwise: every pair of choices is in some case, their full product does not run. The probes,
mixed layouts and sizes around 2^16 are combined with a few shapes only.

Tier "full" adds much of the product and the bench shapes: it is meant for GPUs, not for emulated ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from portable import dtypes
from portable.conformance.cases.case import (
    Case,
    Shape,
    Types,
    UnknownCase,
    axis_param,
    canonical,
    input_shapes,
    make_shape,
    parse,
)
from portable.conformance.cases.inputs import LAYOUTS, VALUES
from portable.conformance.cases.pairwise import pairwise
from portable.errors import SpecError
from portable.spec import registry
from portable.spec.model import Axis, Spec

TIERS = ("smoke", "core", "full")
SMOKE_LIMIT = 36
SMOKE_MODES = 4
SMOKE_PROBES = 6
LARGE = 1 << 16
"""Elements of one tensor beyond which a shape is left out of the `out=` and gradient cases."""
MODEST = 1 << 8
"""Elements of one tensor below which a shape says little about layouts."""
BENCH_FLOPS = 1e12
"""Work beyond which a bench shape is no case: the float64 oracle would take more than half a minute."""
BENCH_FLOPS_OF_PAIRS, BENCH_ELEMENTS_OF_PAIRS = 2e10, 1 << 24
"""The same, and elements of one tensor, for an op whose spec has boundary shapes: the oracle of an op over
pairs keeps all of them in memory."""
REGRESSIONS = Path(__file__).with_name("regressions.txt")

BOUNDARY = (31, 257, 64, 1, 127, 33, 129, 2, 255, 63, 32, 128, 65, 7, 256, 61, 130, 251)
"""Sizes around powers of two, and primes, in an order that puts unlike sizes side by side."""
STRIDES = (1, 5, 7)
"""Step of each axis through BOUNDARY: each size is combined with several of the others."""

HUGE = (65535, 65536, 65537)
"""Sizes on both sides of 2^16, in one axis of a shape whose others are 3: fewer would make a normalised
row the same but for signs. An op with boundary shapes of its own, as attention, whose kernels have a block
for each head of 2 tokens, has 65536 or 65537 in each axis in 16 bits; tier "full" has all in all types."""
PROBE_INDICES = (1, 6, 12, 15)
ODD_INDEX = 6
"""Which of the boundary shapes the probes take, and which one is the odd shape of tier "full"."""

PROBES = ("one_hot", "powers_of_two", "signed_zero")
"""Value classes combined with every type and layout, but with few shapes."""
MIXED = "mixed"
"""The layout combined with every type and value class, but with few shapes; ops of one input do not have
it."""

Item = TypeVar("Item")


# Making cases -------------------------------------------------------------------------------------


def spec_shapes(spec: Spec) -> list[Shape]:
    """The shapes of the spec's own cases, in its order."""
    return [make_shape(spec, case.axes, case.leading, case.params, case.absent) for case in spec.cases]


def boundary_shapes(spec: Spec) -> list[Shape]:
    """The spec's own boundary shapes, or every size of BOUNDARY in every axis, with changing sizes of the
    others, and rows to match."""
    if spec.boundary:
        return [make_shape(spec, each.axes, each.leading, each.params, each.absent) for each in spec.boundary]
    required = required_params(spec)
    shapes = []
    for index, _ in enumerate(BOUNDARY):
        axes = {}
        for place, axis in enumerate(spec.axes.values()):
            step = STRIDES[place % len(STRIDES)]
            axes[axis.name] = legal(axis, BOUNDARY[(index * step + place) % len(BOUNDARY)])
        lead: tuple[int, ...] = ()
        if spec.leading == "same":
            lead = (BOUNDARY[(index * 7 + 3) % len(BOUNDARY)],)
        shapes.append(make_shape(spec, axes, lead, required[index % len(required)]))
    return shapes


def legal(axis: Axis, size: int) -> int:
    """The legal size of an axis that is nearest to `size`."""
    size = max(size, axis.low)
    return size if axis.high is None else min(size, axis.high)


def variant_shapes(spec: Spec) -> list[Shape]:
    """Other dimensions for an axis parameter, no leading dimensions, absent inputs, zero rows; none where the
    spec has boundary shapes, which then show all this."""
    if spec.boundary:
        return []
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
    needed = [param.name for param in spec.params.values() if param.required and param.type != "dtype"]
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


def huge_shapes(spec: Spec) -> list[Shape]:
    """Each size of HUGE in each axis, and in the leading dimension of an op over rows."""
    required = required_params(spec)
    rows = [""] if any(each.leading for each in spec.inputs.values()) and spec.leading == "same" else []
    few = 2 if spec.boundary else 3
    absent = [each.name for each in spec.inputs.values() if each.optional] if spec.boundary else []
    shapes = []
    for place in [*spec.axes, *rows]:
        for size in HUGE:
            axes = {name: legal(axis, size if name == place else few) for name, axis in spec.axes.items()}
            lead = (few if place else size,) if rows else ()
            if spec.boundary and place:
                lead = ()
            params = required[len(shapes) % len(required)]
            axes = _by_the_rules(spec, axes, place, size, params, absent)
            shapes.append(make_shape(spec, axes, lead, params, absent))
    return shapes


def _one_beyond_2_16(shapes: Sequence[Shape]) -> list[Shape]:
    """Of the sizes of HUGE in each axis the second or the third, in turn."""
    by_axis = [shapes[start : start + len(HUGE)] for start in range(0, len(shapes), len(HUGE))]
    return [sizes[1 + number % 2] for number, sizes in enumerate(by_axis)]


def _by_the_rules(
    spec: Spec,
    axes: Mapping[str, int],
    place: str,
    size: int,
    params: Mapping[str, Any],
    absent: Sequence[str],
) -> Mapping[str, int]:
    """`axes`, with one or two others at their least or at the same size where the spec's rules want it so."""
    others = [{axis.name: legal(axis, each)} for axis in spec.axes.values() if axis.name != place
              for each in (0, size)]  # fmt: skip
    pairs = sorted((one | two for one in others for two in others), key=lambda each: sum(each.values()))
    tries = [{}, *others, *pairs]
    return next({**axes, **each} for each in tries if lawful(spec, {**axes, **each}, params, absent))


def lawful(
    spec: Spec, axes: Mapping[str, int], params: Mapping[str, Any], absent: Collection[str] = ()
) -> bool:
    """Whether sizes, parameters and absent inputs keep the spec's rules, as far as these speak of nothing
    else."""
    values = {param.name: param.default for param in spec.params.values()} | dict(params)
    values |= {each.name: each.name not in absent for each in spec.inputs.values() if each.optional}
    rules = [rule.that for rule in spec.rules if rule.that.names <= {*axes, *values}]
    return all(rule.evaluate(**values, **axes) is True for rule in rules)


def cases(spec: Spec, tier: str = "core", file: Path = REGRESSIONS) -> list[Case]:
    """The cases of one op: tier "smoke" (about 40), "core" (a few hundred, the smoke cases first) or
    "full" (the core cases first). Raises UnknownCase for a wrong line of regressions.txt, SpecError for a row
    of types that no case can be made of. They are made once; `file`, of regressions, is read then."""
    return list(_cases(spec, tier, file))


@lru_cache(maxsize=256)
def _cases(spec: Spec, tier: str, file: Path) -> tuple[Case, ...]:
    types = rows_of_types(spec)
    plain, probes, extra = _paired(spec, types), _probes(spec, types), list(mode_cases(spec, types))
    modes = extra[:SMOKE_MODES]
    few = probes[-1:] + probes[: SMOKE_PROBES - 1]
    chosen = plain[: SMOKE_LIMIT - len(few) - len(modes)] + few + modes + regressions(spec, file, "smoke")
    if tier != "smoke":
        shapes, rows = huge_shapes(spec), types
        if spec.boundary:
            shapes = _one_beyond_2_16(shapes)
            rows = [row for row in types if dtypes.of(row[0][1]).bits == 16] or types
        huge = [Case(spec.op, rows[i % len(rows)], shape) for i, shape in enumerate(shapes)]
        chosen += plain + probes + huge + extra + regressions(spec, file)
    if tier == "full":
        chosen += [*_everything(spec, types), *regressions(spec, file, "full")]
    return tuple(dict.fromkeys(canonical(case, spec) for case in chosen))


def rows_of_types(spec: Spec) -> list[Types]:
    """Every row of the spec's types. SpecError, with its line, for one that the suite can make no case of."""
    for index, row in enumerate(spec.types):
        line = spec.type_lines[index] if spec.type_lines else None
        for output in spec.outputs.values():
            dtype = dtypes.of(row.get(output.dtype, output.dtype))
            if dtype.kind == "packed" or dtype.torch is None:
                problem = f"the suite cannot judge the output {output.name} of {dtype.name}"
                raise SpecError(spec.file, line, problem)
        for tensor in spec.inputs.values():
            dtype = dtypes.of(row.get(tensor.dtype, tensor.dtype))
            if dtype.torch is None and dtype.kind != "packed":
                problem = f"the input {tensor.name} is of {dtype.name}, which this torch does not have"
                raise SpecError(spec.file, line, problem)
    return [tuple(row.items()) for row in spec.types]


def _paired(spec: Spec, types: list[Types]) -> list[Case]:
    """The spec's own shapes, then types, values, layouts and shapes pairwise."""
    own = spec_shapes(spec)
    shapes = list(dict.fromkeys(own + boundary_shapes(spec) + variant_shapes(spec)))
    values = [name for name in VALUES if name not in PROBES]
    layouts = [name for name in LAYOUTS if name != MIXED]
    plain = [Case(spec.op, types[number % len(types)], shape) for number, shape in enumerate(own)]
    return plain + _combined(spec, [types, values, layouts, shapes], plain)


def _probes(spec: Spec, types: list[Types]) -> list[Case]:
    """The probes and the mixed layout, pairwise with types, layouts and a few shapes; every second shape
    without those optional inputs whose type another input has, or a parameter says: sums of products alone
    are exact."""
    types_needed = {each.dtype for each in spec.inputs.values() if not each.optional}
    types_needed |= set(spec.dtype_variables.values())
    optional = {each.name for each in spec.inputs.values() if each.optional and each.dtype in types_needed}
    every = boundary_shapes(spec)
    shapes = [every[index % len(every)] for index in PROBE_INDICES]
    for place in range(0, len(shapes), 2):
        absent = tuple(name for name in spec.inputs if name in optional or name in shapes[place].absent)
        shapes[place] = replace(shapes[place], absent=absent)
    several = len(spec.inputs) > 1
    layouts = [name for name in LAYOUTS if several or name != MIXED]
    probes = _combined(spec, [types, list(PROBES), layouts, shapes], [])
    if several:
        others = [name for name in VALUES if name not in PROBES]
        own = [shape for shape in spec_shapes(spec) if MODEST <= elements(spec, shape) <= LARGE] or shapes
        probes += [
            Case(spec.op, types[index % len(types)], own[index % len(own)], values, MIXED)
            for index, values in enumerate(reversed(others))
        ]
    return probes


def _combined(spec: Spec, factors: list[list[Any]], there: list[Case]) -> list[Case]:
    """Cases that hold every pair of choices that no case in `there` holds."""
    met = [
        tuple(map(list.index, factors, (case.types, case.values, case.layout, case.shape))) for case in there
    ]
    made = []
    for row in pairwise([len(factor) for factor in factors], met):
        types, values, layout, shape = (factor[i] for factor, i in zip(factors, row, strict=True))
        made.append(Case(spec.op, types, shape, values, layout))
    return made


def _everything(spec: Spec, types: list[Types]) -> Iterator[Case]:
    """What tier "full" adds: all shapes in all types, the spec's own with all values as well, all layouts
    and values in all types at one odd shape, and the bench shapes that the oracle can afford."""
    boundary = boundary_shapes(spec)
    odd = boundary[ODD_INDEX % len(boundary)]
    layouts = [name for name in LAYOUTS if len(spec.inputs) > 1 or name != MIXED]
    for row in types:
        for shape in spec_shapes(spec):
            yield from (Case(spec.op, row, shape, values) for values in VALUES)
        for shape in boundary_shapes(spec) + variant_shapes(spec) + huge_shapes(spec):
            yield Case(spec.op, row, shape)
        for values in VALUES:
            yield from (Case(spec.op, row, odd, values, layout) for layout in layouts)
    narrow = {row[0][1]: row for row in reversed(types) if dict(row)["acc"] != "float64"}
    most = BENCH_FLOPS_OF_PAIRS if spec.boundary else BENCH_FLOPS
    for each in spec.bench:
        params = {name: param.default for name, param in spec.params.items()} | dict(each.params)
        if float(spec.cost.flops.evaluate(**each.axes, **params, B=each.batch)) <= most:
            shape = make_shape(spec, each.axes, each.leading, each.params, each.absent)
            if not spec.boundary or elements(spec, shape) <= BENCH_ELEMENTS_OF_PAIRS:
                yield from (Case(spec.op, row, shape) for row in narrow.values())


def shard(items: Sequence[Item], i: int, n: int) -> list[Item]:
    """Part `i` of `n`, counted from 1: every n-th item, so that the parts cost about the same.

    Raises ValueError where there is no such part.
    """
    if not 1 <= i <= n:
        raise ValueError(f"there is no part {i} of {n}: expected 1 <= I <= N")
    return list(items[i - 1 :: n])


def mode_cases(spec: Spec, types: list[Types]) -> Iterator[Case]:
    """`out=`, an input as `out=` (by columns too where it may lie in any order), and gradient cases: the
    spec's shapes, the types in rotation, N(0, 1) data.

    No gradient cases where an axis is 1: a normalised row of one element has a gradient that is all
    cancellation, which the norm-wise bound does not know; the backward op's own error scale does.
    """
    out = spec.out
    modes = ["out"] * (out is not None) + ["in_place"] * (out is not None and out.in_place is not None)
    modes += ["grad"] * (spec.gradient is not None)
    shapes = [shape for shape in spec_shapes(spec) if elements(spec, shape) <= LARGE]
    shapes.sort(key=lambda shape: -elements(spec, shape))
    for number in range(max(len(shapes), len(types))):
        shape = shapes[number % len(shapes)]
        for mode in modes:
            if mode != "grad" or spec.boundary or 1 not in dict(shape.axes).values():
                yield Case(spec.op, types[number % len(types)], shape, mode=mode)
        if out is not None and out.in_place is not None and spec.inputs[out.in_place].layout == "any":
            yield Case(spec.op, types[number % len(types)], shape, layout="transposed", mode="in_place")


# Cases that fuzzing found ---------------------------------------------------------------


def regressions(spec: Spec, file: Path = REGRESSIONS, tier: str = "core") -> list[Case]:
    """The cases of `spec.op` in regressions.txt that `tier` has: an id a line, `#` begins a comment. Those
    whose comment is "smoke" are part of every tier, "full" of that alone, and the others of core and full.

    Raises UnknownCase with file and line for an id that names nothing, or of an op that there is not.
    """
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        text, _, comment = (part.strip() for part in line.partition("#"))
        if TIERS.index(comment if comment in TIERS else "core") > TIERS.index(tier):
            continue
        op = text.partition("/")[0]
        try:
            if text and op == spec.op:
                found.append(parse(text, spec))
            elif text and op not in registry.op_folders():
                raise UnknownCase(f"{text!r}: there is no op {op!r}")
        except UnknownCase as error:
            raise UnknownCase(f"{file.name}:{number}: {error}") from error
    return found
