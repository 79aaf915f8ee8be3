"""Writes docs/modelled.md: the ops on AMD GPUs by the timing model. Nothing is measured.

python docs/modelled.py
    writes the page from backends/rocm/modelled.csv, which `portable.explain` reads too
python docs/modelled.py gfx942 gfx950 [--ops matmul,attention]
    first models the calls of these GPUs again (a few minutes for each)
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TABLE, PAGE = HERE.parent / "backends" / "rocm" / "modelled.csv", HERE / "modelled.md"
ARCHES = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
HEADS = "128x4096x128"
CALLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "matmul": [
        ("4096x4096,4096x4096", {}),
        ("1024x1024,1024x1024", {}),
        ("1000x1000,1000x1000", {}),
        ("16x8192,8192x8192", {}),
        ("4095x4099,4099x4097", {}),
    ],
    "linear": [("4096x4096,14336x4096", {"activation": "gelu"})],
    "gated_linear": [("4096x4096,2x14336x4096", {"activation": "silu"})],
    "attention": [
        (f"{HEADS},{HEADS},{HEADS}", {}),
        (f"{HEADS},{HEADS},{HEADS}", {"causal": True}),
        ("128x4096x64,128x4096x64,128x4096x64", {}),
        ("16x32x1x128,16x8x8192x128,16x8x8192x128", {}),
    ],
    "softmax": [("16384x4096", {})],
    "rms_norm": [("16384x4096,4096", {})],
    "layer_norm": [("16384x4096,4096,4096", {})],
    "swiglu": [("16384x4096,16384x4096", {})],
    "softmax_backward": [("16384x4096,16384x4096", {})],
    "rms_norm_backward": [("16384x4096,16384x4096,4096", {})],
    "layer_norm_backward": [("16384x4096,16384x4096,4096,4096", {})],
    "swiglu_backward": [("16384x4096,16384x4096,16384x4096", {})],
    "fused_add_rms_norm": [("16384x4096,16384x4096,4096", {})],
    "activation": [("16384x4096", {"activation": "gelu"})],
    "gated_activation": [("8192x2x14336", {"activation": "silu"})],
    "mean": [("16384x4096", {})],
    "log_softmax": [("16384x4096", {})],
    "cross_entropy": [("8192x32000,8192", {})],
    "cross_entropy_backward": [("8192,8192x32000,8192,8192", {})],
    "selected_logprob": [("8192x32000,8192", {})],
    "rope": [("1x8192x32x128,1x8192x8x128,8192x64,8192x64", {})],
    "qk_norm_rope": [("1x8192x32x128,1x8192x8x128,128,128,8192x64,8192x64", {})],
    "embedding": [("8192,32000x4096", {})],
    "adamw": [("67108864,67108864,67108864,67108864,1,1", {})],
}
COLUMNS: tuple[str, ...] = (
    "op", "call", "arch", "implementation", "microseconds", "tflops", "gigabytes", "bound", "matrix",
    "vector", "ghz", "registers", "lds", "spills", "waves_per_simd", "waits",
)  # fmt: skip


def modelled(arch: str, op: str) -> Iterable[Mapping[str, Any]]:
    """The rows of an op's calls, each implementation that runs it."""
    from portable.commands import model, trace
    from portable.spec import registry
    from portable.tune import call_options

    trace.choose(arch)
    spec = registry.spec(op)
    types = call_options.types(spec, "bfloat16")
    for shapes, params in CALLS[op]:
        (named,) = call_options.calls([shapes], spec)
        tensors = trace.inputs(spec, named, types)
        given = [f"{name}={value}" for name, value in params.items()]
        text = " ".join([shapes.replace(",", " "), *given])
        for row in model.rows(spec, tensors, types, params, None):
            if row.launches:
                yield {"op": op, "call": text, "arch": arch, **_cells(row)}


def _cells(row: Any) -> dict[str, Any]:
    longest = max(row.launches, key=lambda each: each.seconds)
    waits = sorted(((share, name) for name, share in longest.waves.items() if name != "issue"), reverse=True)
    return {
        "implementation": row.implementation,
        "microseconds": f"{row.seconds * 1e6:.4g}",
        "tflops": f"{row.flops / row.seconds / 1e12:.4g}",
        "gigabytes": f"{row.bytes / row.seconds / 1e9:.4g}",
        "bound": f"{longest.bound:.2f}",
        "matrix": f"{longest.matrix_share:.2f}",
        "vector": f"{longest.vector_share:.2f}",
        "ghz": f"{longest.ghz:.2f}",
        "registers": longest.resources["vgprs"],
        "lds": longest.resources["lds_bytes"],
        "spills": longest.resources["spills"],
        "waves_per_simd": longest.resources["waves_per_simd"],
        "waits": ", ".join(f"{name} {share:.2f}" for share, name in waits[:2] if share >= 0.05),
    }


def read() -> list[dict[str, str]]:
    if not TABLE.exists():
        return []
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def write(rows: Iterable[Mapping[str, Any]]) -> None:
    order = [(op, arch) for op in CALLS for arch in ARCHES]
    kept = sorted(rows, key=lambda row: order.index((row["op"], row["arch"])))
    with TABLE.open("w", newline="") as file:
        out = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        out.writeheader()
        out.writerows(kept)


def page(rows: Iterable[Mapping[str, str]]) -> str:
    text = [_HEAD]
    for op in CALLS:
        own = [row for row in rows if row["op"] == op]
        if not own:
            continue
        text.append(f"\n## {op}\n\n| " + " | ".join(_TITLES) + " |\n" + _RULE)
        text += ["| " + " | ".join(row[name] for name in COLUMNS[1:]) + " |\n" for row in own]
    return "".join(text)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("arches", nargs="*", choices=[[], *ARCHES], metavar="ARCH")
    options.add_argument("--ops", default=",".join(CALLS))
    options.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    ops = given.ops.split(",")
    for arch in given.arches:
        if given.here:
            new = [row for op in ops for row in modelled(arch, op)]
            write([row for row in read() if (row["arch"] != arch or row["op"] not in ops)] + new)
        else:  # a process has one device
            subprocess.run([sys.executable, __file__, "--here", "--ops", given.ops, arch], check=True)
    PAGE.write_text(page(read()))
    return 0


_TITLES = (
    "call, bfloat16", "GPU", "implementation", "us", "TFLOP/s", "GB/s", "bound", "matrix pipe", "vector pipe",
    "GHz", "registers", "LDS", "spills", "waves a SIMD", "waves wait for",
)  # fmt: skip
_RULE = "|---|---|---|" + "--:|" * 11 + "---|\n"
_HEAD = """# The ops on AMD GPUs, modelled

By [the timing model](timing_model.md), not measured: it is 6 % off (root mean square) on the published
times that it is held to, of MI300X (gfx942) and MI355X (gfx950); the other GPUs have no published time to
hold it to. `bound` is the share of the roof that the instructions allow ([trace.md](trace.md)); `matrix
pipe` the share of the cycles in which it is busy. Every implementation that runs the call has a row, the
one that runs by default first.

`python docs/modelled.py gfx942` models the calls of a GPU again.
"""

if __name__ == "__main__":
    sys.exit(main())
