"""Count the row ops on the emulated AMD GPUs: `python docs/amd_rows.py --json FILE`, then with `--write`.

Every op of `OPS` in HIP and Triton, bfloat16 and float32, at rows of 4,096, 65,536 and an odd 5,003
elements; `CALLS` has those that are no rows of one axis. Nothing is measured: counts, and cycles by the pipe
model (docs/trace.md).
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import page
import torch

from portable.backend import Trace
from portable.commands import trace as tracing
from portable.spec import registry
from portable.spec.model import Case, Spec
from portable.tune import problem

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "amd.md"
OPS = (
    "rms_norm",
    "layer_norm",
    "softmax",
    "swiglu",
    "rms_norm_backward",
    "layer_norm_backward",
    "softmax_backward",
    "swiglu_backward",
    "activation",
    "gated_activation",
    "mean",
    "log_softmax",
    "fused_add_rms_norm",
    "cross_entropy",
    "selected_logprob",
    "embedding",
    "index_add",
    "kv_cache_write",
    "rope",
    "qk_norm_rope",
    "adamw",
)
PARAMS = {"activation": {"activation": "gelu"}, "gated_activation": {"activation": "silu"}}
HEAD = 128  # of rope and kv_cache_write, whose rows are a token's heads


@dataclass(frozen=True)
class Call:
    """A call whose rows are no leading dimensions: `rows` names the inputs that hold them."""

    case: Callable[[int, int], Case | None]
    """Of a row's length and how many; None where the op has no such rows."""
    rows: tuple[str, ...]
    tables: bool = False
    """Rows share tables, so how often they themselves are read does not follow from the bytes loaded."""


def _heads(length: int, rows: int) -> Case | None:
    if length % (4 * HEAD):
        return None
    heads = length // HEAD
    axes = {"Z": 1, "M": rows, "H": heads, "G": heads // 4, "D": HEAD, "P": rows, "C": HEAD // 2}
    return Case(axes, absent=("positions",))


def _pages(length: int, rows: int) -> Case | None:
    if length % HEAD:
        return None
    return Case({"M": rows, "G": length // HEAD, "D": HEAD, "E": HEAD, "P": rows, "S": 1})


CALLS = {
    "cross_entropy": Call(lambda n, rows: Case({"N": rows, "V": n}, absent=("weight",)), ("logits",)),
    "selected_logprob": Call(lambda n, rows: Case({"N": rows, "V": n}), ("logits",)),
    "embedding": Call(lambda n, rows: Case({"V": rows, "N": n}, {"input": (rows,)}), ("weight",)),
    "index_add": Call(lambda n, rows: Case({"R": rows, "M": rows, "N": n}), ("input", "source")),
    "kv_cache_write": Call(_pages, ("k", "v")),
    "rope": Call(_heads, ("q", "k"), tables=True),
    "qk_norm_rope": Call(_heads, ("q", "k"), tables=True),
    "adamw": Call(
        lambda n, rows: Case({"N": n * rows}, absent=("grad_scale", "found_inf")),
        ("param", "grad", "exp_avg", "exp_avg_sq"),
    ),
}
IMPLEMENTATIONS = {"cpp": "HIP", "triton": "Triton"}
GPUS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
DTYPES = ("bfloat16", "float32")
LENGTHS = {4096: 256, 65536: 16, 5003: 208}
"""Row length -> rows: a MiB of elements, so that a block's prologue weighs what it does in a large call."""
QUICK = {4096: 32, 65536: 8, 5003: 32}
PERSISTENT = {"rms_norm_backward": 8, "layer_norm_backward": 8}
"""Times as many rows, of ops whose blocks add up their rows: the sums weigh what they do in a large call."""
MOST_LINES, MOST_VECTOR, MOST_READ = 1.05, 1.0, 1.05
MARKS = ("<!-- rows -->", "<!-- end of rows -->")


@dataclass(frozen=True)
class Row:
    """One call: shares of what the fewest cache lines, the memory's time and the operands would be."""

    op: str
    implementation: str
    gpu: str
    dtype: str
    length: int
    lines: float
    """Cache lines touched by loads and stores over the fewest that hold the bytes of each instruction."""
    load_bytes: float
    store_bytes: float
    """Bytes of a lane's load and store, the mean over the bytes moved."""
    widest_load: int
    """Bytes of a lane's load by which most bytes come: indices and numbers of a row come by others."""
    results: bool
    """Whether the stores are of one number a row, whose width is its own."""
    vector: float
    """The vector pipe's time over the memory's."""
    busiest: str
    share: float
    read: float | None
    """Bytes that the first launch loads by the accesses of most of them over those of the rows that go in;
    None where that is not known."""
    spills: int
    launches: int

    def misses(self) -> list[str]:
        """What is not as it should be. Where rows of an odd length lie at any element, lines and widths are
        only shown."""
        aligned = self.length % 8 == 0
        found = []
        if aligned and self.lines > MOST_LINES:
            found.append("lines")
        if self.vector > MOST_VECTOR:
            found.append("vector")
        if aligned and min(self.widest_load, 16 if self.results else self.store_bytes) < 15:
            found.append("width")
        if self.read is not None and self.read > MOST_READ:
            found.append("read")
        if self.spills:
            found.append("spills")
        return found

    def cell(self) -> str:
        """Lines, bytes of a lane's load and store, vector / memory, rows read; in bold with its misses."""
        widths = f"{self.load_bytes:.0f}/{self.store_bytes:.0f}"
        read = "-" if self.read is None else f"{self.read:.1f}"
        text = f"{self.lines:.2f}, {widths}, {self.vector:.2f}, {read}"
        misses = self.misses()
        return f"**{text}** ({', '.join(misses)})" if misses else text


def case_of(spec: Spec, length: int, rows: int) -> Case | None:
    """The call with all operands present; None where the op has no rows of this length."""
    if spec.op in CALLS:
        return CALLS[spec.op].case(length, rows)
    leading = {name: (rows,) for name, each in spec.inputs.items() if each.leading}
    return Case({"N": length}, leading, params=PARAMS.get(spec.op, {}))


def counted(spec: Spec, implementation: str, dtype: str, case: Case) -> tuple[list[Trace], int, int]:
    """The launches of one call; bytes of its rows that go in, and of parameters."""
    types = next(row for row in spec.types if row["T"] == dtype)
    call = problem.of_case(spec, implementation, case, types)
    tensors = {name: tensor for name, tensor in call.tensors("cpu", seed=0).items() if tensor is not None}
    traces = tracing.run(spec, tensors, case.params, implementation)
    names = CALLS[spec.op].rows if spec.op in CALLS else case.leading
    row_bytes = sum(tensor.nbytes for name, tensor in tensors.items() if name in names)
    parameters = [
        each for name, each in tensors.items() if name not in names and not spec.inputs[name].mutated
    ]
    return traces, row_bytes, sum(each.nbytes for each in parameters)


def mean_width(bytes_by_width: Mapping[int, int]) -> float:
    """Bytes of a lane's access, the mean over the bytes moved."""
    return sum(width * moved for width, moved in bytes_by_width.items()) / sum(bytes_by_width.values())


def figures(spec: Spec, implementation: str, gpu: str, dtype: str, length: int, rows: int, case: Case) -> Row:
    """The figures of a call: of its first launch what is said of rows, of all launches the pipes."""
    traces, row_bytes, parameter_bytes = counted(spec, implementation, dtype, case)
    traces = [trace for trace in traces if trace.figures["memory"]["global loads"]["lanes"]]
    loads, stores = (traces[0].figures["memory"][f"global {kind}"] for kind in ("loads", "stores"))
    widths = traces[0].figures["access_widths"]
    of_loads, of_stores = widths["global loads"], widths["global stores"]
    widest = max(of_loads, key=lambda width: of_loads[width])
    bounds = [trace.bound for trace in traces if trace.bound is not None]
    pipes = [{pipe.name: pipe.cycles for pipe in bound.pipes} for bound in bounds]
    fewest = loads["fewest_cache_lines"] + stores["fewest_cache_lines"]
    if spec.op not in CALLS:
        # A row's block may load the parameters for itself: they come from a cache.
        parameter_bytes *= rows
    known = spec.op not in CALLS or not CALLS[spec.op].tables
    return Row(
        spec.op,
        implementation,
        gpu,
        dtype,
        length,
        (loads["cache_lines"] + stores["cache_lines"]) / fewest,
        mean_width(of_loads),
        mean_width(of_stores),
        widest,
        stores["bytes"] <= 16 * rows,
        sum(each.get("vector", 0) for each in pipes) / sum(each["memory"] for each in pipes),
        max(bounds, key=lambda bound: bound.pipes[0].cycles).pipes[0].name,
        tracing.together(bounds),
        max(0, of_loads[widest] - parameter_bytes) / row_bytes if known else None,
        max(trace.figures["spills"] for trace in traces),
        len(traces),
    )


def table(found: Sequence[Row]) -> str:
    """A row per op, implementation, dtype and length; a cell per GPU: lines, vector / memory, rows read."""
    gpus = [gpu for gpu in GPUS if any(each.gpu == gpu for each in found)]
    text = "| op | | dtype | row | " + " | ".join(gpus) + " |\n|---|---|---|--:|" + "---|" * len(gpus) + "\n"
    cells = {(each.op, each.implementation, each.dtype, each.length, each.gpu): each for each in found}
    for key in dict.fromkeys(key[:4] for key in cells):
        op, implementation, dtype, length = key
        row = [cells.get((*key, gpu)) for gpu in gpus]
        shown = " | ".join("" if each is None else each.cell() for each in row)
        text += f"| {op} | {IMPLEMENTATIONS[implementation]} | {dtype} | {length:,} | {shown} |\n"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rows")
    parser.add_argument("--gpus", default=",".join(GPUS))
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--impls", default=",".join(IMPLEMENTATIONS))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--json", type=Path, help="where the rows go, one after the other")
    parser.add_argument("--write", action="store_true", help=f"write the table of {PAGE.name} from --json")
    args = parser.parse_args()
    if args.write:
        page.write_between(PAGE, MARKS, table(page.read(args.json, Row)))
        return 0
    torch.set_num_threads(1)
    calls = itertools.product(
        args.gpus.split(","),
        args.ops.split(","),
        args.impls.split(","),
        args.dtypes.split(","),
        map(int, args.lengths.split(",")),
    )
    for gpu, op, implementation, dtype, length in calls:
        tracing.choose(gpu)
        rows, spec = (QUICK if args.quick else LENGTHS)[length], registry.spec(op)
        rows *= PERSISTENT.get(op, 1)
        case = case_of(spec, length, rows)
        if case is None:
            continue
        row = figures(spec, implementation, gpu, dtype, length, rows, case)
        print(gpu, op, implementation, dtype, length, row.cell(), *row.misses(), flush=True)
        page.append(args.json, row)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
