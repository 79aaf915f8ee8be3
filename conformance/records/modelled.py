"""Times of two records of which at least one is modelled: shown beside each other, and never judged.

A record of an emulated GPU may hold times by its timing model (`modelled`); one of a GPU holds measured ones
(`timings`). The ratio is of roofline efficiencies, B's over A's, as in `parity`, but a modelled side's roof
is the model's, and the model may be off by its `accuracy`. So there is no interval, threshold or verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from portable.conformance.states import CONFORMING
from portable.conformance.text import number, pluralize

TITLE = "Modelled: times by a timing model, at least of one side. Not measured, and no part of any verdict."

_NAMED = 3
"""Cases of one side alone that a report names; more are only counted."""

Record = Mapping[str, Any]
Times = dict[tuple[str, str], dict[str, "Time"]]


@dataclass(frozen=True)
class Time:
    """One implementation's time of a case; `floor_us` is the least that its roof allows, None without one."""

    impl: str
    microseconds: float
    floor_us: float | None
    work: tuple[float, float]

    @property
    def of_roof(self) -> float | None:
        return None if self.floor_us is None else self.floor_us / self.microseconds


@dataclass(frozen=True)
class Row:
    """B beside A, A's figures first. `ratio` is B's efficiency over A's, None where a roof is missing. `case`
    is "" where the figures are geometric means over the op's `cases` cases; then there are no times."""

    op: str
    case: str
    impl: str
    microseconds: tuple[float | None, float | None]
    of_roof: tuple[float | None, float | None]
    ratio: float | None
    cases: int = 1


def either(one: Record, other: Record) -> bool:
    """Whether a side holds modelled times."""
    return "modelled" in one or "modelled" in other


def sources(one: Record, other: Record) -> list[str]:
    """Where A's and B's times come from, in words."""
    return [_source(each) for each in (one, other)]


def kinds(one: Record, other: Record) -> list[str]:
    """ "modelled" or "measured" of A and B."""
    return ["modelled" if "modelled" in each else "measured" for each in (one, other)]


def rows(one: Record, other: Record) -> list[Row]:
    """Each case that both hold: the fastest implementation of each side, and those that both have; then the
    means over each op's cases."""
    sides = [_times(each) for each in (one, other)]
    found: list[Row] = []
    means: dict[tuple[str, str], list[Row]] = {}
    for (op, case), a in sides[0].items():
        b = sides[1].get((op, case), {})
        if not b or _fault(a, b):
            continue
        best = [min(side.values(), key=lambda each: each.microseconds) for side in (a, b)]
        against = " against ".join(dict.fromkeys(each.impl for each in best))
        pairs = {"best": (f"best ({against})", best)}
        pairs |= {name: (name, [a[name], b[name]]) for name in a if name in b}
        for group, (label, pair) in pairs.items():
            found.append(_row(op, case, label, pair))
            means.setdefault((op, group), []).append(found[-1])
    return found + [_mean(op, impl, each) for (op, impl), each in means.items()]


def report(one: Record, other: Record) -> list[str]:
    """Lines for people; none where neither side is modelled."""
    if not either(one, other):
        return []
    lines = ["", TITLE]
    lines += [f"  {label}: {text}" for label, text in zip("AB", sources(one, other), strict=True)]
    sides = [_times(each) for each in (one, other)]
    for label, side in zip("AB", sides, strict=True):
        if not side:
            lines.append(
                f"  {label} holds no times; run it with --bench on a GPU, with --model on an emulated one"
            )
    if not all(sides):
        return lines
    cells = [
        (
            row.case.removesuffix("/normal/bench") or f"{row.op}, mean of {row.cases}",
            row.impl,
            *("-" if each is None else f"{each:.4g}" for each in row.microseconds),
            *("-" if each is None else number(each) for each in row.of_roof),
            "-" if row.ratio is None else f"{row.ratio:.2f}",
        )
        for row in rows(one, other)
    ]
    if cells:
        lines += _aligned([tuple(columns(one, other)), *cells])
    for (op, case), a in sides[0].items():
        if fault := _fault(a, sides[1].get((op, case), {})):
            lines.append(f"  refused: {case}: {fault}")
    for label, mine, theirs in (("A", *sides), ("B", *sides[::-1])):
        alone = [case for op, case in mine if (op, case) not in theirs]
        if alone:
            shown = ", ".join(alone) if len(alone) <= _NAMED else pluralize(len(alone), "case")
            lines.append(f"  timed only in {label}: {shown}")
    return lines


def table(part: Mapping[str, Any]) -> tuple[list[str], list[list[str]], list[str]]:
    """A record's `modelled` as a table for people: its head, its rows, and the lines below it."""
    head = ["case", "implementation", "modelled us", "TB/s", "TFLOP/s", "of the model's roof"]
    timed = [each for each in part["times"] if each["modelled_us"] is not None]
    rows = [
        [
            each["case"].removesuffix("/normal/bench"),
            each["impl"],
            f"{each['modelled_us']:.1f}",
            number(each["bytes"] / each["modelled_us"] / 1e6),
            number(each["flops"] / each["modelled_us"] / 1e6),
            number(each["floor_us"] / each["modelled_us"]) if each["floor_us"] else "-",
        ]
        for each in timed
    ]
    notes = [f"Modelled, not measured: {part['accuracy']}."]
    notes += [f"roof of the model: {name} {value:.4g}" for name, value in part["roof"].items()]
    notes += [
        f"not modelled: {each['case'].removesuffix('/normal/bench')} on {each['impl']}: {each['message']}"
        for each in part["times"]
        if each["modelled_us"] is None
    ]
    return head, rows, notes


def columns(one: Record, other: Record) -> list[str]:
    """The table's head: which figures are modelled stands in each column."""
    a, b = kinds(one, other)
    return [
        "case", "implementation", f"A us, {a}", f"B us, {b}", f"A of roof, {a}", f"B of roof, {b}",
        "B over A, modelled",
    ]  # fmt: skip


def data(one: Record, other: Record) -> dict[str, Any]:
    """The same as plain data: `sources`, `columns` and `rows`."""
    return {
        "sources": sources(one, other),
        "columns": columns(one, other),
        "rows": [asdict(row) for row in rows(one, other)],
    }


def _source(side: Record) -> str:
    device = side["header"]["device"]
    part = side.get("modelled")
    return f"measured on {device}" if part is None else f"modelled on {device}, {part['accuracy']}"


def _times(side: Record) -> Times:
    """By op and case, then by implementation: modelled times where the record has that part, else measured
    ones that conform."""
    found: Times = {}
    part = side.get("modelled")
    entries = side["timings"] if part is None else part["times"]
    for each in entries:
        us = each["device_us"] if part is None else each["modelled_us"]
        if us is None or (part is None and each["state"] not in CONFORMING):
            continue
        time = Time(each["impl"], us, each["floor_us"], (each["bytes"], each["flops"]))
        found.setdefault((each["op"], each["case"]), {})[each["impl"]] = time
    return found


def _fault(a: Mapping[str, Time], b: Mapping[str, Time]) -> str:
    """Why a case of both sides cannot be compared, or ""."""
    if a and b and len({each.work for side in (a, b) for each in side.values()}) > 1:
        return "the two runs count different bytes or flops for it"
    return ""


def _row(op: str, case: str, impl: str, pair: Sequence[Time]) -> Row:
    a, b = (each.of_roof for each in pair)
    ratio = None if a is None or b is None else b / a
    return Row(op, case, impl, (pair[0].microseconds, pair[1].microseconds), (a, b), ratio)


def _mean(op: str, impl: str, found: Sequence[Row]) -> Row:
    whole = [row for row in found if row.ratio is not None]
    a, b = (_geometric([row.of_roof[side] for row in whole]) for side in (0, 1))
    return Row(op, "", impl, (None, None), (a, b), _geometric([row.ratio for row in whole]), len(whole))


def _geometric(values: Sequence[float | None]) -> float | None:
    logs = [math.log(each) for each in values if each is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
