"""Parity of two GPUs: the ratio of their roofline efficiencies, B's over A's, with its interval.

Each record measured its own roof, so a ratio says how much of its GPU each side's kernel uses, not which
GPU is faster. It is computed case by case for the fastest implementation of each side and for each
implementation that both have, and per op for the geometric mean over its cases. A is the yardstick:

- parity: the whole interval is at the threshold or above;
- below: the whole interval is below it;
- inconclusive: the threshold is inside; measure again, on a quieter machine or with more rounds.

Two runs on one GPU are judged the same way: a regression gate. A ratio below fails, and so does a case
that had to be refused; an inconclusive ratio does not fail, and is printed and counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from portable.conformance import stats
from portable.conformance.states import CONFORMING
from portable.conformance.text import number
from portable.errors import PortableError

VERDICTS = ("parity", "below", "inconclusive")

Record = Mapping[str, Any]
Timing = Mapping[str, Any]


class ParityError(PortableError, ValueError):
    """Two records whose speeds cannot be compared; the message says why."""


@dataclass(frozen=True)
class Row:
    """One ratio: B's roofline efficiency over A's, with its 95 % interval and its verdict.

    `case` is "" where the ratio is the geometric mean over the op's `cases` cases; `of_roof` are the two
    efficiencies, A's first.
    """

    op: str
    case: str
    impl: str
    ratio: float
    low: float
    high: float
    verdict: str
    of_roof: tuple[float, float]
    cases: int = 1


@dataclass
class Parity:
    """All ratios of two records. `refused` are sentences about cases that cannot be judged, `alone` the
    cases that A or B alone has timed."""

    threshold: float
    same_device: bool
    rows: list[Row] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    alone: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))

    @property
    def counts(self) -> Counter[str]:
        return Counter(row.verdict for row in self.rows)

    @property
    def passes(self) -> bool:
        """No ratio is below, and no case had to be refused."""
        return not self.counts["below"] and not self.refused

    @property
    def sentence(self) -> str:
        """The verdict of the whole in one sentence."""
        found = self.counts
        if found["below"]:
            verdict = "does not hold"
        elif self.refused:
            verdict = "cannot be judged"
        else:
            verdict = "is inconclusive" if found["inconclusive"] else "holds"
        counts = ", ".join(f"{found[name]} {name}" for name in VERDICTS)
        refused = f", {len(self.refused)} refused" if self.refused else ""
        return f"Parity {verdict} at {self.threshold:g}: of {len(self.rows)} ratios {counts}{refused}."

    def data(self) -> list[dict[str, Any]]:
        """The ratios as plain data."""
        names = ("op", "case", "impl", "ratio", "low", "high", "verdict", "cases")
        return [
            {name: getattr(row, name) for name in names} | {"of_roof": list(row.of_roof)} for row in self.rows
        ]


def parity(one: Record, other: Record, threshold: float) -> Parity:
    """Every ratio of B (`other`) to A (`one`), judged against `threshold`, a share above 0.

    ParityError for an emulated device, for the CPU, and for records with no timing in common.
    """
    if isinstance(threshold, bool) or not (math.isfinite(threshold) and threshold > 0):
        raise ParityError(f"parity {threshold}: expected a share above 0, such as 0.8")
    heads = one["header"], other["header"]
    for label, each in (("A", one), ("B", other)):
        _is_gpu(label, each["header"], "modelled" in each)
    sides = [_timings(label, each) for label, each in (("A", one), ("B", other))]
    common = [key for key in sides[0] if key in sides[1]]
    if not common:
        raise ParityError("the two records have timed no case in common; run both with the same --ops")
    found = Parity(
        threshold,
        all(heads[0][name] == heads[1][name] for name in ("vendor", "device", "arch")),
        alone=(
            [case for op, case in sides[0] if (op, case) not in sides[1]],
            [case for op, case in sides[1] if (op, case) not in sides[0]],
        ),
    )
    joined: dict[tuple[str, str], list[tuple[Timing, Timing]]] = {}
    for key in common:
        op, case = key
        a, b = (side[key] for side in sides)
        fault = _fault(a, b)
        if fault:
            found.refused.append(f"{case}: {fault}")
            continue
        best = max(a.values(), key=_efficiency), max(b.values(), key=_efficiency)
        pairs = {f"best ({_against(best)})": ("best", best)}
        pairs |= {name: (name, (a[name], b[name])) for name in a if name in b}
        for label, (group, pair) in pairs.items():
            found.rows.append(_row(op, case, label, [pair], threshold))
            joined.setdefault((op, group), []).append(pair)
    for (op, group), pairs_of_op in joined.items():
        found.rows.append(_row(op, "", group, pairs_of_op, threshold))
    return found


def report(one: Record, other: Record, threshold: float) -> tuple[list[str], bool]:
    """Lines for people, and whether parity passes. ParityError as of `parity`."""
    found = parity(one, other, threshold)
    lines = [
        "Parity: roofline efficiency of B over A, with its 95 % interval; each roof measured in its own run"
        + ("; same device" if found.same_device else "")
    ]
    for label, each in (("A", one), ("B", other)):
        roof = ", ".join(f"{name} {_figure(value)}" for name, value in (each["roof"] or {}).items())
        lines.append(f"  roof of {label}, {each['header']['device']}: {roof or 'not in the record'}")
    rows = [
        (
            row.case.removesuffix("/normal/bench") or f"{row.op}, mean of {row.cases}",
            row.impl,
            *(number(value) for value in row.of_roof),
            f"{row.ratio:.3f} ({row.low:.3f}..{row.high:.3f})",
            row.verdict,
        )
        for row in found.rows
    ]
    head = ("case", "implementation", "A of roof", "B of roof", "B over A", "verdict")
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    lines += [
        "  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    lines += [f"  refused: {text}" for text in found.refused]
    for label, cases in zip("AB", found.alone, strict=True):
        lines += [f"  timed only in {label}: {case}" for case in cases]
    return [*lines, found.sentence], found.passes


def _is_gpu(label: str, head: Mapping[str, Any], modelled: bool) -> None:
    remedy = "parity needs two records of GPUs, run with --bench"
    if head["emulated"]:
        shown = " (without --parity, modelled times are shown beside)" if modelled else ""
        raise ParityError(f"{label} ({head['device']}) is emulated and has no timings; {remedy}{shown}")
    if head["vendor"] == "cpu":
        raise ParityError(f"{label} ({head['device']}) is no GPU, and has no roof; {remedy}")


def _timings(label: str, side: Record) -> dict[tuple[str, str], dict[str, Timing]]:
    """Timings by op and case, then by implementation."""
    if not side["timings"]:
        raise ParityError(f"{label} ({side['header']['device']}) holds no timings; run it with --bench")
    found: dict[tuple[str, str], dict[str, Timing]] = {}
    for each in side["timings"]:
        impls = found.setdefault((each["op"], each["case"]), {})
        if each["impl"] in impls:
            raise ParityError(f"{label} holds two timings of {each['case']} on {each['impl']}")
        impls[each["impl"]] = each
    return found


def _fault(a: Mapping[str, Timing], b: Mapping[str, Timing]) -> str:
    """Why a case cannot be judged, or ""."""
    for label, side in (("A", a), ("B", b)):
        for name, each in side.items():
            if each["state"] == "InternalError":
                return f"{label}'s {name} is above the roof, so its roof was measured wrongly"
            if each["state"] not in CONFORMING:
                return f"{label}'s {name} is {each['state']}"
            try:
                _interval([(each, each)])
            except (TypeError, ValueError, OverflowError) as error:
                return f"{label}'s {name}: {error}"
    work = {(each["bytes"], each["flops"]) for side in (a, b) for each in side.values()}
    if len(work) > 1:
        return "the two runs count different bytes or flops for it; compare runs of one version of the spec"
    return ""


def _row(op: str, case: str, impl: str, pairs: Sequence[tuple[Timing, Timing]], threshold: float) -> Row:
    found = _interval(pairs)
    verdict = "parity" if found.low >= threshold else "below" if found.high < threshold else "inconclusive"
    shares = np.log([[_efficiency(each) for each in pair] for pair in pairs]).mean(axis=0)
    of_roof = float(np.exp(shares[0])), float(np.exp(shares[1]))
    return Row(op, case, impl, found.value, found.low, found.high, verdict, of_roof, len(pairs))


def _interval(pairs: Sequence[tuple[Timing, Timing]]) -> stats.Interval:
    """Geometric mean over cases of B's efficiency over A's."""
    if len(pairs) == 1:
        (a, b) = pairs[0]
        return stats.efficiency_ratio(b["floor_us"], b["device_us_all"], a["floor_us"], a["device_us_all"])
    return geometric_mean(
        [(b["floor_us"] / a["floor_us"], b["device_us_all"], a["device_us_all"]) for a, b in pairs]
    )


def geometric_mean(
    cases: Sequence[tuple[float, Sequence[float], Sequence[float]]],
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> stats.Interval:
    """The geometric mean over cases of B's efficiency over A's, and its interval.

    A case is (B's floor / A's floor, B's times, A's times), times positive and in one unit. The times of
    every case and side are resampled by themselves, and one draw is the mean over all cases. Exchanging A
    and B gives the reciprocal interval.
    """
    generator = np.random.default_rng(seed)
    half = stats.DRAWS // 2
    value, drawn = 0.0, np.zeros(2 * half)
    for floors, times_b, times_a in cases:
        logs = [np.log(np.asarray(times, dtype=np.float64)) for times in (times_b, times_a)]
        uniform = generator.random((2, half, max(each.size for each in logs)))
        medians = []
        for each, order in zip(logs, (uniform, uniform[::-1]), strict=True):
            picks = (order[..., : each.size] * each.size).astype(np.int64)
            medians.append(np.median(each[picks], axis=-1).ravel())
        value += math.log(floors) + float(np.median(logs[1]) - np.median(logs[0]))
        drawn += math.log(floors) + medians[1] - medians[0]
    value, drawn = value / len(cases), drawn / len(cases)
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    bounds = min(float(low), value), max(float(high), value)
    return stats.Interval(math.exp(value), math.exp(bounds[0]), math.exp(bounds[1]))


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else repr(value)


def _efficiency(each: Timing) -> float:
    return each["floor_us"] / float(np.median(np.asarray(each["device_us_all"], dtype=np.float64)))


def _against(pair: tuple[Timing, Timing]) -> str:
    names = [each["impl"] for each in pair]
    return names[0] if names[0] == names[1] else " against ".join(names)
