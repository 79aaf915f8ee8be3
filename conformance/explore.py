"""Exploration: Hypothesis draws calls beyond the named cases for a while; a failure comes out shrunk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st

from portable import catalog
from portable.conformance import oracle
from portable.conformance.cases import (
    BOUNDARY,
    Case,
    axis_param,
    canonical,
    elements,
    legal,
    make_shape,
    required_params,
)
from portable.conformance.inputs import DTYPES, LAYOUTS, VALUES
from portable.conformance.runner import Excuse, Result, implementations, naked, run_case
from portable.spec import Spec

BATCH = 50
"""Examples per Hypothesis run: between two of them the clock is read."""
LARGEST = 1 << 17
"""Elements of one tensor beyond which a drawn call is thrown away: the oracle must stay fast."""


class _Failed(Exception):
    def __init__(self, result: Result):
        super().__init__(result.message)
        self.result = result


def calls(spec: Spec) -> st.SearchStrategy[Case]:
    """Legal calls of one op: types, sizes, leading dimensions, parameters, absences, values, layout."""
    rows = [tuple(row.items()) for row in spec.types if all(dtype in DTYPES for dtype in row.values())]
    sizes = st.integers(0, 300) | st.sampled_from(BOUNDARY)

    @st.composite
    def draw_case(draw: Any) -> Case:
        axes = {name: legal(axis, draw(sizes)) for name, axis in spec.axes.items()}
        dims = draw(st.lists(st.integers(0, 40), max_size=3).map(tuple))
        leading: Any = dims
        if spec.leading == "broadcast":
            names = [name for name, tensor in spec.inputs.items() if tensor.leading]
            leading = {name: tuple(draw(st.sampled_from([1, size])) for size in dims) for name in names}
        params = dict(draw(st.sampled_from(required_params(spec))))
        name = axis_param(spec)
        if name is not None:
            params[name] = draw(st.integers(-len(dims) - 1, len(dims)))
        optional = [each.name for each in spec.inputs.values() if each.optional]
        absent = draw(st.sets(st.sampled_from(optional))) if optional else ()
        shape = make_shape(spec, axes, leading, params, absent)
        layout = draw(st.sampled_from(LAYOUTS))
        case = Case(spec.op, draw(st.sampled_from(rows)), shape, draw(st.sampled_from(list(VALUES))), layout)
        return canonical(case, spec)

    return draw_case().filter(lambda case: elements(spec, case.shape) <= LARGEST)


def explore(
    ops: Sequence[str],
    device: torch.device,
    seconds: float,
    impls: Sequence[str] | None = None,
    excuse: Excuse = naked,
) -> tuple[list[Result], int]:
    """Draw calls for `seconds`, shared evenly among the ops and implementations.

    Returns the failures, each shrunk to the smallest call that still fails, and how many were drawn.
    """
    pairs = [(op, name) for op in ops for name in implementations(op) if impls is None or name in impls]
    failures: list[Result] = []
    count = 0
    for op, impl in pairs:
        until = time.monotonic() + seconds / len(pairs)
        found: Result | None = None
        while found is None and time.monotonic() < until:
            found, drawn = _search(catalog.spec(op), impl, device, excuse)
            count += drawn
        if found is not None:
            failures.append(found)
    return failures, count


def _search(spec: Spec, impl: str, device: torch.device, excuse: Excuse) -> tuple[Result | None, int]:
    """One batch of draws: the smallest failing result or None, and how many calls were drawn."""
    count = 0

    @settings(
        max_examples=BATCH,
        deadline=None,
        database=None,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=tuple(HealthCheck),  # pyright: ignore[reportArgumentType]
        report_multiple_bugs=False,
    )
    @given(calls(spec))
    def trial(case: Case) -> None:
        nonlocal count
        count += 1
        result = excuse(run_case(oracle.ask(case, spec), impl, device))
        if not result.conforms:
            raise _Failed(result)

    try:
        trial()
    except _Failed as failure:
        return failure.result, count
    return None, count
