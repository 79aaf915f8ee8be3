"""Run every mutant and write the kill table, docs/mutants.md: `python docs/mutants.py` (an hour on a core).

`--kept FILE` adds each result, with the commit, to a file of JSON lines and does not run what is in it
already: for a run that was interrupted, or to run a part again. The page says how many of the results are
of another commit than its own. `--jobs N` runs them in N processes. After `--seconds S` the page is written
without the mutants that are not done, which it names; with 0 nothing is run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import sys
import textwrap
import time
from collections import Counter
from datetime import date
from pathlib import Path

from portable.conformance.records import record

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "mutants.md"
SEEDS = 1000

HEAD = """# Mutants: the judge is judged

Written by `python docs/mutants.py` on {date}, at commit {commit}.

A mutant is a kernel that is wrong on purpose. The conformance suite's own
cases run against it in their order (the smoke tier, then the rest of the core tier, then behaviours)
until one rejects it; the table names that case and the state. `make mutants` checks the same, and
`tests/conformance/test_mutants.py` a sample of it.

Kinds: *torch*, a wrong computation in the place of the op's torch implementation, on the CPU; *call*, a
fault around a right computation; *HIP* and *Triton*, a kernel of this repository with a line changed, in
machine code on an emulated GPU (`backends/rocm/emulator`). None of it ran on a GPU. The sources are in
`tests/conformance/mutants/`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Run every mutant and write docs/mutants.md.")
    parser.add_argument("--kept", type=Path, help="results, to go on from and to add to")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for the mutants, at most")
    args = parser.parse_args()
    catalogue, hunt, _ = _modules()

    mutants = catalogue.every()
    of = {each.id: each for each in mutants}
    kills, commits = _read(args.kept, mutants, hunt.Kill)
    commit = _commit()
    left = [each.id for each in mutants if each.id not in kills] if args.seconds else []
    states: Counter[str] = Counter()
    end = time.monotonic() + args.seconds
    with multiprocessing.get_context("spawn").Pool(args.jobs, _modules) as pool:
        done = pool.imap_unordered(_hunt, left)
        for _ in left:
            try:
                id, *found = done.next(None if end == float("inf") else max(0, end - time.monotonic()))
            except multiprocessing.TimeoutError:
                pool.terminate()
                break
            kill = kills[id] = hunt.Kill(of[id], *found)
            commits[id] = commit
            print(f"{kill.state:22} {id}", flush=True)
            _keep(args.kept, kill, commit)
    with multiprocessing.get_context("spawn").Pool(args.jobs, _modules) as pool:
        for one in pool.imap_unordered(_states, range(SEEDS), 20):
            states.update(one)
    found = [kills[each.id] for each in mutants if each.id in kills]
    missing = [each.id for each in mutants if each.id not in kills]
    others = Counter((each, bool(of[id].arch)) for id, each in commits.items() if each != commit)
    PAGE.write_text(page(found, missing, catalogue.SURVIVORS, states, commit, others))


def _modules():
    """The modules of the mutants: the catalogue, the hunt, and the right computations in other orders."""
    os.environ["PORTABLE_BACKEND"] = "cpu"
    folder = str(ROOT / "tests" / "conformance")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return [importlib.import_module(f"mutants.{name}") for name in ("catalogue", "hunt", "orders")]


def _hunt(id):
    """The mutant's id and what rejected it, in a process of the pool."""
    catalogue, hunt, _ = _modules()
    kill = hunt.hunt(next(each for each in catalogue.every() if each.id == id))
    return id, kill.case, kill.state, kill.message, kill.tier, kill.tried


def _states(seed):
    return Counter(each.verdict.state for each in _modules()[2].judged(seed))


def _read(file, mutants, kill):
    """What is kept, and its commits, by the mutants' ids; of two results the later one."""
    if file is None or not file.exists():
        return {}, {}
    of = {each.id: each for each in mutants}
    kept = [each for each in map(json.loads, file.read_text().splitlines()) if each["id"] in of]
    kills = {each["id"]: kill(of[each["id"]], *each["found"]) for each in kept}
    return kills, {each["id"]: each["commit"] for each in kept}


def _keep(file, kill, commit):
    if file is not None:
        with file.open("a") as kept:
            found = [kill.case, kill.state, kill.message, kill.tier, kill.tried]
            kept.write(json.dumps({"id": kill.mutant.id, "commit": commit, "found": found}) + "\n")


def _commit() -> str:
    commit, dirty = record.checkout_commit()
    return f"{(commit or 'unknown')[:7]}{' and changes' * bool(dirty)}"


def page(kills, missing, survivors, states, commit, others) -> str:
    """The page. `others`: how many results are of another commit, by (commit, on an emulated GPU)."""
    killed = [kill for kill in kills if kill.killed]
    emulated = [kill for kill in kills if kill.mutant.arch]
    tiers = Counter(kill.tier for kill in killed)
    lines = [
        HEAD.format(date=date.today(), commit=commit),
        f"{len(kills)} mutants, {len(killed)} rejected, **{len(kills) - len(killed)} survived**; "
        f"{len(emulated)} of them on emulated GPUs, {sum(kill.killed for kill in emulated)} rejected there.",
        f"Rejected by a case of the smoke tier: {tiers['smoke']}; of the core tier: {tiers['core']}; "
        f"by a behaviour: {tiers['behaviour']}.",
        *(
            f"{count} of these results, {'on emulated GPUs' if arch else 'on the CPU'}, are of commit {each}."
            for (each, arch), count in sorted(others.items())
        ),
        *(["", "Not run for this page, for their time:", ""] if missing else []),
        *(f"- {each}" for each in missing),
        "",
        "Right computations in other orders (sequential, backwards, pairwise, blocked, interleaved, split-K",
        f"in float32, permuted, fused): {SEEDS:,} seeds, {sum(states.values()):,} results, "
        f"{sum(states.values()) - states['Pass']} not passed.",
        "",
        "## Survivors",
        "",
        *(["What the suite does not see, and why:", ""] if len(killed) < len(kills) else ["None."]),
        *(
            textwrap.fill(
                f"- {kill.mutant.id}: {survivors.get(kill.mutant.id, 'not explained')}.",
                width=108,
                subsequent_indent="  ",
            )
            for kill in kills
            if not kill.killed
        ),
        "",
        "## The kill table",
        "",
        "| op | mutant | kind | first case that rejects it | state |",
        "|---|---|---|---|---|",
        *map(row, kills),
    ]
    return "\n".join(lines) + "\n"


def row(kill) -> str:
    mutant = kill.mutant
    kind = mutant.kind
    if mutant.arch:
        kind = f"{'Triton' if mutant.impl == 'triton' else f'HIP {mutant.impl}'}, {mutant.arch}"
    case = f"`{kill.case}`" if kill.case else f"none of {kill.tried}"
    return f"| {mutant.op} | {mutant.name.replace('|', '/')} | {kind} | {case} | {state(kill)} |"


def state(kill) -> str:
    """The state; of a fault that the emulated GPU stops, its kind as well."""
    if not kill.killed:
        return f"**{kill.state}**"
    name, _, rest = kill.message.partition(": ")
    if kill.state == "Crash" and name == "KernelFault":
        return f"Crash (KernelFault: {rest.split(': ')[1]})"
    return f"Crash ({name})" if kill.state == "Crash" else kill.state


if __name__ == "__main__":
    main()
