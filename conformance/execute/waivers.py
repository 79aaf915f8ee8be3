"""Known failures and waivers as data: `backends/<vendor>/known_failures.yaml`.

An entry names GPUs (`arch`), one op, implementations (`impl`) and cases by globs, the state in which they
fail, a reason, what was measured, and the last day on which it holds. Of kind `xfail` the kernel is known
to be wrong there; of kind `waived` the result is accepted although it is outside the bound.

- A result that fails in the entry's state becomes XFail or Waived, which conform; its message stays, with
  the reason behind it. A failure in any other state stays what it is. The first entry that fits is taken.
- Globs may take in cases that pass; they stay Pass. But of the cases that an entry names and that were
  judged, at least one must have failed in its state, on each implementation separately. Otherwise the entry
  is unused there: the run does not conform, and the passing cases of an `xfail` are shown as XPass.
  A run of selected cases (`-k`) skips this check: those selected may be the ones that pass.
- An expired entry has no effect, and fails a run in which a case that it names was judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import portable
from portable.conformance.cases import generate as cases
from portable.conformance.execute import behaviour
from portable.conformance.execute.result import Result
from portable.conformance.states import KNOWN, STATES
from portable.errors import SpecError, listed, nearest
from portable.spec import registry, strict_yaml

FILE = "known_failures.yaml"
KINDS = {"xfail": "XFail", "waived": "Waived"}
FAIL_STATES = tuple(state for state in STATES if state.startswith("Fail."))

_LISTS = ("arch", "impl", "cases")
_KEYS = ("kind", "arch", "op", "impl", "cases", "state", "reason", "evidence", "expires")


@dataclass(frozen=True)
class Entry:
    """One entry of a file; `where` is its vendor's file and line, as messages and records name it."""

    kind: str
    arch: tuple[str, ...]
    op: str
    impl: tuple[str, ...]
    cases: tuple[str, ...]
    state: str
    reason: str
    evidence: str
    expires: date
    where: str

    @property
    def mark(self) -> str:
        """The end of the message of a result that the entry was applied to."""
        return f"({self.where}, until {self.expires})"

    def applied_to(self, result: Result) -> bool:
        """Whether this entry was applied to the result."""
        return result.state == KINDS[self.kind] and result.message.endswith(self.mark)

    def names(self, result: Result) -> bool:
        """Whether the result is of an implementation and a case that the entry names."""
        return result.case.op == self.op and _any(self.impl, result.impl) and _any(self.cases, result.case.id)


class Waivers:
    """The entries that hold for a GPU on a day, and which of them a run has needed."""

    def __init__(self, entries: Iterable[Entry], arch: str, today: date | None = None) -> None:
        today = today or datetime.now(timezone.utc).date()
        here = [entry for entry in entries if _any(entry.arch, arch)]
        self.expired = [entry for entry in here if entry.expires < today]
        self.entries = [entry for entry in here if entry.expires >= today]

    def apply_waivers(self, result: Result) -> Result:
        """The result as XFail or Waived where an entry expects its failure, else as it is."""
        for entry in self.entries:
            if result.state == entry.state and entry.names(result):
                message = f"{result.message}; known: {entry.reason} {entry.mark}"
                return replace(result, state=KINDS[entry.kind], message=message)
        return result

    def used(self, results: Iterable[Result]) -> list[dict[str, Any]]:
        """The entries that were applied to some of these results, as a record holds them."""
        known = [result for result in results if result.state in KNOWN]
        counts = [(entry, sum(entry.applied_to(result) for result in known)) for entry in self.entries]
        return [{"where": each.where, "kind": each.kind, "used": count} for each, count in counts if count]

    def settle(self, results: list[Result], picked: bool = False) -> list[str]:
        """What is wrong with the entries after a run, one line each; `results` then show the XPass of the
        unused ones.

        `picked`: cases were selected with -k, so no entry is called unused.
        """
        return [line for op, impl in dict.fromkeys((each.case.op, each.impl) for each in results)
                for line in self._settle(results, op, impl, picked)]  # fmt: skip

    def _settle(self, results: list[Result], op: str, impl: str, picked: bool) -> list[str]:
        """The same, of one implementation of one op."""
        here = [place for place, each in enumerate(results) if (each.case.op, each.impl) == (op, impl)]
        lines = []
        for entry in self.expired:
            if count := sum(_judged(results[place]) for place in here if entry.names(results[place])):
                lines.append(
                    f"{entry.where}: expired on {entry.expires}; cases of {entry.op} that it names ran"
                    f" on {impl} ({count}). Measure again, then renew or remove it."
                )
        for entry in [] if picked else self.entries:
            judged = [place for place in here if entry.names(results[place]) and _judged(results[place])]
            if not judged or any(entry.applied_to(results[place]) for place in judged):
                continue
            lines.append(
                f"{entry.where}: unused; of the cases of {entry.op} that it names, {len(judged)} ran on"
                f" {impl} and none is {entry.state}. Remove it, or narrow its globs."
            )
            for place in judged if entry.kind == "xfail" else ():
                if results[place].state == "Pass":
                    message = f"expected {entry.state}: {entry.reason} ({entry.where})"
                    results[place] = replace(results[place], state="XPass", message=message)
        return lines


def active() -> Waivers:
    """The waivers of the active device's vendor, for that device."""
    info = portable.device()
    return Waivers(load(registry.vendors()[info.vendor] / FILE), info.arch)


def load(file: Path) -> tuple[Entry, ...]:
    """The file's entries, validated. Raises SpecError with file and line; no file, no entries."""
    if not file.exists():
        return ()
    data = strict_yaml.load(file)
    if isinstance(data, strict_yaml.Map) and "edition" in data:
        raise SpecError(file, data.line_of("edition"), "'edition' is now called schema_version")
    if (
        not isinstance(data, strict_yaml.Map)
        or set(data) != {"schema_version", "entries"}
        or data["schema_version"] != 1
        or not isinstance(data["entries"], strict_yaml.List)
    ):
        raise SpecError(file, 1, "expected `schema_version: 1` and a list `entries`, and nothing else")
    found = []
    for index, raw in enumerate(data["entries"]):
        if not isinstance(raw, strict_yaml.Map):
            raise SpecError(file, data["entries"].line_of(index), "an entry is a mapping")
        found.append(_entry(file, raw))
    return tuple(found)


def _entry(file: Path, raw: strict_yaml.Map) -> Entry:
    for key in raw:
        if key not in _KEYS:
            raise SpecError(file, raw.line_of(key), f"unknown key {key!r}.{nearest(key, _KEYS)}")
    lacking = [key for key in _KEYS if key not in raw]
    if lacking:
        raise SpecError(file, raw.line, f"the entry lacks {listed(lacking)}")
    for key in _KEYS:
        texts = raw[key] if key in _LISTS else [raw[key]]
        if not isinstance(texts, list) or not texts:
            raise SpecError(file, raw.line_of(key), f"{key} is a list of one glob or more")
        for text in texts:
            if not isinstance(text, str) or not text.strip():
                raise SpecError(file, raw.line_of(key), f"{key}: expected text, got {text!r}")
    _one_of(file, raw, "kind", KINDS)
    _one_of(file, raw, "op", registry.op_folders())
    _one_of(file, raw, "state", FAIL_STATES)
    if not re.search(r"\d", raw["evidence"]):
        raise SpecError(file, raw.line_of("evidence"), "evidence holds a figure or names a record")
    spec = registry.spec(raw["op"])
    _globs(file, raw, "impl", [each.name for each in spec.implementations], "implementation")
    ids = [case.id for case in [*cases.cases(spec), *behaviour.cases([spec.op])]]
    _globs(file, raw, "cases", ids, "case")
    lists: dict[str, Any] = {key: tuple(raw[key]) for key in _LISTS}
    where = f"{file.parent.name}/{file.name}:{raw.line}"
    return Entry(**{**raw, **lists, "expires": _date(file, raw), "where": where})


def _one_of(file: Path, raw: strict_yaml.Map, key: str, known: Iterable[str]) -> None:
    if raw[key] not in known:
        hint = nearest(raw[key], known)
        problem = f"{key}: {raw[key]!r} is not one of {listed(sorted(known))}.{hint}"
        raise SpecError(file, raw.line_of(key), problem)


def _globs(file: Path, raw: strict_yaml.Map, key: str, known: list[str], what: str) -> None:
    """Every glob names something: one that matches nothing is a slip of the pen."""
    for index, glob in enumerate(raw[key]):
        if not any(fnmatchcase(name, glob) for name in known):
            problem = f"{key}: {glob!r} matches no {what} of {raw['op']}.{nearest(glob, known)}"
            raise SpecError(file, raw[key].line_of(index), problem)


def _date(file: Path, raw: strict_yaml.Map) -> date:
    text = raw["expires"]
    try:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
            raise ValueError("expected year-month-day")
        return date.fromisoformat(text)
    except ValueError as error:
        raise SpecError(file, raw.line_of("expires"), f"expires: {text!r} is no date: {error}") from None


def _any(globs: Iterable[str], name: str) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _judged(result: Result) -> bool:
    """Whether the kernel gave a result: one that did not run says nothing about an entry."""
    return result.state in {"Pass", "QualityWarning", "XFail", "Waived"} or result.state in FAIL_STATES
