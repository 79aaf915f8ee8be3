"""Runs a corpus on an emulated GPU with the Triton that is on the path, and writes what came of each program.

Each program runs in a process of its own, forked from this one, and has a time limit."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import multiprocessing
import sys
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import portable
from portable.conformance.corpora.program import Program, fault
from portable.runtime import files

CORPORA = ("tutorials", "liger")
LIMIT = 300  # seconds for one program
UNDECIDED = frozenset({"unsupported", "budget"})
"""Findings that say nothing against a kernel."""


def programs(corpus: str) -> list[Program]:
    """Those of a corpus; ImportError where it needs a package that is not here."""
    return importlib.import_module(f"portable.conformance.corpora.{corpus}").programs()


def digest(corpus: str) -> str:
    """16 hex digits over the corpus' source and the version of what it comes from."""
    here = Path(__file__).parent
    text = "".join((here / name).read_text() for name in (f"{corpus}.py", "program.py"))
    return hashlib.sha256(f"{text}{package(corpus)}".encode()).hexdigest()[:16]


def package(corpus: str) -> str | None:
    """Name and version of the package whose kernels they are, None for programs of our own writing."""
    return f"liger-kernel {metadata.version('liger_kernel')}" if corpus == "liger" else None


def judge(program: Program, arch: str) -> tuple[str, str]:
    """(state, message) of one program on the emulated GPU `arch`, in this process."""
    with portable.emulated(arch) as run:
        try:
            found = fault(program.run())
        except Exception as error:
            if run.findings:
                told = run.findings[-1]
                return "Crash", ("" if told.kind in UNDECIDED else "KernelFault: ") + told.message
            return "Crash", f"{type(error).__name__}: {error}"
        if not run.launches:
            return "InternalError", "it launched no kernel"
    return ("Pass", "") if found is None else found


def _child(program: Program, arch: str, end: Connection) -> None:
    end.send(judge(program, arch))


def judged_apart(program: Program, arch: str, limit: float = LIMIT) -> tuple[str, str]:
    """The same in a process of its own, which may die or take too long."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(program, arch, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(limit):
            return "Timeout", f"more than {limit} s"
        return ours.recv()
    except EOFError:
        process.join()
        return "Crash", f"its process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()


def run(corpus: str, arch: str, k: str | None) -> dict[str, Any]:
    """The record of a corpus: header and results as `report.weather` reads them."""
    import torch
    import triton

    torch.set_num_threads(1)  # a forked child has no others
    chosen = [program for program in programs(corpus) if k is None or k in program.name]
    results = []
    for program in chosen:
        state, message = judged_apart(program, arch)
        results.append({"case": program.name, "impl": corpus, "state": state, "message": message})
        print(f"{program.name}: {state}" + f"\n  {message}" * bool(message), flush=True)
    head = {
        "corpus": corpus, "package": package(corpus), "digest": digest(corpus), "arch": arch,
        "emulated": True, "versions": {"triton": triton.__version__}, "k": k,
    }  # fmt: skip
    return {"header": head, "results": results}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", choices=CORPORA, required=True)
    parser.add_argument("--arch", required=True, help="gfx942")
    parser.add_argument("-k", metavar="TEXT", help="only programs whose name contains TEXT")
    parser.add_argument("--out", required=True, metavar="FILE.json")
    args = parser.parse_args()
    files.write_text(args.out, json.dumps(run(args.corpus, args.arch, args.k), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
