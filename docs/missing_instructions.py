"""Write docs/emulator_missing.md: the instructions of each architecture that the emulator does not execute.

`python docs/missing_instructions.py`; from the opcode tables of the decoder (`isa/*.txt`) and the table of
what the library executes. A test compares the page with both.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from portable.backends.rocm.emulator import abi
from portable.backends.rocm.emulator.isa.tables import isa_of
from portable.backends.rocm.emulator.mnemonics import library_mnemonic
from portable.backends.rocm.emulator.native_build import library

PAGE = Path(__file__).resolve().parent / "emulator_missing.md"
FAMILIES = (
    (r"v_(smfmac|swmmac)_", "sparse matrix products", "by name: `__builtin_amdgcn_smfmac_*`, `swmmac`"),
    (r"t?buffer_\w*format_", "buffers with a format", "by name: `llvm.amdgcn.*.buffer.*.format`"),
    (r"s_\w*atomic|s_\w*store|s_scratch|s_dcache_discard|s_atc", "scalar stores and atomics", "by nobody"),
    (
        r"ds_(gws|ordered|append|consume)|global_atomic_ordered",
        "global wave sync, append and consume",
        "by name: `__builtin_amdgcn_ds_gws_*`, `ds_append`",
    ),
    (r"v_cube|v_screen|v_mullit|ds_bvh|buffer_store_lds|v_clrexcp", "graphics", "not for compute"),
    (r"\w+_load_block|\w+_store_block|s_alloc_vgpr", "blocks of registers", "with options of clang's"),
    (
        r"s_(cbranch_(cdbg|g_|i_|join)|rfe|setvskip|sendmsghalt|endpgm_ordered|subvector)",
        "debugger, traps, old branches",
        "in trap handlers",
    ),
    (
        r"s_(barrier_(init|join|leave|signal_isfirst)|get_barrier_state)",
        "named barriers",
        "by name: `__builtin_amdgcn_s_barrier_*`",
    ),
    (r"scratch_load_lds", "scratch straight to LDS", "by nobody"),
    (r"ds_(wrxchg2|storexchg_2addr|condxchg)", "exchanges of two values in LDS", "by nobody"),
    (r"s_code_end", "padding behind a kernel", "and never executed"),
    (r"s_sendmsg_rtn_b32", "messages with an answer of 32 bits", "by name: `__builtin_amdgcn_s_sendmsg_rtn`"),
    (r"v_mfma_ld_scale", "half of an instruction", "only before a scaled MFMA, with which it is executed"),
)
"""Regular expressions of names, what they are, and when clang or Triton emits them."""

HEAD = """# Instructions that the emulator does not execute

Written by `python docs/missing_instructions.py` from the opcode tables in `backends/rocm/emulator/isa/` (the
instruction set guides' and LLVM's) and the library's table of what it executes; a test compares. A kernel
that can reach one of these is refused when it is loaded, by the instruction's name. Images, exports and
interpolation are not in the tables. Of what is executed one is refused when it runs: `global_load_tr_b64`,
whose lane layout is not public.

"""


def missing(arch: str) -> tuple[int, list[str]]:
    """How many instructions an architecture has, and the names of those that are not executed."""
    names = {op.name for form in isa_of(arch).ops.values() for op in form.values()}
    return len(names), sorted(name for name in names if library_mnemonic(name) not in library().ops)


def family(name: str) -> str:
    return next((what for pattern, what, _ in FAMILIES if re.match(pattern, name)), "others")


def page() -> str:
    found = {arch: missing(arch) for arch in abi.ARCHES}
    lines = [
        "| | " + " | ".join(found) + " |",
        "|---|" + "--:|" * len(found),
        "| instructions | " + " | ".join(f"{count:,}" for count, _ in found.values()) + " |",
        "| executed | " + " | ".join(f"{count - len(names):,}" for count, names in found.values()) + " |",
    ]
    names = sorted({name for _, each in found.values() for name in each})
    emitted = {what: who for _, what, who in FAMILIES}
    for what in sorted({family(name) for name in names}, key=lambda each: (each == "others", each)):
        lines += ["", f"## {what[0].upper()}{what[1:]}", ""]
        if what in emitted:
            lines += [f"Emitted: {emitted[what]}.", ""]
        lines += ["| instruction | on |", "|---|---|"]
        for name in names:
            if family(name) == what:
                arches = [arch for arch in found if name in found[arch][1]]
                lines.append(f"| {name} | {', '.join(arches)} |")
    return HEAD + "\n".join(lines) + "\n"


def main() -> int:
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
