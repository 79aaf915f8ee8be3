"""A run under way: its tasks, its results, and the record of what there is so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from portable.conformance.cases.case import UnknownCase
from portable.conformance.commands.selection import Selected
from portable.conformance.execute import behaviour, case_ids, runner, waivers
from portable.conformance.execute.result import Result
from portable.conformance.records import record
from portable.conformance.states import KNOWN
from portable.conformance.text import UsageError, alike, kind, paragraph, rerun
from portable.conformance.workers.pool import Task, case_task
from portable.errors import PortableError

SAME = (
    "device", "vendor", "arch", "emulated", "multiprocessors", "driver", "toolkit", "versions", "commit",
    "dirty", "tier", "fraction", "selection", "specs",
)  # fmt: skip
"""What two halves of one run must share."""

AGAIN = frozenset({"NotRun", "XPass", *KNOWN})
"""States in which a resumed run does not take a result over."""
ALONE = frozenset({"beyond_2_31", "large_result"})
"""Behaviours that want the device's memory for themselves."""
LONG = 1 << 15
"""A case with an axis or a leading dimension as long takes minutes on an emulated GPU."""


@dataclass
class Run:
    """A run under way: everything that its record will hold."""

    head: dict[str, Any]
    cases: list[Selected]
    known: waivers.Waivers
    options: list[str]
    results: list[Result] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)
    timings: list[dict[str, Any]] = field(default_factory=list)
    roof: dict[str, Any] | None = None
    modelled: dict[str, Any] | None = None
    """The record's part of that name, its `times` filled as they come; None where nothing is modelled."""
    faults: list[str] = field(default_factory=list)
    written: bool = False
    """Whether the whole record is written."""

    def __post_init__(self) -> None:
        self._places: dict[tuple[str, str], int] = {}
        self._cases = {case.id: case for case in self.cases}
        self._kinds: dict[tuple[str, str, str], list[Result]] = {}
        wanted = self.head["selection"]["impls"]
        self.impls = {
            op: [name for name in runner.implementations(op) if wanted is None or name in wanted]
            for op in dict.fromkeys(case.op for case in self.cases)
        }

    @property
    def total(self) -> int:
        return sum(len(self.impls[case.op]) for case in self.cases)

    @property
    def done(self) -> int:
        """How many of `total` have their result; fuzzing adds others."""
        return sum(result.case.id in self._cases for result in self.results)

    def tasks(self) -> tuple[list[Task], list[Task]]:
        """What has no result yet: the tasks to share out, the longest first, so that no worker is left with
        one at the end; and those that want the device for themselves."""
        done = self._places
        shared_first, shared, alone = [], [], []
        for case in self.cases:
            left = [name for name in self.impls[case.op] if (case.id, name) not in done]
            if left:
                heavy = isinstance(case, behaviour.Behaviour) and case.name in ALONE
                first = shared_first if is_long(case) else shared
                (alone if heavy else first).append(case_task(case.op, case.id, left))
        return shared_first + shared, alone

    def take(self, message: dict[str, Any]) -> Result | None:
        """Keep a worker's message. Returns its result, with known failures and waivers applied, if it is
        one."""
        if "inputs" in message:
            self.inputs.update([message["inputs"]])
        elif "timing" in message:
            self.timings.append(message["timing"])
        elif "roof" in message:
            self.roof = (self.roof or {}) | message["roof"]
        elif "modelled" in message and self.modelled is not None:
            self.modelled["times"].append(message["modelled"])
        elif "fault" in message:
            self.faults.append(message["fault"])
        elif "result" in message:
            entry = message["result"]
            case = self._cases.get(entry["case"]) or case_ids.case(entry["case"])
            result = self.known.apply_waivers(Result.of(case, entry))
            self.keep(result)
            return result
        return None

    def keep(self, result: Result) -> None:
        """Add a result. Fuzzing may draw a call that has one: then a failure stays."""
        place = self._places.setdefault((result.case.id, result.impl), len(self.results))
        if place == len(self.results):
            self.results.append(result)
        elif self.results[place].conforms and not result.conforms:
            self.results[place] = result

    def describe(self, result: Result) -> str:
        """A failure as a paragraph, with the command that runs it again; "" where one of its kind was
        described."""
        key = kind(f"{result.case.op} {result.impl}", result.state, result.message)
        self._kinds.setdefault(key, []).append(result)
        if len(self._kinds[key]) > 1:
            return ""
        return paragraph(result, rerun(result.case.id, result.impl, self.options))

    def alike(self) -> list[str]:
        """Lines on the failures that were not described, by the one of their kind that was."""
        return [
            f"{first.state}: {first.case.id} on {first.impl}\n  {alike([each.case.id for each in others])}"
            for first, *others in self._kinds.values()
            if others
        ]

    def resume(self, path: str) -> None:
        """Take over the results of a partial record, those of fuzzing too. NotRun cases run again, and so do
        known failures and waived ones: the entries may have changed. Raises UsageError where the record is of
        another run, or holds a result twice or of a case that is not selected."""
        try:
            there = record.read(path)
        except FileNotFoundError:
            return
        except record.RecordError as error:
            raise UsageError(f"--resume: {error}") from None
        if there["header"]["complete"]:
            raise UsageError(f"--resume: {path} is complete; there is nothing to go on from")
        for name in SAME:
            if there["header"][name] != self.head[name]:
                raise UsageError(
                    f"--resume: {path} is of another run: its {name} is {there['header'][name]!r}, "
                    f"now it is {self.head[name]!r}"
                )
        for entry in there["results"]:
            where = f"{entry['case']} on {entry['impl']}"
            try:
                case = self._cases.get(entry["case"]) or case_ids.case(entry["case"])
            except (UnknownCase, PortableError) as error:
                raise UsageError(f"--resume: {path} holds a result of an unknown case: {error}") from None
            if entry["impl"] not in self.impls.get(case.op, ()):
                raise UsageError(f"--resume: {path} holds a result that this run does not select: {where}")
            if (case.id, entry["impl"]) in self._places:
                raise UsageError(f"--resume: {path} holds two results of {where}")
            if entry["state"] not in AGAIN:
                self.keep(self.known.apply_waivers(Result.of(case, entry)))
        self.inputs.update({case: sha256 for case, sha256 in there["inputs"].items() if case in self._cases})

    def record(self, complete: bool, results: Sequence[Result] | None = None) -> dict[str, Any]:
        """The record of what there is so far, or of `results`, in the order of the selection."""
        results = self.results if results is None else results
        place = {case.id: number for number, case in enumerate(self.cases)}
        order = {op: {name: number for number, name in enumerate(impls)} for op, impls in self.impls.items()}
        ordered = sorted(
            results,
            key=lambda each: (
                place.get(each.case.id, len(place)),
                each.case.id,
                order.get(each.case.op, {}).get(each.impl, 0),
            ),
        )
        head = {**self.head, "complete": complete}
        entries = [each.entry() for each in ordered]
        return record.build(
            head, entries, self.inputs, self.timings, self.roof, self.known.used(results), self.modelled
        )


def is_long(case: Selected) -> bool:
    """Whether a case may take far longer than the others of its op."""
    if isinstance(case, behaviour.Behaviour):
        return case.name == "compiled"
    shape = case.shape
    sizes = [size for _, size in shape.axes] + [size for _, leading in shape.leading for size in leading]
    return max(sizes, default=0) >= LONG
