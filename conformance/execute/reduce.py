"""From a case that fails to the smallest one that fails in the same way."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from portable.conformance.cases import simpler
from portable.conformance.cases.case import Case, axis_param
from portable.conformance.execute import runner
from portable.conformance.execute.result import Result
from portable.conformance.judge import reference
from portable.conformance.text import kind, plain, pluralize
from portable.spec import registry
from portable.spec.model import Spec

Run = Callable[[Case], Result]
"""Runs one case: on an implementation, or on a function of anybody's."""
OnStep = Callable[[str, Result], None]


@dataclass(frozen=True)
class Limits:
    """After `runs` runs, or `seconds` seconds, no further one begins."""

    runs: int = 200
    seconds: float = 300.0


@dataclass(frozen=True)
class Reduced:
    """The smallest case found, its result, and how many `runs` it took. `stopped` says what ended the search
    before every simpler form of it was tried, "" where all were."""

    case: Case
    result: Result
    runs: int
    stopped: str = ""


def summary(found: Reduced, seconds: float, again: str) -> list[str]:
    """Lines on a case that fails: how it was found, its message, and what runs it again."""
    took = f"{pluralize(found.runs, 'run')} in {seconds:.1f} s"
    head = f"smallest, {took}:"
    if found.stopped:
        head = f"stopped by {found.stopped}: {took}; a smaller case may fail too. So far:"
    return [head, textwrap.indent(plain(found.result.message), "  "), again]


class _Stopped(Exception):
    """A limit is reached, or nothing runs any more; the text says which."""


def failure(result: Result) -> str:
    """What failures of one way share: the state; of an exception its type too, and the kind of a kernel's
    fault; how a process ended; what a call did beside its result."""
    first = result.message.partition("\n")[0]
    if result.state in ("Crash", "ResourceError"):
        fault = _FAULT.match(first)
        return f"{result.state}, {' '.join(fault.groups()) if fault else first.partition(': ')[0]}"
    if result.state == "Fail.behaviour":
        return f"{result.state}, {kind('', '', first)[2]}"
    return result.state


_FAULT = re.compile(r"(KernelFault): \S+: ([a-z-]+): ")
"""As the emulated GPU names what a kernel did: the error, the kernel, the kind of the fault."""


def torch_on_cpu(spec: Spec) -> Run | None:
    """Runs a case on the op's `torch` implementation with CPU tensors, whatever device is active; None where
    the op has none. A call with `out=` or over another axis than the last, and what this torch cannot do on
    a CPU, is NotSupported."""
    chosen = spec.implementation(TORCH)
    if chosen is None:
        return None

    def call(**arguments: Any) -> Any:
        params = {name: arguments.get(name, each.default) for name, each in spec.params.items()}
        function = registry.of_tensors(chosen.entry, spec.inputs, params)
        return function(*(arguments[name] for name in spec.inputs))

    def run(case: Case) -> Result:
        axis = axis_param(spec)
        if case.mode in ("out", "in_place") or case.params.get(axis or "", -1) != -1:
            return Result(case, TORCH, "NotSupported", "out= or another axis than the last")
        try:
            made = reference.materialize(case, spec)
            return runner.judge_call(made, call, torch.device("cpu"), TORCH)
        except Exception as error:
            return Result(case, TORCH, "NotSupported", f"{type(error).__name__}: {error}")

    return run


TORCH = "torch"
"""The implementation beside which another is reduced."""


def _silent(way: str, result: Result) -> None:
    pass


def reduce(
    case: Case, spec: Spec, run: Run, limits: Limits, on_step: OnStep = _silent, right: Run | None = None
) -> Reduced:
    """Shrink `case` while `run` fails as it did at first.

    Each way is followed as far as it goes, then the next, until none holds any more. The same case, limits
    in runs and `run` give the same answer. `on_step` gets each step that held: the way and the result. A case
    that conforms comes back as it is. Where `right`, an implementation that conforms in `case`, fails in a
    form, that form does not hold: it shows a limit of the bound, not what is wrong with `run`.
    """
    found = _Search(run, right, limits)
    result = found.run(case)
    if result.conforms or result.state == "NotRun":
        return Reduced(case, result, 1)
    wanted = failure(result)
    try:
        found.judge_right(case)
        changed = True
        while changed:
            changed = False
            for name, way in simpler.ways(spec).items():
                while (step := _next(found, way, result.case, spec, wanted)) is not None:
                    result, changed = step, True
                    on_step(name, result)
    except _Stopped as stop:
        return Reduced(result.case, result, found.count, str(stop))
    return Reduced(result.case, result, found.count)


def _next(found: _Search, way: simpler.Way, case: Case, spec: Spec, wanted: str) -> Result | None:
    """The result of the first simpler form that fails as wanted."""
    for form in simpler.forms(way, case, spec):
        result = found.run(form)
        if not result.conforms and failure(result) == wanted and found.is_right(form):
            return result
    return None


class _Search:
    """Runs each case once, within the limits, of which the runs of the right implementation are part."""

    def __init__(self, run: Run, right: Run | None, limits: Limits):
        self._run, self._right, self._limits = run, right, limits
        self._until = time.monotonic() + limits.seconds
        self._known: dict[str, Result] = {}
        self.count = 0

    def run(self, case: Case) -> Result:
        """Raises _Stopped where the limits are reached, or nothing more can run."""
        if case.id in self._known:
            return self._known[case.id]
        self._begin()
        result = self._known[case.id] = self._run(case)
        if result.state == "NotRun" and self.count > 1:
            raise _Stopped(result.message)
        return result

    def judge_right(self, case: Case) -> None:
        """Have no right implementation where it fails in this case itself."""
        if not self.is_right(case):
            self._right = None

    def is_right(self, case: Case) -> bool:
        """Whether the right implementation, if there is one, conforms in a case."""
        if self._right is None:
            return True
        self._begin()
        return self._right(case).conforms

    def _begin(self) -> None:
        if self.count >= self._limits.runs:
            raise _Stopped(pluralize(self._limits.runs, "run"))
        if self.count and time.monotonic() >= self._until:
            raise _Stopped(f"{self._limits.seconds:g} s")
        self.count += 1
