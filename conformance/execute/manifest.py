"""The checked-in manifest of each tier, and what a record lacks of it.

`manifest.json` has, by tier and op, how many cases and behaviours there are and the SHA-256 of their sorted
ids, a line each; `portable-conformance list` prints the ids.
`python -m portable.conformance.execute.manifest` writes it from the specs and the generators; a test holds it
to that. So a case that goes missing, by an edit of a spec or of the suite, shows as a changed line, and a run
that skips one is seen from its record alone.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portable.conformance.cases.case import op_of
from portable.conformance.cases.generate import TIERS, cases
from portable.conformance.execute import behaviour
from portable.conformance.states import Tally
from portable.spec import registry

FILE = Path(__file__).with_name("manifest.json")
REMAKE = "python -m portable.conformance.execute.manifest"


@dataclass(frozen=True)
class Listed:
    """The cases of an op in a tier: how many, and the SHA-256 of their sorted ids, a line each."""

    count: int
    sha256: str

    @staticmethod
    def of(ids: Iterable[str]) -> Listed:
        ordered = sorted(ids)
        return Listed(
            len(ordered), hashlib.sha256("".join(f"{each}\n" for each in ordered).encode()).hexdigest()
        )


def expected(op: str, tier: str) -> list[str]:
    """The ids of all cases and behaviours of `op` in `tier`, as the generators make them, sorted."""
    made = [case.id for case in cases(registry.spec(op), tier)]
    return sorted([*made, *(case.id for case in behaviour.cases([op], tier))])


def read(tier: str) -> dict[str, Listed]:
    """The checked-in manifest of `tier`, by op. KeyError for a tier that there is not."""
    found = json.loads(FILE.read_text(encoding="utf-8"))[tier]
    return {op: Listed(count, sha256) for op, (count, sha256) in found.items()}


def text() -> str:
    """What the file must hold, for the ops of this repository: an op of a tier on each line."""
    folder = registry.kernel_roots()[0]
    own = [op for op, file in sorted(registry.op_folders().items()) if Path(file).is_relative_to(folder)]
    tiers = []
    for tier in TIERS:
        listed = {op: Listed.of(expected(op, tier)) for op in own}
        lines = [f'  {json.dumps(op)}: [{each.count}, "{each.sha256}"]' for op, each in listed.items()]
        tiers.append(f" {json.dumps(tier)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(tiers) + "\n}\n"


def faults(record: Mapping[str, Any]) -> list[str]:
    """What is wrong with the set of results of a record, a sentence each.

    Per implementation: a case that is there twice, and one that the manifest does not know. In a whole run,
    also a case that is missing where the implementation ran any of its op, and beyond tier "smoke" an
    implementation that declined every case of an op; with `--ops`, of these ops alone. A run that `-k` or
    `--fraction` narrowed, or that was interrupted, lacks cases by intent. Ops that the manifest does not know
    (PORTABLE_KERNEL_PATH) are left out.
    """
    header = record["header"]
    tier, selection = header["tier"], header["selection"]
    manifest = read(tier)
    ran: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    states: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for result in record["results"]:
        key = op_of(result["case"]), result["impl"]
        ran[key][result["case"]] += 1
        states[key][result["state"]] += 1
    whole = selection["k"] is None and tuple(header["fraction"]) == (1, 1) and header["complete"]
    found = []
    made: dict[str, set[str]] = {}
    for (op, impl), counts in ran.items():
        found += [f"{case} on {impl} was run {n} times." for case, n in sorted(counts.items()) if n > 1]
        if op not in manifest:
            continue
        if not (whole and Listed.of(counts) == manifest[op]):
            if op not in made:
                made[op] = set(expected(op, tier))
            found += _differences(op, impl, set(counts), made[op], manifest[op], whole, tier)
        if whole and tier != "smoke" and not Tally.of(states[op, impl]).judged:
            found.append(f"{op} on {impl}: declined all {len(counts)} cases by rule; nothing was judged.")
    if whole and selection["impls"] is None:
        ops = manifest if selection["ops"] is None else selection["ops"]
        silent = [op for op in ops if op in manifest and op not in {op for op, _ in ran}]
        found += [f"{op}: no implementation ran any of its {manifest[op].count} cases." for op in silent]
    return found


def _differences(
    op: str, impl: str, ran: set[str], made: set[str], listed: Listed, whole: bool, tier: str
) -> list[str]:
    """Where the cases that ran differ from the manifest's, by name if this suite's specs still make those."""
    if Listed.of(made) != listed:
        return [f"{op}: its spec makes {len(made)} cases, not the {listed.count} of tier {tier}'s manifest; "
                f"if that is intended, rewrite it: {REMAKE}"] + (
            [f"{op} on {impl}: {len(ran)} cases, not those of the manifest."] * whole)  # fmt: skip
    found = [f"{case} on {impl} is not in the manifest of tier {tier}." for case in sorted(ran - made)]
    return found + [f"{case} on {impl} was not run." for case in sorted(made - ran) if whole]


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8", newline="\n")
    print(", ".join(f"{tier}: {sum(each.count for each in read(tier).values())} cases" for tier in TIERS))
