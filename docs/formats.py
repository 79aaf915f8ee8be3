"""Write docs/formats.md: for each format of low precision and each GPU, what its products are multiplied in.

`python docs/formats.py` plans a large call of each op for each GPU, compiles the kernels of the
implementation that dispatch takes, and reads the matrix instructions in their code. Minutes on a core.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import NamedTuple

from portable.backend import Backend
from portable.backends.cuda import disassembly as of_nvidia
from portable.backends.rocm.emulator import disassembly as of_amd
from portable.commands import check
from portable.dispatch import select
from portable.plan import Device, Plan
from portable.runtime import build
from portable.spec import registry
from portable.spec.model import Implementation

PAGE = Path(__file__).resolve().parent / "formats.md"
DISASSEMBLE = {"cuda": of_nvidia.mnemonics, "rocm": of_amd.mnemonics}
GPUS = ("sm_80", "sm_90a", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")


class Format(NamedTuple):
    """A row of the page. `types` chooses a row of the op's, `bench` one of its bench cases, `own` are the
    types of a matrix instruction that takes the format as it is."""

    title: str
    op: str
    own: tuple[str, ...]
    types: Mapping[str, str] = {}
    bench: int = 0


FP8, MX, FP4 = ("fp8",), ("fp8", "f8f6f4/fp8"), ("f8f6f4/fp4",)
FORMATS = (
    Format("fp8 e4m3, scales of rows or of the whole", "scaled_mm", MX),
    Format("fp8 e5m2 by e4m3, the same scales", "scaled_mm", MX, {"TA": "float8_e5m2"}),
    Format(
        "fp8 e4m3fnuz, the same scales", "scaled_mm", MX, {"TA": "float8_e4m3fnuz", "TB": "float8_e4m3fnuz"}
    ),
    Format("fp8 e4m3, scales of 1x128 and 128x128", "scaled_mm_block", MX),
    Format("MXFP8", "scaled_mm_mx", MX),
    Format("MXFP4", "scaled_mm_mxfp4", FP4),
    Format("NVFP4", "scaled_mm_nvfp4", FP4),
    Format("int8", "int_mm", ("int8",)),
    Format("int8, scales of rows, zero points", "int8_scaled_mm", ("int8",)),
    Format("int4 weights, bfloat16 rows", "int4_mm", (), bench=-1),
    Format("int4 weights, int8 rows (W4A8)", "int8_int4_mm", (), bench=2),
    Format("2:4 weights in bfloat16", "sparse_mm", ("bfloat16, 2:4",)),
    Format("2:4 weights in fp8", "sparse_scaled_mm", ("fp8, 2:4",)),
    Format("attention, q, k and v in fp8", "attention_fp8", MX),
    Format("attention, KV cache in fp8", "attention_paged_fp8", FP8),
)
"""Large calls: few rows may be another implementation's."""

HEAD = """# Formats of low precision: native or dequantised

Written by `python docs/formats.py` on {date}: for a large call of each op, the implementation that dispatch
takes for that GPU, and the type of the matrix instructions in its machine code. **Bold**: the matrix cores
take the format as it is (native). Otherwise operands become that type first (dequantised), in registers or,
with `widened`, in memory: an exact step but where the op's spec says otherwise. "vector units": no matrix
instruction. Few rows may be another implementation's; `explain` says it of a call.

This says what the kernels are made of, compiled, not that they ran. What ran: on an H200
[README](../README.md#supported-hardware) and [speed](speed.md), on emulated AMD GPUs
[emulated.md](emulated.md).
gfx942's fp8 instructions read e4m3fnuz and e5m2fnuz. `scaled_mm`, `scaled_mm_block`, `sparse_scaled_mm` and
`attention_fp8` make OCP codes those of half the numbers first, which is exact; scaled_mm multiplies
tiles that meet e5m2's Inf as bfloat16 numbers again.

| format | op | {gpus} |
|---|---|{rule}|
"""


AMD = {
    "f8f6f4": "f8f6f4", "fp8": "fp8", "fp6": "fp6", "bf6": "fp6", "fp4": "fp4",
    "bf8": "fp8", "i8": "int8", "iu8": "int8", "bf16": "bfloat16",
    "f16": "float16", "f32": "float32", "f64": "float64", "xf32": "tf32",
}  # fmt: skip
"""Types by the names of AMD's matrix instructions."""


def operands(mnemonic: str) -> str | None:
    """What a matrix instruction multiplies, of f8f6f4 its operands' types too; None of any other."""
    name = mnemonic.lower()
    nvidia = re.match(r"([qhid])(?:gmma|mma)\b", name)
    amd = re.match(r"v_(mfma|smfmac|wmma|swmmac)_(.*)", name)
    if nvidia:
        kind = {"q": "fp8", "i": "int8", "d": "float64"}.get(
            nvidia[1], "bfloat16" if ".bf16" in name else "float16"
        )
        kind = "tf32" if ".tf32" in name else kind
        return kind + (", 2:4" if ".sp" in name else "")
    if not amd:
        return None
    last = amd[2].split("x")[-1]  # of 16x16x32_fp8_fp8
    last, *formats = last.split()  # of f8f6f4's two operands
    found = next(kind for part, kind in AMD.items() if re.search(rf"(?:_|\d){part}(?:_|$)", last))
    found = "/".join([found, *sorted({AMD[each] for each in formats}, reverse=True)])
    return found + (", 2:4" if amd[1] in ("smfmac", "swmmac") else "")


def taken(
    row: Format, backend: Backend, device: Device
) -> tuple[Implementation, Plan, Mapping[str, str]] | None:
    """The first implementation that takes the call on this GPU, its plan, and the dtypes of its tensors."""
    spec = registry.spec(row.op)
    types = next(each for each in spec.types if row.types.items() <= each.items())
    # The second operand of a product lies along k, which all of these instructions ask for.
    signature = check.call_signature(spec, spec.bench[row.bench], types, True, check.matrices(spec)[-1:])
    for implementation in spec.implementations:
        if implementation.kind == "run" or not check.could_run(implementation, backend, device):
            continue
        plan = select.evaluate(implementation, signature, backend, device, static=False).plan
        if plan is not None:
            dtypes = {name: info.dtype for name, info in signature.tensors.items() if info is not None}
            return implementation, plan, dtypes | {each.name: each.dtype for each in plan.workspaces}
    return None


def cell(row: Format, arch: str) -> str:
    """The implementation, and what it multiplies in."""
    ((backend, device),) = check.targets([arch])
    found = taken(row, backend, device)
    if found is None:
        return "torch"
    implementation, plan, dtypes = found
    kinds: set[str] = set()
    for launch in plan.launches:
        code = build.code_object(launch, dict(dtypes), backend, device)
        kinds |= {kind for name in DISASSEMBLE[backend.name](code.binary) if (kind := operands(name))}
    inside = ", ".join(f"**{kind}**" if kind in row.own else kind for kind in sorted(kinds)) or "vector units"
    return f"`{implementation.name}`: {inside}"


def main() -> int:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    with ThreadPoolExecutor(2) as pool:
        cells = list(pool.map(lambda at: cell(*at), [(row, arch) for row in FORMATS for arch in GPUS]))
    text = HEAD.format(
        date=date.today().isoformat(), gpus=" | ".join(GPUS), rule="---|" * (len(GPUS) - 1) + "---"
    )
    for number, row in enumerate(FORMATS):
        line = cells[number * len(GPUS) : (number + 1) * len(GPUS)]
        text += f"| {row.title} | `{row.op}` | {' | '.join(line)} |\n"
    PAGE.write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
