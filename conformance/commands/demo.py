"""`python -m portable.conformance.commands.demo`: every op once, against float64, with its reasons.

On an emulated GPU: every implementation of every op, on a sixteenth of the data or less, and no
times.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch

import portable
from portable import errors
from portable.conformance.cases.case import Case, make_shape, params_of
from portable.conformance.execute import runner
from portable.conformance.execute.guards import guarded_memory
from portable.conformance.judge import reference
from portable.conformance.text import number, print_table
from portable.spec import registry

HEAD = ("op", "size", "dtype", "ran", "result", "worst |err|/bound", "max |err|", "us", "why this one")
_SMALLER = 4  # by how much each size is less on an emulated GPU


def demo_cases(device: torch.device, emulated: bool = False) -> list[Case]:
    """Each public op's demo sizes, in bfloat16 and float32 on a GPU, in float32 on the CPU."""
    wanted = ("bfloat16", "float32") if device.type != "cpu" or emulated else ("float32",)
    found = []
    for op in portable.ops():
        spec = registry.spec(op)
        if spec.demo is None:
            continue
        axes, leading = spec.demo.axes, spec.demo.leading
        if emulated:
            axes = {name: max(size // _SMALLER, 1) for name, size in axes.items()}
            leading = {name: tuple(max(n // _SMALLER, 1) for n in lead) for name, lead in leading.items()}
        shape = make_shape(spec, axes, leading, spec.demo.params, spec.demo.absent)
        for name in wanted:
            row = next((row for row in spec.types if row[spec.type_variables[0]] == name), None)
            if row is not None:
                found.append(Case(op, tuple(row.items()), shape))
    return found


def device_time(call: Callable[[], object], device: torch.device) -> float:
    """Microseconds of one call: by device events where there are any, else by the host's clock."""
    for _ in range(3):
        call()
    times = []
    for _ in range(20):
        runner.synchronize(device)
        if device.type == "cpu":
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e6)
            continue
        module = torch.get_device_module(device)
        first, last = module.Event(enable_timing=True), module.Event(enable_timing=True)
        first.record()
        call()
        last.record()
        module.synchronize()
        times.append(first.elapsed_time(last) * 1e3)
    return statistics.median(times)


@dataclass(frozen=True)
class Row:
    """A line of the table, its cells in the order of HEAD; `problem` says what is wrong, if anything."""

    op: str
    size: str
    dtype: str
    ran: str
    result: str
    worst: str = "-"
    max_error: str = "-"
    us: str = "-"
    why: str = "-"
    problem: str = ""

    def cells(self) -> tuple[str, ...]:
        return astuple(self)[:-1]


def _dtype(case: Case) -> str:
    return case.dtype(registry.spec(case.op).type_variables[0])


def _size(case: Case) -> str:
    return str(case.shape).replace(",", " ")


def show(case: Case, device: torch.device, timed: bool = True) -> Row:
    """The op called once and judged."""
    spec = registry.spec(case.op)
    materialized = reference.materialize(case, spec)
    arguments: dict[str, Any] = {
        name: materialized.inputs[name].on(device)[0] if name in materialized.inputs else None
        for name in spec.inputs
    } | params_of(spec, case)
    op = runner.function(case.op)
    explanation = portable.explain(case.op, **arguments)
    with contextlib.nullcontext() if timed else guarded_memory():
        result = op(**arguments)
    runner.synchronize(device)
    made = result if isinstance(result, tuple) else () if result is None else (result,)
    outputs = (*made, *(arguments[name] for name in spec.mutated if arguments[name] is not None))
    verdicts = [
        expected.judge(got, bias=False)
        for got, expected in zip(outputs, materialized.expected.values(), strict=True)
    ]
    worst = max(verdicts, key=lambda verdict: (not verdict.passed, verdict.worst))
    choice = explanation.choice
    name = choice.name if choice is not None else "-"
    return Row(
        case.op,
        _size(case),
        _dtype(case),
        name,
        "ok" if worst.passed else worst.state,
        number(worst.worst),
        f"{max(verdict.max_abs for verdict in verdicts):.2e}",
        f"{device_time(lambda: op(**arguments), device):.1f}" if timed else "-",
        choice.reason if choice is not None else "-",
        "" if worst.passed else f"{case.id} on {name}: {worst}",
    )


def show_each(case: Case, device: torch.device) -> list[Row]:
    """A row for every implementation that the device builds, pinned; those that refuse the case say why."""
    found = []
    for name in runner.implementations(case.op):
        try:
            with portable.using(**{case.op: name}):
                found.append(show(case, device, timed=False))
        except errors.PortableError as error:
            state, message = runner.classify(error, name)
            row = Row(case.op, _size(case), _dtype(case), name, state)
            if state == "NotSupported":
                found.append(replace(row, why=message))
            else:
                found.append(replace(row, problem=f"{case.id} on {name}: {message}"))
    return found


def main(argv: list[str] | None = None) -> int:
    """Print the table; the exit code is 1 if any result is outside its bound, 3 without a device."""
    parser = argparse.ArgumentParser(prog="python -m portable.conformance.commands.demo", description=__doc__)
    parser.add_argument(
        "--op", action="append", choices=portable.ops(), help="only this op (may be repeated)"
    )
    wanted = parser.parse_args(argv).op
    try:
        device, info = runner.torch_device(), portable.device()
    except errors.BackendError as error:
        print(f"portable: {error}", file=sys.stderr)
        return 3
    rows: list[Row] = []
    for case in demo_cases(device, info.emulated):
        if wanted and case.op not in wanted:
            continue
        try:
            rows += show_each(case, device) if info.emulated else [show(case, device)]
        except errors.PortableError as error:
            name = type(error).__name__
            rows.append(Row(case.op, str(case.shape), "-", "-", name, problem=str(error)))
    print(f"portable {portable.__version__} on {info}")
    print_table(HEAD, [row.cells() for row in rows])
    times = "no timings on an emulated device" if info.emulated else "times are one call, host included"
    print(f"Errors are against float64 from the same input bits; {times}.")
    problems = [row.problem for row in rows if row.problem]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
