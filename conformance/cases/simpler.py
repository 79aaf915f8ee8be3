"""Simpler forms of a case, the simplest first: what `reduce` tries of a case that fails.

A way changes one thing: the whole shape, mode, layout, types, values, parameters, absent inputs, leading
dimensions, the size of an axis. Each of its forms is simpler than the case in that, so that going on from a
form ends. Only forms that the spec's rules allow and that an id names are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from portable.conformance.cases.case import Case, Shape, Types, UnknownCase, canonical, make_shape, parse
from portable.conformance.cases.generate import (
    boundary_shapes,
    elements,
    lawful,
    required_params,
    rows_of_types,
    spec_shapes,
    variant_shapes,
)
from portable.spec.model import Spec

Way: TypeAlias = Callable[[Case, Spec], Iterator[Case]]

SIMPLE_VALUES = ("small_integers", "normal")
"""Value classes that are easier to follow by hand than the others, the easiest first."""
EVERY_SIZE = 33
"""Up to here sizes beside a power of two are tried on both sides, beyond it on one."""
OTHER_SHAPES = 12
"""Shapes of the spec that are tried, the smallest first."""


def ways(spec: Spec) -> dict[str, Way]:
    """The ways by name, in the order in which they save the most."""
    return {
        "shape": _shapes, "mode": _modes, "layout": _layouts, "types": _types, "values": _values,
        "parameters": _params, "absent": _absent, "leading": _leading,
        **{f"size of {axis}": partial(_sizes, axis) for axis in spec.axes},
    }  # fmt: skip


def forms(way: Way, case: Case, spec: Spec) -> Iterator[Case]:
    """The forms of a case by one way that are legal calls of the op and have an id."""
    for form in way(case, spec):
        form = canonical(form, spec)
        if form != case and _is_legal(form, spec) and _has_id(form, spec):
            yield form


def _is_legal(case: Case, spec: Spec) -> bool:
    shape, axes = case.shape, dict(case.shape.axes)
    for name, size in axes.items():
        axis = spec.axes[name]
        if size < axis.low or (axis.high is not None and size > axis.high):
            return False
    # The norm-wise bound of gradients does not know a normalised row of one element (generate.mode_cases).
    if case.mode == "grad" and not spec.boundary and 1 in axes.values():
        return False
    return lawful(spec, axes, dict(shape.params), shape.absent)


def _has_id(case: Case, spec: Spec) -> bool:
    try:
        return parse(case.id, spec) == case
    except UnknownCase:
        return False


# The ways -----------------------------------------------------------------------------------------


def _shapes(case: Case, spec: Spec) -> Iterator[Case]:
    """The spec's shapes of fewer elements: those of an op with many rules keep them."""
    now = elements(spec, case.shape)
    every = dict.fromkeys([*spec_shapes(spec), *boundary_shapes(spec), *variant_shapes(spec)])
    smaller = sorted((elements(spec, shape), number, shape) for number, shape in enumerate(every)
                     if 0 < elements(spec, shape) < now)  # fmt: skip
    yield from (replace(case, shape=shape) for _, _, shape in smaller[:OTHER_SHAPES])


def _modes(case: Case, spec: Spec) -> Iterator[Case]:
    if case.mode:
        yield replace(case, mode="")


def _layouts(case: Case, spec: Spec) -> Iterator[Case]:
    if case.layout != "contiguous":
        yield replace(case, layout="contiguous")


def _types(case: Case, spec: Spec) -> Iterator[Case]:
    """Rows of fewer dtypes, float32 ahead of the others."""

    def rank(row: Types) -> tuple[int, bool]:
        own = {dtype for name, dtype in row if name != "acc"}
        return len(own), own != {"float32"}

    for row in sorted(rows_of_types(spec), key=rank):
        if rank(row) < rank(case.types):
            yield replace(case, types=row)


def _values(case: Case, spec: Spec) -> Iterator[Case]:
    for values in SIMPLE_VALUES:
        if values == case.values:
            return
        yield replace(case, values=values)


def _params(case: Case, spec: Spec) -> Iterator[Case]:
    """All parameters by default, then each; of the required ones earlier settings of the spec's cases."""
    params = case.params
    required = {name: value for name, value in params.items() if spec.params[name].required}
    if len(required) < len(params):
        yield _with(case, spec, params=required)
        for name in [name for name in params if name not in required]:
            yield _with(case, spec, params={key: each for key, each in params.items() if key != name})
    for setting in required_params(spec):
        if setting == required:
            return
        yield _with(case, spec, params={**params, **setting})


def _absent(case: Case, spec: Spec) -> Iterator[Case]:
    """Without all optional inputs, then without each."""
    present = [each.name for each in spec.inputs.values()
               if each.optional and each.name not in case.shape.absent]  # fmt: skip
    if len(present) > 1:
        yield _with(case, spec, absent=[*case.shape.absent, *present])
    for name in present:
        yield _with(case, spec, absent=[*case.shape.absent, name])


def _leading(case: Case, spec: Spec) -> Iterator[Case]:
    """No leading dimensions, one fewer, or a smaller one; of all inputs at once, counted from the right."""
    now = dict(case.shape.leading)
    rank = max(map(len, now.values()), default=0)
    if not rank:
        return
    yield _with(case, spec, leading=dict.fromkeys(now, ()))
    for place in range(-rank, 0):
        yield _with(case, spec, leading={name: _without(dims, place) for name, dims in now.items()})
    for place in range(-rank, 0):
        size = max(dims[place] for dims in now.values() if len(dims) >= -place)
        for small in smaller_sizes(size):
            changed = {
                name: tuple(
                    small if index == len(dims) + place and each == size else each
                    for index, each in enumerate(dims)
                )
                for name, dims in now.items()
            }
            yield _with(case, spec, leading=changed)


def _without(dims: tuple[int, ...], place: int) -> tuple[int, ...]:
    return tuple(each for index, each in enumerate(dims) if index != len(dims) + place)


def _sizes(axis: str, case: Case, spec: Spec) -> Iterator[Case]:
    """Smaller sizes of one axis; where the rules want another axis of the same size, of both."""
    now = dict(case.shape.axes)
    equal = [name for name, size in now.items() if size == now[axis]]
    for small in smaller_sizes(now[axis]):
        alone = _with(case, spec, axes={**now, axis: small})
        yield alone if _is_legal(alone, spec) else _with(case, spec, axes=now | dict.fromkeys(equal, small))


def smaller_sizes(size: int) -> list[int]:
    """Sizes from 1 on below `size`, ascending: powers of two and their neighbours, and, behind the last of
    these, the next, the middle one and the one before `size`, so that trying again closes in."""
    rungs = {1, 3}
    power = 2
    while power <= size:
        rungs |= {power, power + 1} | ({power - 1} if power <= EVERY_SIZE else set())
        power *= 2
    below = sorted(each for each in rungs if 0 < each < size)
    last = below[-1] if below else 0
    closer = (last + 1, (last + size) // 2, size - 1)
    return sorted({*below, *(each for each in closer if last < each < size)})


def _with(case: Case, spec: Spec, **changes: Any) -> Case:
    """The case with some parts of its shape changed."""
    old: Shape = case.shape
    parts: Mapping[str, Any] = {
        "axes": dict(old.axes),
        "leading": dict(old.leading),
        "params": dict(old.params),
        "absent": old.absent,
        **changes,
    }
    return replace(case, shape=make_shape(spec, **parts))
