"""Write docs/emulated.md from the records of the emulated GPUs: `python docs/emulated.py`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from portable.conformance.cases.case import op_of
from portable.conformance.records import compare, record

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "conformance" / "results"
PAGE = ROOT / "docs" / "emulated.md"
DTYPES = ("bfloat16", "float16", "float32")

WHY = {
    "gfx90a": "Its float16 and bfloat16 MFMA flush subnormal inputs to zero, as AMD documents for\n"
    "  MI200; the suite's normal data hold a few, which cost up to 3.6 units in the last place. torch on\n"
    "  that GPU does the same. Known (backends/rocm/known_failures.yaml), not mended."
}

HEAD = """# The ops on emulated AMD GPUs

Written by `python docs/emulated.py` from `conformance/results/emulated-*/core.json.gz`. Each record was
made by `portable-conformance run --device rocm:ARCH --emulate --tier core`: the machine code for that GPU,
executed by the CPU, every implementation pinned, forward and gradients, every element judged against
float64. **None of it ran on an AMD GPU.**

A cell has the cases that passed, for bfloat16 / float16 / float32; in bold, of how many, where some did
not. An implementation that does not take a type still answers its empty shapes. Behaviour cases (threads,
compile, autograd, rows alone) are in the second table alone.
"""

SIGNED_ZEROS = (
    "The disagreements are zeros of the other sign, all in Triton's float16 results. `softmax_backward` and",
    "`gated_linear`: LLVM in Triton 3.6 and 3.7 rounds a float32 product on AMD by `v_fma_mixlo_f16 a, b, 0`",
    "and -0 + 0 is +0. HIP C++ keeps the sign, as did Triton 3.9. `rope`, its gradient and",
    "`qk_norm_rope_kv_write`: on AMD C++ and Triton agree, on the H100 they do not, as other products are",
    "contracted there. Seen by running such cases again; every element is within its bound.",
)
"""tests/test_figures.py holds the disagreements to this class."""


def emulated_records() -> dict[str, dict[str, Any]]:
    """Architecture -> record."""
    return {
        path.parent.name.removeprefix("emulated-"): record.read(path)
        for path in sorted(RECORDS.glob("emulated-*/core.json.gz"))
    }


def cell(summary: record.Summary) -> str:
    """Passed of judged by dtype; the dtype is the second part of a case's id."""
    judged = Counter(_dtype(each["case"]) for each in summary.results if "digest" in each)
    failed = Counter(_dtype(each["case"]) for each in summary.results if _failed(each) and "digest" in each)
    parts = []
    for dtype in DTYPES:
        count = judged[dtype]
        if not count:
            parts.append("-")
        elif failed[dtype]:
            parts.append(f"**{count - failed[dtype]} of {count}**")
        else:
            parts.append(f"{count}")
    return " / ".join(parts)


def _failed(result: dict[str, Any]) -> bool:
    return result["state"] not in ("Pass", "NotSupported", "QualityWarning")


def _dtype(case: str) -> str:
    return case.split("/")[1].split(",")[0]


def page() -> str:
    found = emulated_records()
    arches = list(found)
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for arch, each in found.items():
        for summary in record.summaries(each):
            language = summary.impl if summary.impl in ("triton", "cpp", "simt") else "mfma, wmma"
            rows.setdefault((summary.op, language), {})[arch] = cell(summary)
    lines = [HEAD, "| op | implementation | " + " | ".join(arches) + " |", "|---|---|" + "---|" * len(arches)]
    for (op, name), cells in sorted(rows.items()):
        written = {"triton": "Triton", "cpp": "HIP", "simt": "HIP simt"}.get(name, f"HIP {name}")
        lines.append(f"| {op} | {written} | " + " | ".join(cells.get(arch, "") for arch in arches) + " |")
    lines += ["", *_summary(found), "", *_agreement(found), "", *_failures(found), "", *_others()]
    return "\n".join(lines) + "\n"


def _summary(found: dict[str, dict[str, Any]]) -> list[str]:
    lines = ["| GPU | judged, declined | states | Triton |", "|---|---|---|---|"]
    for arch, each in found.items():
        states = Counter(result["state"] for result in each["results"])
        text = ", ".join(f"{state} {count:,}" for state, count in sorted(states.items()))
        versions = each["header"]["versions"]
        lines.append(f"| emulated {arch} | {record.tally(each)} | {text} | {versions['triton']} |")
    return lines


def _agreement(found: dict[str, dict[str, Any]]) -> list[str]:
    """How the emulated GPUs agree with an H100, which was hardware."""
    h100 = record.read(RECORDS / "h100" / "core.json.gz")
    lines = [
        "With an NVIDIA H100 (hardware; `conformance/results/h100/core.json.gz`), by `portable-conformance",
        "compare`: implementations of one name (Triton's source, and what both vendors build from one file)",
        "with each other, and the matrix kernels of one vendor (wgmma, mma) with the other's (mfma, wmma).",
        "",
        "| GPU | cases in common | bit-equal | exact by demand, all bit-equal | disagreements |",
        "|---|--:|--:|--:|--:|",
    ]
    for arch, each in found.items():
        groups = compare.agreements(h100, each)
        total = [sum(getattr(g, name) for g in groups) for name in ("cases", "equal", "exact")]
        problems = sum(len(group.problems) for group in groups)
        exact = [p for group in groups for p in group.problems if "bit-equal" in p]
        demanded = f"{total[2]:,}" if not exact else f"{total[2] - len(exact):,} of {total[2]:,}"
        lines.append(f"| emulated {arch} | {total[0]:,} | {total[1]:,} | {demanded} | {problems} |")
    return [*lines, "", *SIGNED_ZEROS]


def _failures(found: dict[str, dict[str, Any]]) -> list[str]:
    lines = ["What does not pass, by GPU:", ""]
    for arch, each in found.items():
        kinds: Counter[str] = Counter()
        for result in filter(_failed, each["results"]):
            where = f"{op_of(result['case'])} ({result['impl']}), {_class(result['case'])}"
            kinds[f"{result['state']} in {where}"] += 1
        if kinds:
            lines += [f"- {arch}: {count} x {kind}" for kind, count in sorted(kinds.items())]
            lines += [f"  {WHY[arch]}"] if arch in WHY else []
        else:
            lines.append(f"- {arch}: nothing")
    return lines


def _others() -> list[str]:
    """The records of ops that are not in those above."""
    lines = [
        "Ops that were run apart, core tier, every implementation that the GPU has:",
        "",
        "| GPU | record | commit | judged, declined | ops |",
        "|---|---|---|---|---|",
    ]
    for path in sorted(RECORDS.glob("emulated-*/core-*.json.gz")):
        found = record.read(path)
        ops = ", ".join(sorted({op_of(result["case"]) for result in found["results"]}))
        name = path.name.removesuffix(".json.gz")
        link = f"[{name}](../conformance/results/{path.parent.name}/{path.name})"
        gpu, commit = path.parent.name.replace("-", " "), found["header"]["commit"][:7]
        lines.append(f"| {gpu} | {link} | {commit} | {record.tally(found)} | {ops} |")
    return lines


def _class(case: str) -> str:
    parts = case.split("/")
    return f"{parts[1]} {parts[3]}" if len(parts) > 3 else parts[-1]


if __name__ == "__main__":
    PAGE.write_text(page())
