"""Run every mutant and write the kill table, docs/mutants.md: `python docs/mutants.py` (several minutes)."""

from __future__ import annotations

import os
import sys
import textwrap
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "mutants.md"
SEEDS = 1000

HEAD = """# Mutants: the judge is judged

Written by `python docs/mutants.py`. A mutant is a kernel that is wrong on purpose. The conformance suite's
own cases run against it in their order (the smoke tier, then the rest of the core tier, then behaviours)
until one rejects it; the table names that case and the state. `make mutants` checks the same, and
`tests/conformance/test_mutants.py` a sample of it.

Kinds: *torch*, a wrong computation in the place of the op's torch implementation, on the CPU; *call*, a
fault around a right computation; *HIP* and *Triton*, a kernel of this repository with a line changed, in
machine code on an emulated card (`backends/rocm/emulator`). None of it ran on a GPU. The sources are in
`tests/conformance/mutants/`.
"""


def main() -> None:
    os.environ["PORTABLE_BACKEND"] = "cpu"
    sys.path.insert(0, str(ROOT / "tests" / "conformance"))
    from mutants import catalogue, hunt, orders

    kills = []
    for mutant in catalogue.every():
        kills.append(hunt.hunt(mutant))
        print(f"{kills[-1].state:22} {mutant.id}", flush=True)
    states: Counter[str] = Counter()
    for seed in range(SEEDS):
        states.update(each.verdict.state for each in orders.judged(seed))
    PAGE.write_text(page(kills, catalogue.SURVIVORS, states))


def page(kills, survivors, states) -> str:
    killed = [kill for kill in kills if kill.killed]
    cards = [kill for kill in kills if kill.mutant.arch]
    tiers = Counter(kill.tier for kill in killed)
    lines = [
        HEAD,
        f"{len(kills)} mutants, {len(killed)} rejected, **{len(kills) - len(killed)} survived**; "
        f"{len(cards)} of them on emulated cards, {sum(kill.killed for kill in cards)} rejected there.",
        f"Rejected by a case of the smoke tier: {tiers['smoke']}; of the core tier: {tiers['core']}; "
        f"by a behaviour: {tiers['behaviour']}.",
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
    case = f"`{kill.case}`" if kill.case else f"none of {kill.asked}"
    return f"| {mutant.op} | {mutant.name.replace('|', '/')} | {kind} | {case} | {state(kill)} |"


def state(kill) -> str:
    """The state; of a fault that the emulated card stops, its kind as well."""
    if not kill.killed:
        return f"**{kill.state}**"
    name, _, rest = kill.message.partition(": ")
    if kill.state == "Crash" and name == "KernelFault":
        return f"Crash (KernelFault: {rest.split(': ')[1]})"
    return f"Crash ({name})" if kill.state == "Crash" else kill.state


if __name__ == "__main__":
    main()
