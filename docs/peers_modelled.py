"""Models other people's kernels and ours on the same calls, for docs/peers.md. Nothing is measured.

python docs/peers_modelled.py FOLDER NAME:PROBLEM ... --json FILE
python docs/peers_modelled.py --write --json FILE

FOLDER, NAME and PROBLEM are those of docs/timing_kernels.py. Ours are bfloat16: c = a @ b with b a transposed
view of row-major (N, K), or attention forward of heads of 128.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import page
import timing_kernels
import torch

from portable.backend import Modelled
from portable.backends.rocm.emulator.code_object import CodeObject
from portable.commands import model
from portable.commands import trace as tracing

PAGE = Path(__file__).resolve().parent / "peers.md"
MARKS = ("<!-- modelled -->", "<!-- end of modelled -->")
OURS = {"mfma": "ours, HIP", "triton": "ours, Triton"}


@dataclass(frozen=True)
class Row:
    """A kernel on a call: its modelled time as a rate; the share of the roof that its instructions allow."""

    gpu: str
    call: str
    kernel: str
    tflops: float
    bound: float


def row(gpu: str, call: str, kernel: str, flops: float, launches: Sequence[Modelled]) -> Row:
    """The launches of a call one after the other; the bound is the longest one's."""
    longest = max(launches, key=lambda each: each.seconds)
    rate = flops / sum(each.seconds for each in launches) / 1e12
    return Row(gpu, call, kernel, rate, longest.bound)


def named(shape: Mapping[str, Any]) -> str:
    """The call of a problem in words."""
    causal = ", causal" if shape.get("causal") else ""
    return timing_kernels.call(shape) + causal


def peer(folder: Path, name: str, problem: int) -> tuple[Row, Mapping[str, Any]]:
    """The row of a described kernel, and its problem."""
    spec = json.loads((folder / f"{name}.json").read_text())
    code = CodeObject((folder / f"{name}.hsaco").read_bytes())
    code.drops_waits = spec.get("drops_waits", False)
    found = spec["problems"][problem]
    names = {**spec.get("defaults", {}), **found["shape"]}
    launch = timing_kernels.modelled(code, spec, names)
    shape = found["shape"]
    return row(spec["arch"], named(shape), spec.get("title", name), found["flops"], [launch]), found


def ours(gpu: str, problem: Mapping[str, Any]) -> list[Row]:
    """The rows of our implementations on a peer's problem."""
    shape, params = problem["shape"], {}
    if "M" in shape:
        m, n, k = (shape[name] for name in "MNK")
        op, tensors = "matmul", {"a": _random(m, k), "b": _random(n, k).T}
    else:
        batch, length = shape["B"], shape["SQ"]
        keys = [_random(batch, shape["HK"], shape["SK"], 128) for _ in range(2)]
        op, tensors = (
            "attention",
            {"q": _random(batch, shape["H"], length, 128), "k": keys[0], "v": keys[1]},
        )
        params = {"causal": bool(shape.get("causal"))}
    tracing.choose(gpu)
    return [
        row(gpu, named(shape), label, problem["flops"], model.launched(op, tensors, params, name))
        for name, label in OURS.items()
    ]


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16)


def table(found: Sequence[Row]) -> str:
    """A table per GPU; calls in order of work come as they were modelled, the peers of a call before ours."""
    text = ""
    for gpu in dict.fromkeys(each.gpu for each in found):
        text += f"\n| call, {gpu} | kernel | modelled TFLOP/s | bound |\n|---|---|--:|--:|\n"
        own = [each for each in found if each.gpu == gpu]
        for call in dict.fromkeys(each.call for each in own):
            rows = dict.fromkeys(each for each in own if each.call == call)
            for each in sorted(rows, key=lambda each: each.kernel in OURS.values()):
                text += f"| {call} | {each.kernel} | {each.tflops:.0f} | {each.bound:.2f} |\n"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("names", nargs="*", metavar="NAME:PROBLEM")
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one after the other")
    parser.add_argument("--write", action="store_true", help=f"write the table of {PAGE.name} from --json")
    args = parser.parse_args()
    if args.write:
        page.write_between(PAGE, MARKS, table(page.read(args.json, Row)))
        return 0
    torch.manual_seed(0)
    done = set()
    for each in args.names:
        name, _, number = each.partition(":")
        theirs, problem = peer(args.folder, name, int(number or 0))
        first = (theirs.gpu, theirs.call) not in done
        done.add((theirs.gpu, theirs.call))
        for found in [theirs, *(ours(theirs.gpu, problem) if first else [])]:
            print(found, flush=True)
            page.append(args.json, found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
