"""Models other people's kernels again, for docs/timing_model.csv.

python docs/timing_kernels.py FOLDER NAME[:PROBLEM,PROBLEM] ...

FOLDER holds NAME.hsaco, a code object as its authors compile or ship it, and NAME.json, how it is launched:

    {"kernel": symbol, "arch": "gfx942", "title": the kernel's name in the table,
     "grid_workgroups": [3 of E], "workgroup": [x, y, z], "lds_dynamic": E, "kernarg_bytes": n,
     "args": [{"offset": n, "kind": "pointer", "tensor": name or null, "bytes": E},
              {"offset": n, "kind": "value", "format": of struct, "value": E}],
     "tensors": {name: {"shape": [E], "dtype": "bfloat16", "init": "randn" | "zeros" | "empty"}},
     "defaults": {name: number},
     "problems": [{"shape": {name: number}, "flops": number,
                   "published": {"tflops": number, "gpu": text, "source": text}}]}

E is a number, or a formula (portable/spec/formula.py) over the names of `shape` and `defaults`.
PROBLEM counts from 0. Code objects of others are not part of this repository.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import timing_model
import torch

from portable.backend import Modelled
from portable.backends.rocm.emulator import timing
from portable.backends.rocm.emulator.code_object import CodeObject
from portable.backends.rocm.emulator.launch import Buffer, KernelLaunch
from portable.spec.formula import Formula


def value(expression: Any, names: Mapping[str, Any]) -> Any:
    """The number that an expression of a description stands for."""
    return Formula(str(expression), names).evaluate(**names)


def rows(folder: Path, name: str) -> Iterator[timing_model.Row]:
    """A row for each problem with a published time; `name` may pick problems."""
    name, _, picked = name.partition(":")
    spec = json.loads((folder / f"{name}.json").read_text())
    code = CodeObject((folder / f"{name}.hsaco").read_bytes())
    code.drops_waits = spec.get("drops_waits", False)
    problems = spec["problems"]
    for problem in [problems[int(each)] for each in picked.split(",")] if picked else problems:
        published = problem["published"]
        if published.get("tflops"):
            names = {**spec.get("defaults", {}), **problem["shape"]}
            found = modelled(code, spec, names)
            yield timing_model.Row(
                spec["arch"], published["gpu"], spec.get("title", name), call(problem["shape"]),
                published["source"].split()[0], problem["flops"], published["tflops"],
                found.cycles, found.matrix_share, found.vector_share,
            )  # fmt: skip


def modelled(code: CodeObject, spec: Mapping[str, Any], names: Mapping[str, Any]) -> Modelled:
    """The modelled launch of a described kernel, its sizes by name."""
    tensors = {name: _tensor(each, names) for name, each in spec["tensors"].items()}
    kernarg = bytearray(spec["kernarg_bytes"])
    for each in spec["args"]:
        if each["kind"] == "pointer":
            tensor = each.get("tensor")
            start = tensors[tensor].data_ptr() + value(each.get("bytes", 0), names) if tensor else 0
            struct.pack_into("<Q", kernarg, each["offset"], start)
        else:
            struct.pack_into(
                "<" + each.get("format", "I"), kernarg, each["offset"], value(each["value"], names)
            )
    x, y, z = (value(each, names) for each in spec["grid_workgroups"])
    buffers = [Buffer(name, each.data_ptr(), each.nbytes) for name, each in tensors.items()]
    lds = value(spec.get("lds_dynamic", 0), names)
    kernel = code.kernels[spec["kernel"]]
    launch = KernelLaunch(kernel, (x, y, z), tuple(spec["workgroup"]), lds, bytes(kernarg), buffers)
    return timing.model(launch, samples=2)


def _tensor(info: Mapping[str, Any], names: Mapping[str, Any]) -> torch.Tensor:
    shape = [value(each, names) for each in info["shape"]]
    make = {"randn": torch.randn, "zeros": torch.zeros, "empty": torch.empty}[info["init"]]
    return make(shape).to(getattr(torch, info["dtype"]))


def call(shape: Mapping[str, Any]) -> str:
    """The sizes of a problem, as the tables name them."""
    if "M" in shape:
        return f"{shape['M']}x{shape['N']}x{shape['K']}"
    return f"b{shape['B']} h{shape['H']}/{shape['HK']} {shape['SQ']}"


def main(folder: Path, names: list[str]) -> int:
    new = [row for name in names for row in rows(folder, name)]
    again = {(row.arch, row.kernel, row.call) for row in new}
    kept = [row for row in timing_model.read() if (row.arch, row.kernel, row.call) not in again]
    timing_model.write(sorted([*kept, *new], key=lambda row: (row.arch, row.kernel, row.flops)))
    return timing_model.main()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
