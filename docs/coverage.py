"""Write docs/emulator_coverage.md: the instructions in our AMD kernels, and the tests that cover them.

`python docs/coverage.py` compiles every kernel that `portable check --target rocm` compiles (hours: 45,808 on
2026-11-27) and decodes it; with `--every 97` of each implementation on each GPU the first kernel and every
97th after it (half an hour, or minutes from the cache), with `--every 97/2` these and as many
between them (1,363 of 46,593 later). The tests compare the page with what they cover.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from fractions import Fraction
from pathlib import Path

from portable.backends.rocm.emulator.disassembly import mnemonics
from portable.commands import check
from portable.conformance.records import record
from portable.runtime import build
from portable.spec import registry

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "emulator_coverage.md"
PADDING = {"s_code_end"}  # after the end of a kernel; never executed


def names_of(job: check.Job) -> tuple[str, set[str]]:
    """The architecture of one kernel and the mnemonics in it."""
    code = build.code_object(job.launch, dict(job.dtypes), job.backend, job.device)
    return job.device.arch, set(mnemonics(code.binary)) - PADDING


def sampled(every: Fraction) -> tuple[list[check.Job], int]:
    """Of each implementation on each GPU the first kernel and every so-many-th after it; and how many
    there are. For 97/2 kernels 0, 49, 97, 146 and so on: those for 97 are among them."""
    seen: Counter[tuple[str, str, str]] = Counter()
    chosen: list[check.Job] = []
    for job in check.jobs(sorted(registry.op_folders()), check.targets(["rocm"])):
        if not isinstance(job, check.Job):
            continue
        group = (job.op, job.implementation, job.device.arch)
        if seen[group] * every.denominator % every.numerator < every.denominator:
            chosen.append(job)
        seen[group] += 1
    return chosen, seen.total()


def census(work: list[check.Job]) -> tuple[Counter[str], dict[str, Counter[str]]]:
    """Kernels per architecture, and for each mnemonic the kernels per architecture that hold it."""
    kernels: Counter[str] = Counter()
    found: dict[str, Counter[str]] = {}
    with ThreadPoolExecutor(2) as pool:
        for arch, names in pool.map(names_of, work):
            kernels[arch] += 1
            for name in names:
                found.setdefault(name, Counter())[arch] += 1
    return kernels, found


def tests() -> dict[str, dict[str, str]]:
    """Per architecture: mnemonic -> the test file that covers it."""
    sys.path.insert(0, str(ROOT / "tests" / "backends" / "emulator"))
    instructions = importlib.import_module("instructions")
    instructions.covered()
    found: dict[str, dict[str, str]] = {}
    for name, suite in instructions.Suite.every.items():
        for arch, names in suite.covered().items():
            for each in names:
                found.setdefault(arch, {}).setdefault(each, name)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--every", type=Fraction, default=Fraction(1), metavar="N", help="every N-th kernel (default: all)"
    )
    every = parser.parse_args().every
    work, total = sampled(every)
    kernels, found = census(work)
    covered = tests()
    arches = sorted(kernels)
    commit, dirty = record.checkout_commit()
    made = f"{date.today()}, at commit {(commit or 'unknown')[:7]}{' and changes' * bool(dirty)}"
    command, of = "python docs/coverage.py", ""
    if every > 1:
        command += f" --every {every}"
        of = f" of {total:,}, of each implementation on each GPU the first and one of every {every} after it"
    lines = [
        "# Instructions of the AMD kernels, and their tests",
        "",
        f"Written by `{command}` on {made}: {len(work):,} kernels{of}.",
        "",
        "A cell counts the kernels of that architecture in which the",
        "instruction occurs; the last column is the part of `tests/backends/emulator/` that checks it",
        "against the ISA guide's definition. A kernel with an untested instruction fails `test_smoke.py`.",
        "",
        "| instruction | " + " | ".join(arches) + " | tests |",
        "|---|" + "--:|" * len(arches) + "---|",
        "| kernels | " + " | ".join(f"{kernels[arch]:,}" for arch in arches) + " | |",
    ]
    missing = []
    for name in sorted(found):
        files = {covered[arch].get(name) for arch in found[name]}
        missing += [f"{name} on {arch}" for arch in found[name] if name not in covered[arch]]
        row = " | ".join(f"{found[name][arch]:,}" if found[name][arch] else "" for arch in arches)
        lines.append(f"| {name} | {row} | {', '.join(sorted(each for each in files if each)) or 'none'} |")
    PAGE.write_text("\n".join(lines) + "\n")
    print(f"{sum(kernels.values()):,} kernels, {len(found)} instructions, not covered: {missing or 'none'}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
