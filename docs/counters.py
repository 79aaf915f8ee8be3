"""The hardware counters of our kernels on an NVIDIA GPU, and the page docs/counters.md of them.

    python docs/counters.py --record conformance/results/h200/counters.json   # on the GPU, takes ncu
    python docs/counters.py                                                   # writes the page

Every case is one of the sweep on one pinned implementation, called once before it is counted.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import portable
from portable.conformance.perf import bench, sweep
from portable.conformance.records import record
from portable.spec import registry

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "conformance" / "results" / "h200" / "counters.json"
PAGE = ROOT / "docs" / "counters.md"

COUNTED: tuple[tuple[str, tuple[int, ...], tuple[str, ...]], ...] = (
    ("large products", (2, 3, 9), ("wgmma", "triton")),
    ("products of untuned sizes", (0,), ("realigned",)),
    ("products with few rows", (0, 2, 5), ("skinny",)),
    ("float32 products", (1,), ("simt",)),
    ("float32 products by bf16x6", (1,), ("bf16x6",)),
    ("linear, forward", (0,), ("wgmma",)),
    ("rows, forward", (2, 4), ("cpp", "triton")),
    ("rows, backward", (1, 3), ("cpp",)),
    ("attention, forward", (2, 3), ("wgmma", "triton")),
    ("attention, forward, other head sizes", (1, 4), ("wgmma",)),
    ("attention, backward", (2, 3), ("wgmma", "triton")),
    ("attention, decode", (0, 1), ("decode_tma", "decode")),
    ("attention over a paged cache", (0, 1), ("tma", "triton")),
    ("attention over varlen sequences, a long tail of lengths", (0, 1), ("wgmma", "triton")),
    ("attention over varlen sequences, backward, a long tail of lengths", (0, 1), ("wgmma", "triton")),
)
"""Groups of the sweep, the places of their sizes that are counted, and the implementations."""

TIME, TENSOR, SM, DRAM = (
    "gpu__time_duration.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
)
WARPS, REGISTERS = "sm__warps_active.avg.pct_of_peak_sustained_active", "launch__registers_per_thread"
KEPT = (TIME, TENSOR, SM, DRAM, WARPS, REGISTERS)
MARK = "spin_kernel"
"""The kernel of torch.cuda._sleep, which stands in ncu's table before the kernels of each case."""


def counted() -> Iterator[tuple[bench.Case, str]]:
    """The cases that are counted, on their implementations."""
    for name, places, impls in COUNTED:
        (group,) = sweep.chosen([name])
        for op in group.ops:
            cases = [each.case for each in group.cases(op)]
            cases = cases[:: len(group.layouts)][: len(group.sizes)]
            known = {each.name for each in registry.spec(op).implementations}
            yield from ((cases[place], impl) for place in places for impl in impls if impl in known)


def call_each() -> None:
    """Runs under ncu: every case once without it, and once with it behind a mark."""
    device = torch.device("cuda")
    for case, impl in counted():
        spec = registry.spec(case.op)
        tensors = bench.made(case, spec, device, 0)
        function = bench.function(case.op)
        with portable.using(**{case.op: impl}):
            function(**tensors, **case.params)
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            torch.cuda._sleep(1)
            function(**tensors, **case.params)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
        del tensors
        torch.cuda.empty_cache()


def count(path: Path) -> None:
    """Counts under ncu and writes the record."""
    command = ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw"]
    command += ["--metrics", ",".join(KEPT)]
    command += [sys.executable, __file__, "--call"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    if done.returncode:
        sys.exit(f"ncu ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    kernels = list(parsed(done.stdout, [(case.id, impl) for case, impl in counted()]))
    made = {
        "schema_version": 1,
        "command": "python docs/counters.py --record " + path.name,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "versions": record.versions() | {"ncu": _ncu_version()},
        "kernels": kernels,
    }
    path.write_text(json.dumps(made, indent=1) + "\n")


def _ncu_version() -> str:
    said = subprocess.run(["ncu", "--version"], capture_output=True, text=True).stdout
    return (re.findall(r"Version (\S+)", said) or ["unknown"])[0]


def parsed(text: str, cases: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """The kernels of ncu's table, each with its case and implementation: a mark stands before each case."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith('"ID"'))
    names, units, *rows = csv.reader(io.StringIO("\n".join(lines[start:])))
    seen = -1
    for row in rows:
        found = dict(zip(names, row, strict=True))
        if MARK in found["Kernel Name"]:
            seen += 1
            continue
        case, impl = cases[seen]
        kept = {
            name: [_number(value), unit]
            for name, value, unit in zip(names, row, units, strict=True)
            if name in KEPT
        }
        yield {"case": case, "impl": impl, "kernel": found["Kernel Name"].partition("(")[0], "counters": kept}
    if seen + 1 != len(cases):
        raise ValueError(f"{len(cases)} cases were selected, ncu saw {seen + 1}")


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def page(made: dict[str, Any]) -> str:
    """docs/counters.md."""
    versions = ", ".join(f"{name} {value}" for name, value in made["versions"].items())
    launches: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for each in made["kernels"]:
        launches.setdefault((each["case"], each["impl"], each["kernel"]), []).append(each["counters"])
    rows = []
    for (case, impl, kernel), several in launches.items():
        times = [value * MICROSECONDS[unit] for value, unit in (each[TIME] for each in several)]
        shares = [
            sum(time * each[name][0] for time, each in zip(times, several, strict=True)) / sum(times)
            for name in (TENSOR, SM, DRAM, WARPS)
        ]
        cells = [f"`{case.removesuffix('/normal/bench')}`", impl, f"`{kernel}`", str(len(several))]
        cells += [f"{sum(times):.1f}", *(f"{share:.0f}" for share in shares)]
        rows.append(f"| {' | '.join(cells)} | {several[0][REGISTERS][0]:.0f} |")
    head = HEAD.format(
        device=made["device"], command=made["command"], date=made["date"][:10], versions=versions
    )
    return head + "\n".join([*rows, ""])


MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "nsecond": 1e-3, "usecond": 1.0, "msecond": 1e3}

HEAD = """\
# Hardware counters of our kernels

{device}, {date}; {versions}.
Generated by `docs/counters.py` from [counters.json](../conformance/results/h200/counters.json), which
`{command}` made on the GPU with ncu: every kernel once, caches flushed, clocks as they are. A kernel under
ncu is slower than it is in a graph, so the times compare kernels of one call and are no claim.

Percent of what the GPU could sustain over the kernel's time: the tensor pipe's busy cycles, the busiest
unit of the multiprocessors, device memory; and resident warps.

| case | implementation | kernel | launches | us | tensor pipe | SM | DRAM | warps | registers |
|---|---|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, metavar="FILE.json", help="count, on the GPU")
    parser.add_argument("--call", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.call:
        call_each()
    elif args.record is not None:
        count(args.record)
    else:
        PAGE.write_text(page(json.loads(RECORD.read_text())))


if __name__ == "__main__":
    main()
