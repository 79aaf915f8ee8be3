"""`portable trace`: run one call on a device that counts, and print what each of its launches did."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch

import portable
from portable.backend import Bound, Trace
from portable.commands import check
from portable.dispatch import dispatcher
from portable.errors import PortableError, listed
from portable.runtime import detect
from portable.runtime.tensors import random_tensor
from portable.spec.model import Case, Spec
from portable.tune.problem import Problem

_MOST_ELEMENTS = 2**16  # of the inputs, where the call's shapes are not given
_MOST_LINES = 40
_MOST_SOURCES = 3


def choose(arch: str | None) -> None:
    """Make a device that counts the active one: the one of architecture `arch`, the one that PORTABLE_BACKEND
    names, or the only one there is."""
    if arch is not None:
        backend, device = check.targets([arch])[0]
        if device.arch != arch:
            known = listed(each.arch for each in backend.targets())
            raise PortableError(f"--arch {arch!r} names a vendor; its devices are {known}")
        detect.override_backend(backend.name, arch, emulate=True)
    elif "PORTABLE_BACKEND" not in os.environ:
        detect.override_backend(emulate=True)


def inputs(
    spec: Spec, shapes: Mapping[str, tuple[int, ...] | None], types: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    """Normal numbers for a call, and indices below their limits, by input; what has no shape is left out."""
    source = torch.Generator().manual_seed(0)
    present = {name: shape for name, shape in shapes.items() if shape is not None}
    axes: dict[Any, int] = {}
    for name, shape in present.items():
        axes |= zip(reversed(spec.inputs[name].dims), reversed(shape), strict=False)
    made = {}
    for name, shape in present.items():
        below = spec.inputs[name].below
        limit = axes.get(below, 1) if isinstance(below, str) else below
        made[name] = random_tensor(shape, types[name], source, below=limit)
    return made


def with_derived(
    spec: Spec, made: Mapping[str, torch.Tensor], types: Mapping[str, str], params: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """`made`, with those inputs that follow from the others where not any numbers make sense."""
    derived = {name for name in made if spec.inputs[name].derived is not None}
    if not derived:
        return dict(made)
    shapes = {name: tuple(made[name].shape) if name in made else None for name in spec.inputs}
    dtypes = {name: types[name] for name in spec.inputs}
    problem = Problem(spec.op, dispatcher.candidates(spec.op)[0], shapes, dtypes, dict(params))
    rest = {name: None if name in derived else made.get(name) for name in spec.inputs}
    return {**made, **{name: each for name, each in problem.derived(rest).items() if name in derived}}


def small_case(spec: Spec) -> Case:
    """The largest of the spec's cases that an emulated GPU runs at once."""

    def elements(case: Case) -> int:
        return sum(torch.Size(shape).numel() for shape in shapes(spec, case).values())

    return max((case for case in spec.cases if elements(case) <= _MOST_ELEMENTS), key=elements)


def shapes(spec: Spec, case: Case) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs of a case of the spec."""
    present = [name for name in spec.inputs if name not in case.absent]
    return {name: (*case.leading.get(name, ()), *spec.sizes(name, case)) for name in present}


def run(spec: Spec, tensors: Mapping[str, Any], params: Mapping[str, Any], impl: str | None) -> list[Trace]:
    """The launches of one call, in order; `impl` pins an implementation or language."""
    backend = detect.main_backend()
    with backend.trace() as traces, portable.using(**{spec.op: impl}) if impl else nullcontext():
        dispatcher.op(spec.op)(**tensors, **params)
    return traces


def show(traces: Sequence[Trace]) -> None:
    """Tables on a terminal, one line per figure elsewhere."""
    for trace in traces:
        title = f"{trace.kernel} on a grid of {'x'.join(map(str, trace.grid))}"
        lines = sorted(trace.lines, key=lambda row: -row[1])
        rows = [*trace.rows, *_bound_rows(trace.bound)]
        if sys.stdout.isatty():
            _tables(title, rows, lines)
            continue
        print(title)
        for label, value in rows:
            print(f"    {label}: {_text(value)}")
        for line, count in lines:
            print(f"    {line}: {count} instructions")
    bounds = [trace.bound for trace in traces if trace.bound is not None]
    if len(bounds) > 1:
        print(f"all launches, one after the other: at most {together(bounds):.2f} of their roofs")


def together(bounds: Sequence[Bound]) -> float:
    """The bound of launches one after the other."""
    busiest = sum(bound.pipes[0].cycles for bound in bounds)
    return min(1.0, sum(bound.roof_cycles for bound in bounds) / busiest) if busiest else 1.0


def _bound_rows(bound: Bound | None) -> list[tuple[str, str]]:
    if bound is None:
        return []
    busiest = bound.pipes[0]
    rows = [("bound", f"at most {bound.share:.2f} of the {bound.roof} roof; busiest pipe: {busiest.name}")]
    for pipe in bound.pipes:
        text = f"{pipe.cycles:,} cycles"
        if pipe is busiest and pipe.lines:
            text += ", " + ", ".join(
                f"{count / pipe.cycles:.0%} in {line}" for line, count in pipe.lines[:_MOST_SOURCES]
            )
        rows.append((f"  {pipe.name} pipe", text))
    return rows


def as_data(op: str, inputs: Mapping[str, torch.Tensor], traces: Sequence[Trace]) -> dict[str, Any]:
    """A traced call for JSON."""
    bounds = [trace.bound for trace in traces if trace.bound is not None]
    return {
        "op": op,
        "inputs": {
            name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
            for name, tensor in inputs.items()
        },
        "share": together(bounds) if bounds else None,
        "launches": [
            {
                "kernel": trace.kernel,
                "grid": list(trace.grid),
                **trace.figures,
                "bound": None if trace.bound is None else asdict(trace.bound),
                "source_lines": [list(row) for row in trace.lines],
            }
            for trace in traces
        ],
    }


def _tables(title: str, rows: Sequence[tuple[str, Any]], lines: Sequence[tuple[str, int]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    figures = Table("what", title=escape(title), title_justify="left")
    figures.add_column("count", justify="right")
    for label, value in rows:
        figures.add_row(escape(label), escape(_text(value)))
    console.print(figures)
    if lines:
        source = Table("source line")
        source.add_column("instructions", justify="right")
        for line, count in lines[:_MOST_LINES]:
            source.add_row(escape(line), _text(count))
        console.print(source)
        if len(lines) > _MOST_LINES:
            console.print(f"and {len(lines) - _MOST_LINES} lines that ran fewer")


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
