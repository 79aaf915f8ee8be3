"""The checked-in lists of what each tier must run, and what a record lacks of them.

`python -m portable.conformance.execute.manifest` writes the lists, `manifest/<tier>.txt`, from the specs and
the generators; a test holds them to that. So a case that goes missing, by an edit of a spec or of the suite,
shows as a changed line, and a run that skips one is seen from its record alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from portable.conformance.cases.generate import cases
from portable.conformance.execute import behaviour
from portable.conformance.records.record import TIERS
from portable.spec import registry

FOLDER = Path(__file__).with_name("manifest")
REMAKE = "python -m portable.conformance.execute.manifest"


def expected(ops: Iterable[str], tier: str) -> list[str]:
    """The ids of all cases and behaviours of `ops` in `tier`, as the generators make them, sorted."""
    ops = list(ops)
    made = [case.id for op in ops for case in cases(registry.spec(op), tier)]
    return sorted([*made, *(case.id for case in behaviour.cases(ops))])


def read(tier: str) -> list[str]:
    """The checked-in list of `tier`."""
    lines = (FOLDER / f"{tier}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def text(tier: str) -> str:
    """What the file of `tier` must hold: a comment, then an id a line, for the ops of this repository."""
    folder = registry.kernel_roots()[0]
    own = [op for op, file in registry.op_folders().items() if Path(file).is_relative_to(folder)]
    head = f"# The cases of tier {tier}, an id a line. Do not edit; remake with: {REMAKE}"
    return "\n".join([head, *expected(own, tier)]) + "\n"


def write() -> None:
    """Write the list of every tier."""
    FOLDER.mkdir(exist_ok=True)
    for tier in TIERS:
        (FOLDER / f"{tier}.txt").write_text(text(tier), encoding="utf-8")


def faults(record: Mapping[str, Any]) -> list[str]:
    """What is wrong with the set of results of a record (schema 3), a sentence each.

    Per implementation: a case that is there twice, and one that no list knows. In a whole run, also a case
    that is missing where the implementation ran any of its op; with `--ops`, of these ops alone. A run that
    `-k` or `--fraction` narrowed, or that was interrupted, lacks cases by intent. Ops that the lists do not
    know (PORTABLE_KERNEL_PATH) are not asked about.
    """
    header = record["header"]
    selection = header["selection"]
    asked: dict[str, set[str]] = defaultdict(set)
    for case in read(header["tier"]):
        asked[_op(case)].add(case)
    ran: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for result in record["results"]:
        ran[_op(result["case"]), result["impl"]][result["case"]] += 1
    whole = selection["k"] is None and tuple(header["fraction"]) == (1, 1) and header["complete"]
    found = []
    for (op, impl), counts in ran.items():
        found += [f"{case} on {impl} was run {n} times." for case, n in sorted(counts.items()) if n > 1]
        if op not in asked:
            continue
        unknown = sorted(set(counts) - asked[op])
        found += [f"{case} on {impl} is not in the list of tier {header['tier']}." for case in unknown]
        if whole:
            found += [f"{case} on {impl} was not run." for case in sorted(asked[op] - set(counts))]
    if whole and selection["impls"] is None:
        ops = asked if selection["ops"] is None else selection["ops"]
        silent = [op for op in ops if op in asked and op not in {op for op, _ in ran}]
        found += [f"{op}: no implementation ran any of its {len(asked[op])} cases." for op in silent]
    return found


def _op(case: str) -> str:
    return case.partition("/")[0]


if __name__ == "__main__":
    write()
    print(", ".join(f"{tier}: {len(read(tier))} cases" for tier in TIERS))
