"""The page of `weather`: what each release of Triton makes of the same kernels, release by release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from portable.conformance.cases.case import op_of
from portable.conformance.states import GOOD, NOT_JUDGED
from portable.conformance.text import grouped, plain

OWN = "portable"
"""The corpus of a record that says none: this package's ops."""
SAFE, WRONG, CRASH = "safe", "wrong", "crash"
_LINES = 6  # of a message on the page

_HEAD = """# Compiler weather: regressions between releases of Triton

Written by `{command}`. The same cases of the same kernels, compiled by each release of
Triton, {how} and judged against float64.

- **safe**: compiled, ran, and every element is within its bound.
- **wrong**: ran, and a result is wrong, or the kernel did something undefined (a race, a read of what was
  never written, a missing wait, an access out of bounds).
- **crash**: did not compile, or did not run.
"""


def outcome(result: Mapping[str, Any]) -> str | None:
    """Safe, wrong or crash; None for a result that was not judged."""
    state = result["state"]
    if state in NOT_JUDGED:
        return None
    if state in GOOD:
        return SAFE
    fault = state == "Crash" and result.get("message", "").startswith("KernelFault")
    return WRONG if state.startswith("Fail.") or fault else CRASH


def outcomes_of(record: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """(case, implementation) -> outcome, of those that were judged."""
    found = {(each["case"], each["impl"]): outcome(each) for each in record["results"]}
    return {key: kind for key, kind in found.items() if kind is not None}


def unsafe(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The results that are wrong or a crash."""
    return [each for each in record["results"] if outcome(each) in (WRONG, CRASH)]


def version(record: Mapping[str, Any]) -> str:
    return record["header"]["versions"]["triton"]


def corpus(record: Mapping[str, Any]) -> str:
    return record["header"].get("corpus", OWN)


def page(records: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: counts for each release, corpus and target, then what is not safe, with the releases
    that have it.

    The records are in the order of the releases, all of one corpus and target together."""
    columns: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for each in records:
        columns.setdefault((corpus(each), each["header"]["arch"]), []).append(each)
    emulated = all(each["header"]["emulated"] for each in records)
    how = "executed on emulated GPUs (none of it ran on such a GPU)" if emulated else "run"
    alone = len({name for name, _ in columns}) == 1
    titles = {key: key[1] if alone else f"{key[0]}, {key[1]}" for key in columns}
    lines = [_HEAD.format(command="portable-conformance weather", how=how), *_contents(columns)]
    lines += _table({titles[key]: found for key, found in columns.items()})
    for key, found in columns.items():
        lines += ["", f"## {titles[key]}", "", *_changes(found)]
    return "\n".join(lines) + "\n"


def _contents(columns: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]) -> list[str]:
    """What each corpus is: of every column the first record says it."""
    lines: dict[str, str] = {}
    for (name, _), found in columns.items():
        head, results = found[0]["header"], found[0]["results"]
        kernels = list(dict.fromkeys(op_of(each["case"]) for each in results))
        if name == OWN:
            what = f"{len(kernels)} ops of this package, tier {head['tier']}"
        else:
            source = head.get("package") or f"written anew in the form of Triton's {name}"
            what = f"{len(results)} programs, {source}"
        lines.setdefault(name, f"- `{name}`: {what}: {', '.join(kernels)}.")
    return ["The corpora:", "", *lines.values(), ""]


def _table(targets: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    versions = list(dict.fromkeys(version(each) for found in targets.values() for each in found))
    lines = [
        "safe / wrong / crash:",
        "",
        f"| Triton | {' | '.join(targets)} |",
        "|---|" + "--:|" * len(targets),
    ]
    for name in versions:
        cells = []
        for found in targets.values():
            here = [each for each in found if version(each) == name]
            counts = Counter(outcomes_of(here[0]).values()) if here else None
            cells.append(
                "not run" if counts is None else f"{counts[SAFE]:,} / {counts[WRONG]:,} / {counts[CRASH]:,}"
            )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _changes(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is not safe on one target: alike failures together, with the releases that have them."""
    bad: dict[tuple[str, str], list[tuple[str, Mapping[str, Any]]]] = {}
    for each in records:
        for result in unsafe(each):
            bad.setdefault((result["case"], result["impl"]), []).append((version(each), result))
    if not bad:
        return ["Nothing."]
    failures = []
    for (case, impl), seen in bad.items():
        releases = ", ".join(name for name, _ in seen)
        first = seen[0][1]
        state = f"{op_of(case)} {releases} {outcome(first)}"
        failures.append((impl, state, first.get("message", ""), (case, impl, releases, first)))
    lines = []
    for alike in grouped(failures):
        case, impl, releases, result = alike[0]
        lines += [
            f"### {op_of(case)}, {impl}: {outcome(result)} with {releases}",
            "",
            f"First of these releases: {releases.partition(',')[0]}. {len(alike)} "
            + ("case" if len(alike) == 1 else "cases, the first of them:"),
            "",
            *(f"    {line}" for line in [case, *plain(result.get("message", "")).splitlines()[:_LINES]]),
            "",
        ]
    return lines[:-1]
