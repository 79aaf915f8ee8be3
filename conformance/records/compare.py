"""Whether two devices agree: two records, joined by case and implementation.

Both records were judged against the same float64 oracle. Where both conform, each is within its bound of
the oracle, and the two bounds explain any difference; where a case demands exactness, they must agree bit
for bit, and the digests show it. Everything else is a disagreement.

An implementation is joined with the one of the same name. A native kernel that only one side can run
(a matrix-core kernel of one vendor) is joined with each native kernel that only the other side can run.
The first record is called A, the second B.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from portable.conformance.cases.case import op_of
from portable.conformance.records import modelled as modelled_times
from portable.conformance.records import parity as parities
from portable.conformance.records import record
from portable.conformance.records.schema import SCHEMA
from portable.conformance.states import CONFORMING, KNOWN
from portable.errors import PortableError
from portable.spec import registry

SHARED_LANGUAGES = frozenset({"triton", "torch"})
"""What every vendor builds; an implementation in any other language is native."""
ROUNDED = 1.001
"""A result may pass at its bound; records keep five digits of |error| / bound."""
SHOWN = 20
"""Lines of one kind that a report prints before it only counts."""

Record = Mapping[str, Any]
Results = dict[tuple[str, str], dict[str, dict[str, Any]]]


class CompareError(PortableError, ValueError):
    """Two records that cannot be compared; the message says why."""


class NothingInCommon(CompareError):
    """No implementation ran one case in both: nothing to compare."""


@dataclass
class Agreement:
    """What became of the cases of one implementation of one op: `impl` of A against `other` of B.

    Of `cases` that both ran, `exact` demand equal bits and `equal` came out bit-equal. Counted apart are
    `behaviours`, which have no output; `known`, XFail or Waived on a side; `unsupported`, what only
    one side supports; and `only`, the cases of A that B lacks and those of B that A lacks. None of the last
    three is a disagreement; `problems` are the disagreements.
    """

    op: str
    impl: str
    other: str
    cases: int = 0
    exact: int = 0
    equal: int = 0
    behaviours: int = 0
    known: int = 0
    unsupported: int = 0
    only: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """`triton`, or `mma against mfma` where the two sides have different kernels."""
        return self.impl if self.impl == self.other else f"{self.impl} against {self.other}"


def agreements(one: Record, other: Record) -> list[Agreement]:
    """Per op, the implementations that were joined, in A's order.

    CompareError for another schema, another spec or other inputs, a result that is listed twice, or nothing
    in common.
    """
    if not one["schema"] == other["schema"] == SCHEMA:
        raise CompareError(
            f"the records are of schema {one['schema']} and {other['schema']}; "
            f"this program compares schema {SCHEMA}"
        )
    sides = [_results(each, label) for each, label in ((one, "A"), (other, "B"))]
    common = {op for op, _ in sides[0]} & {op for op, _ in sides[1]}
    _same_specs(one, other, common)
    _same_inputs(one, other)
    found = []
    for op in dict.fromkeys(op for op, _ in sides[0] if op in common):
        for mine, theirs in _pairs(op, *sides):
            joined = Agreement(op, mine, theirs)
            _join(joined, sides[0][op, mine], sides[1][op, theirs], (one["inputs"], other["inputs"]))
            found.append(joined)
    if not any(each.cases or each.behaviours for each in found):
        raise NothingInCommon("the two records have no case that both ran in common")
    return found


def report(one: Record, other: Record, parity: float | None = None) -> tuple[list[str], bool]:
    """Lines for people, and whether the two agree; with `parity`, a threshold above 0, also whether B's
    speed is not below it. Modelled times come after the verdict and are no part of it. CompareError and
    ParityError for records that cannot be compared so."""
    found = agreements(one, other)
    lines = [f"{label}: {name}" for label, name in zip("AB", names(one, other), strict=True)]
    lines += [f"Notice: {text}" for text in notices(one, other)]
    width = max(len(each.name) for each in found)
    lines.append(
        f"{'op':<20} {'implementation':<{width}} {'cases':>6} {'bit-equal':>10} {'exact':>6} "
        f"{'behaviours':>10} {'known':>6} {'one side':>8}  disagreements"
    )
    alike = _selection(one) == _selection(other)
    for each in found:
        share = f"{each.equal / each.cases:.0%}" if each.cases else "-"
        lines.append(
            f"{each.op:<20} {each.name:<{width}} {each.cases:>6} {share:>10} {each.exact:>6} "
            f"{each.behaviours:>10} {each.known:>6} {each.unsupported:>8}  {len(each.problems)}"
        )
        lines += _shown(each.problems, "    ")
        for label, cases in zip("AB", each.only, strict=True):
            if cases:
                lines.append(f"    only in {label}: {_count(len(cases), 'case')}")
                lines += _shown(cases, "        ") if alike else []
    lines += _alone(one, other, found)
    sentence, agree = _verdict(found)
    lines.append(sentence)
    if parity is not None:
        measured, passes = parities.report(one, other, parity)
        lines += ["", *measured]
        agree = agree and passes
    return lines + modelled_times.report(one, other), agree


def data(one: Record, other: Record, parity: float | None = None) -> dict[str, Any]:
    """The same as plain data: `names`, `notices`, `agreement` (one entry per joined implementation),
    `parity` (one entry per ratio; its `case` is "" where it is the op's mean), `verdict`, `agree`,
    `target` with `--parity`, and `modelled` where a side holds modelled times."""
    found = agreements(one, other)
    verdict, agree = _verdict(found)
    notes, target, rows = notices(one, other), {}, []
    if parity is not None:
        measured = parities.parity(one, other, parity)
        notes += [f"parity refused: {text}" for text in measured.refused]
        target, rows = {"target": parity}, measured.data()
        verdict, agree = f"{verdict} {measured.sentence}", agree and measured.passes
    return {
        "names": names(one, other),
        "notices": notes,
        "agreement": [
            {
                "op": each.op, "impl": each.name, "cases": each.cases, "exact": each.exact,
                "equal": each.equal, "behaviours": each.behaviours, "known": each.known,
                "unsupported": each.unsupported, "only_a": each.only[0], "only_b": each.only[1],
                "problems": each.problems,
            }
            for each in found
        ],
        "parity": rows,
        "verdict": verdict,
        "agree": agree,
        **target,
        **({"modelled": modelled_times.data(one, other)} if modelled_times.either(one, other) else {}),
    }  # fmt: skip


def names(one: Record, other: Record) -> list[str]:
    """A's and B's device, with Triton's version; where that is the same, with commit and date too."""
    found = [_device(each["header"]) for each in (one, other)]
    if found[0] == found[1]:
        heads = [each["header"] for each in (one, other)]
        found = [
            f"{name}, commit {(head['commit'] or 'unknown')[:12]}, {head['date']}"
            for name, head in zip(found, heads, strict=True)
        ]
    return found


def notices(one: Record, other: Record) -> list[str]:
    """What a reader must know of the two runs before the table."""
    lines = [
        f"{label} is incomplete: the run was interrupted; only what it holds is compared"
        for label, each in (("A", one), ("B", other))
        if not each["header"]["complete"]
    ]
    for name, a, b in zip(
        ("tier", "fraction", "ops", "impls", "k"), _selection(one), _selection(other), strict=True
    ):
        if a != b:
            shown = [f"{len(each)} ops" if name == "ops" else each for each in (a, b)]
            lines.append(
                f"the two runs selected different cases ({name}: A {shown[0]}, B {shown[1]}); "
                f"only those in common are compared"
            )
    return lines


# Joining ------------------------------------------------------------------------------------------


def _results(side: Record, label: str) -> Results:
    """Results by op and implementation, then by case; what an interrupted run did not reach is left out."""
    found: Results = {}
    for result in side["results"]:
        if result["state"] == "NotRun" and not side["header"]["complete"]:
            continue
        cases = found.setdefault((op_of(result["case"]), result["impl"]), {})
        before = cases.setdefault(result["case"], result)
        if (before["state"], before.get("digest")) != (result["state"], result.get("digest")):
            raise CompareError(
                f"{label} holds two different results of {result['case']} on {result['impl']}: "
                f"{before['state']} and {result['state']}"
            )
    return found


def _same_specs(one: Record, other: Record, ops: Iterable[str]) -> None:
    for op in sorted(ops):
        digests = [each["header"]["specs"].get(op) for each in (one, other)]
        if None in digests:
            label = "AB"[digests.index(None)]
            raise CompareError(f"{op}: {label}'s header has no digest of its spec; record the run again")
        if digests[0] != digests[1]:
            raise CompareError(
                f"{op}: the two runs used different specs ({digests[0]} and {digests[1]}); "
                f"compare runs of one version of the spec"
            )


def _same_inputs(one: Record, other: Record) -> None:
    for case in sorted(one["inputs"].keys() & other["inputs"].keys()):
        if one["inputs"][case] != other["inputs"][case]:
            raise CompareError(
                f"{case}: the two runs had different inputs; compare runs of one version of the suite"
            )


def _pairs(op: str, one: Results, other: Results) -> list[tuple[str, str]]:
    """The implementations of an op to join: by name, then native kernels that only one side can run."""
    sides = [{name: results for (each, name), results in side.items() if each == op} for side in (one, other)]
    same = [(name, name) for name in sides[0] if name in sides[1]]
    able = [[name for name, results in side.items() if _ran(results.values())] for side in sides]
    lone = [[name for name in able[at] if name not in able[1 - at] and _native(op, name)] for at in (0, 1)]
    return same + list(product(lone[0], lone[1]))


def _ran(results: Iterable[dict[str, Any]]) -> bool:
    return any(result["state"] != "NotSupported" and not _is_behaviour(result["case"]) for result in results)


def _native(op: str, name: str) -> bool:
    """Whether the implementation is written in one vendor's language; False where the catalogue does not list
    it."""
    if op not in registry.op_folders():
        return False
    found = registry.spec(op).implementation(name)
    return found is not None and not SHARED_LANGUAGES.intersection(found.languages)


def _is_behaviour(case: str) -> bool:
    return "/behaviour/" in case


# Judging ------------------------------------------------------------------------------------------


def _join(
    found: Agreement,
    one: dict[str, dict[str, Any]],
    other: dict[str, dict[str, Any]],
    inputs: tuple[Mapping[str, str], Mapping[str, str]],
) -> None:
    found.only[0].extend(case for case in one if case not in other)
    found.only[1].extend(case for case in other if case not in one)
    for case, a in one.items():
        if case in other:
            _case(found, case, (a, other[case]), all(case in each for each in inputs))


def _case(
    found: Agreement, case: str, pair: tuple[dict[str, Any], dict[str, Any]], same_inputs: bool
) -> None:
    """Count one case that both records hold."""
    states = [each["state"] for each in pair]
    failed = any(state not in CONFORMING for state in states)
    if "NotSupported" in states and not failed:
        found.unsupported += states[0] != states[1]
        return
    if not failed and KNOWN.intersection(states):
        found.known += 1
        return
    if _is_behaviour(case):
        found.behaviours += 1
        if failed:
            found.problems.append(f"{case}: {states[0]} against {states[1]}")
        return
    digests = [each.get("digest") for each in pair]
    equal = None not in digests and digests[0] == digests[1]
    exact = any(each.get("exact", False) for each in pair)
    found.cases += 1
    found.equal += equal
    found.exact += exact
    beyond = [f"{label} {each['worst']}" for label, each in zip("AB", pair, strict=True) if outside(each)]
    if failed:
        found.problems.append(f"{case}: {states[0]} against {states[1]}")
    elif not same_inputs:
        found.problems.append(f"{case}: a record has no hash of its inputs, so the two may differ")
    elif exact and not equal:
        lacking = "a digest is missing" if None in digests else "is not"
        found.problems.append(f"{case}: must be bit-equal, and {lacking}")
    elif beyond:
        found.problems.append(f"{case}: passed outside its bound (|error| / bound: {', '.join(beyond)})")


def outside(result: Mapping[str, Any]) -> bool:
    """Whether a result says of itself that its error is beyond its bound."""
    try:
        return not float(result.get("worst", 0.0)) <= ROUNDED
    except ValueError:
        return True


def _verdict(found: list[Agreement]) -> tuple[str, bool]:
    total: Counter[str] = Counter()
    for each in found:
        for name in ("cases", "equal", "exact", "behaviours", "known", "unsupported"):
            total[name] += getattr(each, name)
        total.update(problems=len(each.problems), only_a=len(each.only[0]), only_b=len(each.only[1]))
    if total["problems"]:
        cases = _count(total["cases"] + total["behaviours"], "case")
        text = f"The two disagree in {total['problems']} of {cases}."
    else:
        text = (
            f"The two agree: {_count(total['cases'], 'case')} within both bounds, "
            f"{total['equal']} of them bit-equal (required of {total['exact'] or 'none'})."
        )
    asides = [
        _count(total["behaviours"], "behaviour") + " run on both" if total["behaviours"] else "",
        _count(total["known"], "known failure") if total["known"] else "",
        f"{total['unsupported']} supported on one side only" if total["unsupported"] else "",
        f"{total['only_a']} only in A" if total["only_a"] else "",
        f"{total['only_b']} only in B" if total["only_b"] else "",
    ]
    notes = ", ".join(each for each in asides if each)
    return (f"{text} Besides: {notes}." if notes else text), not total["problems"]


# Text ---------------------------------------------------------------------------------------------


def _alone(one: Record, other: Record, found: list[Agreement]) -> list[str]:
    """What was joined with nothing: results by op and implementation that one record alone has."""
    lines = []
    joined = {(each.op, each.impl) for each in found}, {(each.op, each.other) for each in found}
    for label, side, partners in zip("AB", (one, other), joined, strict=True):
        for group in record.summaries(side):
            if (group.op, group.impl) not in partners:
                count = _count(len(group.results), "result")
                lines.append(f"only in {label}: {group.op} {group.impl}, {count}")
    return lines


def _selection(side: Record) -> tuple[Any, ...]:
    head = side["header"]
    picked = head["selection"]
    ops = tuple(sorted(map(str, picked["ops"])))
    impls = None if picked["impls"] is None else tuple(sorted(map(str, picked["impls"])))
    return head["tier"], tuple(head["fraction"]), ops, impls, picked["k"]


def _shown(lines: list[str], indent: str) -> list[str]:
    rest = len(lines) - SHOWN
    return [indent + line for line in lines[:SHOWN]] + ([f"{indent}and {rest} more"] if rest > 0 else [])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _device(head: Mapping[str, Any]) -> str:
    triton = head["versions"].get("triton")
    return head["device"] + (f" (Triton {triton})" if triton else "")
