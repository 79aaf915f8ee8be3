"""From a case that fails to the smallest one that fails in the same way."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass

from portable.conformance.cases import simpler
from portable.conformance.cases.case import Case
from portable.conformance.execute.result import Result
from portable.conformance.text import kind, plain, pluralize
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


def _silent(way: str, result: Result) -> None:
    pass


def reduce(case: Case, spec: Spec, run: Run, limits: Limits, on_step: OnStep = _silent) -> Reduced:
    """Shrink `case` while `run` fails as it did at first.

    Each way is followed as far as it goes, then the next, until none holds any more. The same case, limits
    in runs and `run` give the same answer. `on_step` gets each step that held: the way and the result. A case
    that conforms comes back as it is.
    """
    found = _Search(run, limits)
    result = found.run(case)
    if result.conforms or result.state == "NotRun":
        return Reduced(case, result, 1)
    wanted = failure(result)
    try:
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
        if not result.conforms and failure(result) == wanted:
            return result
    return None


class _Search:
    """Runs each case once, within the limits."""

    def __init__(self, run: Run, limits: Limits):
        self._run, self._limits = run, limits
        self._until = time.monotonic() + limits.seconds
        self._known: dict[str, Result] = {}
        self.count = 0

    def run(self, case: Case) -> Result:
        """Raises _Stopped where the limits are reached, or nothing more can run."""
        if case.id in self._known:
            return self._known[case.id]
        if self.count >= self._limits.runs:
            raise _Stopped(pluralize(self._limits.runs, "run"))
        if self.count and time.monotonic() >= self._until:
            raise _Stopped(f"{self._limits.seconds:g} s")
        self.count += 1
        result = self._known[case.id] = self._run(case)
        if result.state == "NotRun" and self.count > 1:
            raise _Stopped(result.message)
        return result
