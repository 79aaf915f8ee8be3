"""Judges a kernel from outside this repository: `portable.conformance.check(function, op)`.

The function runs the suite's cases and is judged as an implementation is: against the float64 oracle,
with inputs and outputs between guard bands, twice. It runs in this process, so a kernel that crashes the
process ends the report too, and one that hangs is waited for; the suite itself uses workers.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from portable.backend import Backend
from portable.conformance.cases import generate
from portable.conformance.cases.case import Case, Types, parse, types_text
from portable.conformance.cases.generate import TIERS
from portable.conformance.checker.argument_binding import Bound, Unsupported
from portable.conformance.checker.hints import HINTS, Notes
from portable.conformance.execute import behaviour, runner
from portable.conformance.execute.behaviour import Behaviour
from portable.conformance.execute.result import Result
from portable.conformance.judge import reference
from portable.conformance.progress import Progress
from portable.conformance.states import CONFORMING, NOT_JUDGED, Tally
from portable.conformance.text import EXCEPTIONS, alike, grouped, paragraph
from portable.errors import ArgumentError, BackendError, PinError, listed, nearest
from portable.plan import Device
from portable.runtime import detect
from portable.spec import registry
from portable.spec.model import Spec

BEHAVIOURS = ("beyond_2_31", "fresh", "shared_inputs")
"""Behaviours that a function from outside is asked for, beside the cases; with `grad` "autograd" too."""
SHOWN = 5
"""Kinds of failures that a report prints; it counts the others."""


@dataclass(repr=False)
class Report:
    """The verdict on a function: `results` has one `Result` for each case, `str(report)` is text.

    Its truth is the verdict: `assert check(f, op)` and `if check(f, op)` hold exactly where `conforms` does.
    `again(case_id)` is the call that runs one case again, as text.
    """

    name: str
    op: str
    device: str
    results: list[Result] = field(default_factory=list)
    again: Callable[[str], str] = repr
    notes: Mapping[str, str] = field(default_factory=dict)
    """What is known of some failures beside their message, by the case's id."""

    @property
    def states(self) -> Counter[str]:
        """How many cases came to each state of `states.STATES`."""
        return Counter(result.state for result in self.results)

    @property
    def tally(self) -> Tally:
        """How many cases were judged, failed, were declined or not run."""
        return Tally.of(result.state for result in self.results)

    @property
    def judged(self) -> int:
        """Cases in which the function was called and did not decline."""
        return self.tally.judged

    @property
    def failures(self) -> list[Result]:
        return [result for result in self.results if not result.conforms]

    @property
    def conforms(self) -> bool:
        """Whether every case was run, nothing failed and something was judged. A function that declines every
        case does not conform."""
        return self.tally.conforms

    def __bool__(self) -> bool:
        return self.conforms

    def raise_for_failures(self) -> None:
        """Raise AssertionError with the report's text where the function does not conform."""
        __tracebackhide__ = True
        if not self.conforms:
            raise AssertionError(str(self))

    def __repr__(self) -> str:
        """The text: pytest prints it of `assert check(f, op)`."""
        return str(self)

    def __str__(self) -> str:
        verdict = "CONFORMS" if self.conforms else "DOES NOT CONFORM"
        lines = [f"{verdict}: {self.name} as {self.op} on {self.device}: {self.tally}"]
        states = {state: count for state, count in sorted(self.states.items()) if state not in CONFORMING}
        if states:
            lines.append(", ".join(f"{state} {count}" for state, count in states.items()))
        worst = max((result for result in self.results if result.worst), key=_worst, default=None)
        if worst is not None:
            lines.append(f"worst |error|/bound {worst.worst:.3g} in {worst.case.id}")
        rules = Counter(result.message for result in self.results if result.state == "NotSupported")
        lines += [f"declined, {count}: {rule}" for rule, count in rules.items()]
        if not self.judged:
            lines.append("Nothing was judged: a function that declines every case does not conform.")
        kinds = grouped([(each.impl, each.state, each.message, each) for each in self.failures])
        for first, *others in kinds[:SHOWN]:
            equal = len(others) if first.state in EXCEPTIONS else 0
            again, note = self.again(first.case.id), self.notes.get(first.case.id, "")
            lines.append(paragraph(first, again, 1 + equal, note))
            lines += [f"  {alike([each.case.id for each in others])}"] if others and not equal else []
        if rest := sum(map(len, kinds[SHOWN:])):
            lines.append(f"\nand {rest} more that fail, in `report.failures`")
        lines += [f"\n{found}" for hint in HINTS if (found := hint(self.results))]
        return "\n".join(lines)


def _worst(result: Result) -> float:
    return result.worst


def check(
    function: Callable[..., Any],
    op: str,
    device: str | None = None,
    *,
    tier: str = "smoke",
    cases: Iterable[str | Case] | None = None,
    types: Sequence[str] | None = None,
    grad: bool = False,
    out: bool | None = None,
) -> Report:
    """Judge `function` as an implementation of `op`.

    `function` takes the op's inputs by the spec's names, or by position, as tensors of the device in every
    layout of the suite; and those of the op's parameters that it names. A case with another parameter than
    the default that it does not name, with an optional input or an `out=` that it does not take, is
    NotSupported. It returns a tensor, or a tuple in the order of the spec's outputs; NumPy's and CuPy's
    arrays are taken through DLPack. It may raise `portable.conformance.Unsupported` to decline a case; any
    other exception is a state of the case.

    - `device`: as the command's `--device`: "cuda", "rocm", "cpu", "rocm:gfx942"; None is the active one.
      On an emulated GPU Triton kernels run as they are, and a case in which nothing was launched there is
      NotSupported: torch's own functions would run on the CPU.
    - `tier`: how many cases; `cases`: their ids instead, as a failure prints them.
    - `types`: the dtypes, or rows of dtypes, that the function claims; the others are NotSupported.
    - `grad`: run the gradient cases, through torch.autograd, as well.
    - `out`: whether the function takes `out=`; None is as its signature says.

    How far it is and how long the rest takes is said on standard error: cold, a case on an emulated GPU takes
    seconds, as its kernel is compiled.

    Raises ArgumentError for arguments that cannot be meant, UnknownOpError, cases.UnknownCase, and
    BackendError where the device is not there.
    """
    spec = _spec(op)
    chosen_cases = _chosen_cases(spec, tier, cases, grad)
    claimed = _claimed(spec, types)
    bound = Bound(function, spec, out)
    selected = _CheckDevice.named(device)
    options = "".join(f", {name}=True" for name, on in (("grad", grad), ("out", out)) if on)
    where = "" if device is None else f", {device!r}"
    name = bound.name if bound.name.isidentifier() else "function"
    report = Report(bound.name, op, str(selected.info), again=lambda case_id: (
        f"portable.conformance.check({name}, {op!r}{where}, cases=[{case_id!r}]{options})"
    ))  # fmt: skip
    lost = ""
    notes = report.notes = Notes()
    rules = [_rule(bound, case, claimed, grad) for case in chosen_cases]
    with selected.backend.triton(), Progress(rules.count(""), stream=sys.stderr, first=5.0) as progress:
        for number, (case, rule) in enumerate(zip(chosen_cases, rules, strict=True)):
            if lost or rule:
                result = Result(case, bound.name, *(("NotRun", lost) if lost else ("NotSupported", rule)))
            else:
                result = _judge(bound, case, selected, notes)
                progress.advance(op, not result.conforms)
            if result.state in ("Crash", "ResourceError") and not lost:
                lost = selected.lost(result)
            report.results.append(result)
            if number % 64 == 63:
                gc.collect()
    return report


def judge_of(function: Callable[..., Any], op: str) -> Callable[[Case], Result]:
    """What judges single cases of `function` on the active device as `check` does, gradients too: a case that
    it does not take is NotSupported. Raises as `check`."""
    bound, selected, lost = Bound(function, _spec(op)), _CheckDevice.named(None), ""

    def judge(case: Case) -> Result:
        nonlocal lost
        if rule := bound.lacks(case):
            return Result(case, bound.name, "NotSupported", rule)
        if lost:
            return Result(case, bound.name, "NotRun", lost)
        with selected.backend.triton():
            result = _judge(bound, case, selected, Notes())
        if result.state in ("Crash", "ResourceError"):
            lost = selected.lost(result)
        return result

    return judge


def _judge(bound: Bound, case: Case | Behaviour, selected: _CheckDevice, notes: Notes) -> Result:
    """Run and judge one case; the function's exceptions become states."""
    if isinstance(case, Behaviour):
        return _behaves(bound, case, selected)
    try:
        materialized = reference.materialize(case, bound.spec)
    except Exception as error:  # a broken reference is the suite's fault, not the function's
        return Result(case, bound.name, "InternalError", reference.failed(error, bound.spec))
    start, returned = time.perf_counter(), []

    def call(**arguments: Any) -> Any:
        returned[:] = [bound(**arguments)]
        return returned[0]

    with selected.counted() as launches:
        try:
            result = runner.judge_call(materialized, call, selected.torch_device, bound.name)
        except Exception as error:
            result = Result(case, bound.name, *_classified(error, bound))
    idle = launches is not None and not launches and result.state not in NOT_JUDGED
    if idle and result.conforms and any(each.ref.numel() for each in materialized.expected.values()):
        rule = f"the function launched nothing on the {selected.info}; torch's functions ran on the CPU"
        result = Result(case, bound.name, "NotSupported", rule)
    if not result.conforms:
        notes.look(result, materialized, *returned or [None])
        result = replace(result, message=result.message + materialized.strided())
    return replace(result, seconds=time.perf_counter() - start)


def _behaves(bound: Bound, case: Behaviour, selected: _CheckDevice) -> Result:
    """Ask for one behaviour of `bound`, which refuses a call as an implementation does where the function
    declines it."""
    places: list[str] = []

    def call(**arguments: Any) -> Any:
        try:
            return bound(**arguments)
        except Unsupported as rule:
            raise PinError(bound.spec.op, bound.name, str(rule) or "the function declined the call") from rule
        except Exception as error:
            places[:] = [bound.where(error)]
            raise

    caller = behaviour.caller(bound.spec, call)
    result = behaviour.judge(case, caller, bound.name, selected.torch_device)
    place = f" ({places[0]})" if places and places[0] and result.state == "Crash" else ""
    return replace(result, message=result.message + place)


def _classified(error: Exception, bound: Bound) -> tuple[str, str]:
    """A case's state and message for an exception of the function."""
    if isinstance(error, Unsupported):
        return "NotSupported", str(error) or "the function declined the case"
    state, message = runner.classify(error, bound.name)
    place = bound.where(error) if state == "Crash" else ""
    return state, f"{message} ({place})" if place else message


# The cases ----------------------------------------------------------------------------------------


def _spec(op: str) -> Spec:
    return registry.spec(
        registry.op_name(op, "conformance.check", "op", "portable.conformance.check(function, {})")
    )


def _chosen_cases(
    spec: Spec, tier: str, picked: Iterable[str | Case] | None, grad: bool
) -> list[Case | Behaviour]:
    if grad and spec.gradient is None:
        raise _wrong("grad", True, f"False: {spec.op} has no gradient")
    if tier not in TIERS:
        raise _wrong("tier", tier, f"one of {listed(TIERS)}")
    if picked is None:
        names = [*BEHAVIOURS, *["autograd"] * grad]
        return [*generate.cases(spec, tier), *(Behaviour(spec.op, name) for name in names)]
    several: list[Any] = [picked] if isinstance(picked, (str, Case, Behaviour)) else list(picked)
    found = []
    for each in several:
        case = (behaviour.parse(each) or parse(each, spec)) if isinstance(each, str) else each
        if not isinstance(case, (Case, Behaviour)) or case.op != spec.op:
            raise _wrong("cases", getattr(case, "id", case), f"cases of {spec.op}, or their ids")
        found.append(case)
    if not found:
        raise _wrong("cases", found, "one case or more")
    return found


def _claimed(spec: Spec, types: Sequence[str] | None) -> list[Types]:
    """The rows of the spec's types that are claimed: named whole, or made of claimed dtypes alone."""
    rows = [tuple(row.items()) for row in spec.types]
    if types is None:
        return rows
    names = [types] if isinstance(types, str) else list(types)
    texts = {types_text(dict(row)): row for row in rows}
    dtypes = sorted({dtype for row in rows for name, dtype in row if name != "acc"})
    known = list(dict.fromkeys([*texts, *dtypes]))
    for name in names:
        if name not in known:
            raise _wrong("types", name, f"some of {listed(known)}", nearest(str(name), known).strip())
    return [
        row for text, row in texts.items()
        if text in names or all(dtype in names for name, dtype in row if name != "acc")
    ]  # fmt: skip


def _rule(bound: Bound, case: Case | Behaviour, claimed: list[Types], grad: bool) -> str:
    """Why a case does not run, or ""."""
    if isinstance(case, Behaviour):
        narrow = dict(claimed[0]) != bound.spec.types[0] if claimed else True
        if case.name == "autograd" and (
            gone := [name for name in bound.spec.inputs if not bound.takes(name)]
        ):
            return f"the function takes no {gone[0]}"
        return "types= does not claim the types that behaviours are asked in" if narrow else ""
    if case.types not in claimed:
        return f"types= does not claim {types_text(dict(case.types))}"
    if case.mode == "grad" and not grad:
        return "gradient cases run with grad=True"
    return bound.lacks(case)


def _wrong(argument: str, value: Any, expected: str, remedy: str = "") -> ArgumentError:
    return ArgumentError("conformance.check", argument, value, expected, remedy)


# Where it runs ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _CheckDevice:
    """A device for the length of one check; the process's active backend stays what it is."""

    backend: Backend
    info: Device

    @property
    def torch_device(self) -> torch.device:
        """Where its tensors live."""
        return torch.device(self.backend.device_type)

    @staticmethod
    def named(name: str | None) -> _CheckDevice:
        """The device that `name` selects, as `--device` does; None: the active one."""
        if name is None:
            return _CheckDevice.of(detect.selection())
        vendor, _, arch = str(name).partition(":")
        known = registry.vendors()
        if vendor not in known:
            raise _wrong("device", name, f"one of {listed(known)}", nearest(vendor, known).strip())
        cls = detect.backend_class(vendor)
        here = detect.this_machine()
        environ = {**here.environ, "PORTABLE_BACKEND": vendor}
        if cls.emulation(here) is None:
            environ.pop("PORTABLE_EMULATE", None)
        if not arch:
            return _CheckDevice.of(detect.select(replace(here, environ=environ)))
        archs = [each.arch for each in cls(known[vendor]).targets()]
        if arch not in archs:
            expected = ", ".join(f"{vendor}:{each}" for each in archs) or f"{vendor} alone"
            raise _wrong("device", name, expected, nearest(arch, archs).strip())
        environ[f"PORTABLE_{vendor.upper()}_ARCH"] = arch
        chosen = detect.select(replace(here, environ=environ))
        if chosen.error is None and (found := _CheckDevice.of(chosen)).info.arch == arch:
            return found
        if environ.get("PORTABLE_EMULATE") == "0" or cls.emulation(here) is None:
            raise chosen.error or BackendError(
                f"device={name!r}: this machine has {_CheckDevice.of(chosen).info}"
            )
        return _CheckDevice.of(detect.select(replace(here, environ={**environ, "PORTABLE_EMULATE": "1"})))

    @staticmethod
    def of(chosen: detect.Selection) -> _CheckDevice:
        if chosen.error is not None:
            raise chosen.error
        backend = max(chosen.backends.values(), key=lambda each: (each.device_type != "cpu", -each.order))
        index = 0
        if backend.device_type != "cpu":
            index = torch.get_device_module(backend.device_type).current_device()
        return _CheckDevice(backend, backend.device(index))

    @contextmanager
    def counted(self) -> Iterator[list[Any] | None]:
        """A block that lists its launches, on an emulated device; else None."""
        with ExitStack() as stack:
            yield stack.enter_context(self.backend.trace()) if self.info.emulated else None

    def lost(self, result: Result) -> str:
        """Why nothing more can run in this process after a crash, or ""."""
        try:
            runner.synchronize(self.torch_device)
        except Exception:
            return f"the device was lost in {result.case.id}"
        return ""
