"""Hashes of the machine code of every kernel that `portable check` builds: a pure rename changes none.

`python docs/code_hashes.py --out before.json` at one commit, `--out after.json` at another, then
`python docs/code_hashes.py --compare before.json after.json`. A hash covers the executable sections of a code
object; names of kernels, of parameters and of defines, and line tables, are outside of them. Kernels are
matched by their code within an architecture and an op: a name may have changed.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from portable.commands import check
from portable.errors import PortableError
from portable.runtime import build
from portable.spec import registry

_EXECUTABLE = 4  # SHF_EXECINSTR


def code_hash(binary: bytes) -> str:
    """SHA-256 of a code object's executable sections."""
    from elftools.elf.elffile import ELFFile

    file = ELFFile(io.BytesIO(binary))
    sections = (each for each in file.iter_sections() if each["sh_flags"] & _EXECUTABLE)
    parts = sorted(hashlib.sha256(each.data()).hexdigest() for each in sections if each.data_size)
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def _row(job: check.Job) -> list[str]:
    try:
        found = code_hash(build.code_object(job.launch, dict(job.dtypes), job.backend, job.device).binary)
    except PortableError as error:
        found = f"{type(error).__name__}: {str(error)[:200]}"
    return [job.device.arch, job.op, job.implementation, job.kernel, found]


def collect(ops: list[str] | None, targets: list[str] | None, quick: bool, workers: int) -> list[list[str]]:
    """[architecture, op, implementation, kernel, hash] of each kernel."""
    found = check.jobs(ops or registry.op_folders(), check.targets(targets), quick)
    jobs = [job for job in found if isinstance(job, check.Job)]
    with ThreadPoolExecutor(workers) as pool:
        return sorted(pool.map(_row, jobs))


def compare(before: list[list[str]], after: list[list[str]]) -> tuple[str, bool]:
    """A table by architecture of kernels before, after and equal, and whether all are equal."""
    counts = [Counter((row[0], row[1], row[4]) for row in rows) for rows in (before, after)]
    lines, same = ["architecture | kernels before | after | equal code | differ", "---|--:|--:|--:|---"], True
    for arch in sorted({key[0] for each in counts for key in each}):
        old, new = (Counter({k: n for k, n in each.items() if k[0] == arch}) for each in counts)
        lost, added = old - new, new - old
        ops = sorted({key[1] for key in (*lost, *added)})
        same = same and not ops
        equal = (old & new).total()
        lines.append(f"{arch} | {old.total()} | {new.total()} | {equal} | {', '.join(ops) or '-'}")
    return "\n".join(lines), same


def main() -> int:
    parser = argparse.ArgumentParser(description="Hashes of the machine code of every kernel.")
    parser.add_argument("--out", type=Path, help="write the hashes to this file")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    parser.add_argument("--ops", help="ops, comma separated (default: all)")
    parser.add_argument("--target", help="architectures or vendors, comma separated (default: all)")
    parser.add_argument("--quick", action="store_true", help="one case and one dtype of each op")
    parser.add_argument("-j", type=int, default=2, help="kernels to compile at once")
    given = parser.parse_args()
    if given.compare:
        table, same = compare(*(json.loads(file.read_text()) for file in given.compare))
        print(table)
        return 0 if same else 1
    if given.out is None:
        parser.error("--out FILE or --compare BEFORE AFTER")
    ops, targets = ((text.split(",") if text else None) for text in (given.ops, given.target))
    rows = collect(ops, targets, given.quick, given.j)
    given.out.write_text("\n".join(["[", ",\n".join(json.dumps(row) for row in rows), "]"]) + "\n")
    print(f"{len(rows)} kernels in {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
