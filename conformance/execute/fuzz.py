"""Exploration: Hypothesis draws calls beyond the named cases for a while; a failure comes out shrunk.

The shrunk call is a case like any other: its id rebuilds it, and `ready` is the text that makes it part of
the suite, appended to regressions.txt.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st

import portable
from portable.conformance.cases.case import Case, axis_param, canonical, make_shape
from portable.conformance.cases.generate import (
    BOUNDARY,
    boundary_shapes,
    elements,
    lawful,
    legal,
    required_params,
    rows_of_types,
)
from portable.conformance.cases.inputs import LAYOUTS, VALUES
from portable.conformance.execute.runner import ApplyWaivers, Result, implementations, no_waivers, run_case
from portable.conformance.judge import reference
from portable.spec import registry
from portable.spec.model import Spec

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
    rows = rows_of_types(spec)
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
        optional = [each.name for each in spec.inputs.values() if each.optional]
        absent = draw(st.sets(st.sampled_from(optional))) if optional else set[str]()
        if spec.rules:  # drawn sizes seldom keep them: one of a known shape is drawn anew
            base = draw(st.sampled_from(boundary_shapes(spec)))
            name, params = draw(st.sampled_from(list(spec.axes))), dict(base.params)
            changed = {**dict(base.axes), name: axes[name]}
            axes = changed if lawful(spec, changed, params, absent) else dict(base.axes)
            absent = absent if lawful(spec, axes, params, absent) else set(base.absent)
        for param in spec.params.values():
            if param.type == "choice" and not param.required:
                others = [choice for choice in param.choices if choice != param.default]
                params[param.name] = draw(st.sampled_from([None, *others]))
        name = axis_param(spec)
        if name is not None:
            params[name] = draw(st.integers(-len(dims) - 1, len(dims)))
        shape = make_shape(spec, axes, leading, params, absent)
        layout = draw(st.sampled_from(LAYOUTS))
        case = Case(spec.op, draw(st.sampled_from(rows)), shape, draw(st.sampled_from(list(VALUES))), layout)
        return canonical(case, spec)

    strategy: Any = draw_case  # pyright does not always see what `composite` takes away
    return strategy().filter(lambda case: elements(spec, case.shape) <= LARGEST)


def fuzz_ops(
    ops: Sequence[str],
    device: torch.device,
    seconds: float,
    impls: Sequence[str] | None = None,
    apply_waivers: ApplyWaivers = no_waivers,
    on_failure: Callable[[Result], None] | None = None,
    begin: Callable[[Case], None] | None = None,
) -> tuple[list[Result], int]:
    """Draw calls for `seconds`, shared evenly among the ops and implementations.

    `begin` gets each call before it runs; `on_failure` gets each failure as soon as it is shrunk.
    Returns the failures, each shrunk to the smallest call that still fails, and how many were drawn.
    """
    pairs = [(op, name) for op in ops for name in implementations(op) if impls is None or name in impls]
    failures: list[Result] = []
    count = 0
    for op, impl in pairs:
        until = time.monotonic() + seconds / len(pairs)
        found: Result | None = None
        while found is None and time.monotonic() < until:
            found, drawn = _search(registry.spec(op), impl, device, apply_waivers, begin)
            count += drawn
        if found is not None:
            failures.append(found)
            if on_failure is not None:
                on_failure(found)
    return failures, count


def as_regression_line(result: Result) -> str:
    """The lines of regressions.txt that make a failure part of the suite: a comment with the date, the op,
    the implementation, the device and the first line of the message, and the case's id."""
    today = datetime.datetime.now(datetime.timezone.utc).date()
    reason = " ".join(result.message.splitlines()[:1]) or result.state
    head = f"# {today} {result.case.op}, {result.impl} on {portable.device()}: {reason}"
    return f"{head}\n{result.case.id}\n"


def _search(
    spec: Spec,
    impl: str,
    device: torch.device,
    apply_waivers: ApplyWaivers,
    begin: Callable[[Case], None] | None = None,
) -> tuple[Result | None, int]:
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
        if begin is not None:
            begin(case)
        result = apply_waivers(run_case(reference.materialize(case, spec), impl, device))
        if not result.conforms:
            raise _Failed(result)

    run: Any = trial  # nor what `given` does
    try:
        run()
    except _Failed as failure:
        return failure.result, count
    return None, count
