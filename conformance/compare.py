"""Whether two devices agree: two records, joined by case, op and implementation.

Both records were judged against the same float64 oracle. Where both conform, their results agree within
both bounds; where a case demands exactness, they agree bit for bit, and the digests show it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from portable.errors import PortableError


class CompareError(PortableError, ValueError):
    """Two records that cannot be compared; the message says why."""


@dataclass
class Agreement:
    """What became of the cases that both records hold, for one implementation of one op.

    `cases` both ran, `exact` of them demand equal bits, `equal` came out bit-equal; `problems` are
    cases where one side does not conform, or where an exact one differs.
    """

    op: str
    impl: str
    cases: int = 0
    exact: int = 0
    equal: int = 0
    problems: list[str] = field(default_factory=list)


def agreements(one: dict[str, Any], other: dict[str, Any]) -> list[Agreement]:
    """Per op and implementation that both have. CompareError for differing inputs, or none in common."""
    common = one["inputs"].keys() & other["inputs"].keys()
    for case in sorted(common):
        if one["inputs"][case] != other["inputs"][case]:
            raise CompareError(
                f"{case}: the two runs had different inputs; compare runs of one version of the suite"
            )
    groups = {(group["op"], group["impl"]): group for group in other["results"]}
    found = []
    for group in one["results"]:
        partner = groups.get((group["op"], group["impl"]))
        if partner is not None:
            found.append(_agreement(group, partner))
    if not any(each.cases for each in found):
        raise CompareError("the two records have no case of one implementation in common")
    return found


def _agreement(group: dict[str, Any], partner: dict[str, Any]) -> Agreement:
    result = Agreement(group["op"], group["impl"])
    failed = [_failures(each) for each in (group, partner)]
    exact = set(group["exact"]) | set(partner["exact"])
    for case in sorted(group["digests"].keys() & partner["digests"].keys()):
        result.cases += 1
        equal = group["digests"][case] == partner["digests"][case]
        result.equal += equal
        result.exact += case in exact
        states = [each.get(case) for each in failed]
        if any(states):
            result.problems.append(f"{case}: {states[0] or 'Pass'} against {states[1] or 'Pass'}")
        elif case in exact and not equal:
            result.problems.append(f"{case}: must be bit-equal, and is not")
    return result


def _failures(group: dict[str, Any]) -> dict[str, str]:
    passed = ("QualityWarning", "XPass")
    return {each["case"]: each["state"] for each in group["problems"] if each["state"] not in passed}


def report(one: dict[str, Any], other: dict[str, Any]) -> tuple[list[str], bool]:
    """Lines for people, and whether the two devices agree."""
    found = agreements(one, other)
    names = [_device(record["header"]) for record in (one, other)]
    lines = [
        f"{names[0]} against {names[1]}",
        f"{'op':<20} {'implementation':<15} {'cases':>6} {'bit-equal':>10} {'exact':>6}  disagreements",
    ]
    total: Counter[str] = Counter()
    for each in found:
        share = f"{each.equal / each.cases:.0%}" if each.cases else "-"
        row = f"{each.op:<20} {each.impl:<15} {each.cases:>6} {share:>10} {each.exact:>6}"
        lines.append(f"{row}  {len(each.problems)}")
        lines += [f"    {problem}" for problem in each.problems]
        total.update(cases=each.cases, equal=each.equal, exact=each.exact, problems=len(each.problems))
    verdict = "agree" if not total["problems"] else f"disagree in {total['problems']} cases"
    lines.append(
        f"The two {verdict}: {total['cases']} cases within both bounds, {total['equal']} of them bit-equal; "
        f"{total['exact']} had to be."
        if not total["problems"]
        else f"The two {verdict} of {total['cases']}."
    )
    return lines, not total["problems"]


def _device(header: dict[str, Any]) -> str:
    versions = header["versions"]
    triton = versions.get("triton")
    return header["device"] + (f" (Triton {triton})" if triton else "")
