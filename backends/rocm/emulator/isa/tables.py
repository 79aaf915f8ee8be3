"""The opcode tables of the three generations, as the decoder wants them.

A line of gfx9.txt, gfx11.txt or gfx12.txt is "FORMAT opcode name operands [targets]". The opcodes and
names are facts of the AMD instruction set guides (CDNA2, CDNA3, CDNA4, RDNA3, RDNA4) in LLVM's spelling;
a line that names targets holds on these only. `operands` is "written=read" with a letter per operand in
the order of assembly, and for the short 16-bit encodings of gfx11 and later, after a colon, the operands
whose bit 7 means "upper half":

    vector   d vdst, s vdst that is an SGPR, b the carry SGPR, V VCC, E EXEC; 0 1 2 sources, L literal;
             a source d is the old value of the destination
    scalar   s sdst, d its old value, 0 1 sources, L literal
    SMEM     s sdata, m base and offset, p the same and a length (prefetch), x base, offset and data,
             r the data comes back when the instruction says so
    DS       d vdst, a address, 0 1 data; ":2" two 8-bit offsets instead of one of 16
    vector memory   d vdst, x data, r a destination when the instruction says so; "-" no operands at all
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from portable.backends.rocm.emulator.faults import CodeObjectError

# Targets that the decoder takes, as (generation, the target that the table knows it as).
TARGETS = {
    "gfx90a": (9, "gfx90a"),
    "gfx940": (9, "gfx942"),
    "gfx941": (9, "gfx942"),
    "gfx942": (9, "gfx942"),
    "gfx950": (9, "gfx950"),
    "gfx1100": (11, "gfx1100"),
    "gfx1101": (11, "gfx1100"),
    "gfx1102": (11, "gfx1100"),
    "gfx1103": (11, "gfx1100"),
    "gfx1200": (12, "gfx1201"),
    "gfx1201": (12, "gfx1201"),
}

# The order in which a decoder lays out the values that the letters of `operands` pick from.
VECTOR_LETTERS = "d012bsVEL"
SCALAR_LETTERS = "s01Ld"

Pick = Callable[[tuple[int, ...]], tuple[int, ...]]


@dataclass(slots=True)
class Op:
    """One opcode: its name and how its operands are found."""

    name: str
    written: Pick  # values in letter order -> Inst.dst
    read: Pick  # values in letter order -> Inst.src
    dst: str  # the letters themselves
    src: str
    sources: int  # how many of the source fields 0, 1, 2 are used
    half: int  # 16-bit operands of short encodings: bit 0 source 0, bit 1 source 1, bit 3 destination
    kind: str  # what a format's decoder must treat differently: "mfma", "bitop3", "branch", ...
    two: bool  # DS: two offsets
    old: bool  # reads its destination


def _picker(letters: str, order: str) -> Pick:
    """A function from the values in `order` to the tuple of those that `letters` name."""
    places = [order.index(letter) for letter in letters]
    if not places:
        return itemgetter(slice(0, 0))
    if len(places) == 1:
        return itemgetter(slice(places[0], places[0] + 1))
    return itemgetter(*places)


def _kind(name: str) -> str:
    if name.startswith(("v_mfma_", "v_smfmac_", "v_accvgpr_")):
        return "ld_scale" if name == "v_mfma_ld_scale_b32" else "mfma"
    if name.startswith("v_bitop3_"):
        return "bitop3"
    if name.startswith(("s_branch", "s_cbranch_", "s_call_")) and not name.startswith("s_cbranch_g"):
        return "branch"
    if name.startswith("s_sendmsg_rtn_"):
        return "message"  # its number sits in the source field but is no operand code
    if "_addtid_" in name:
        return "addtid"
    return "lds" if "_lds_" in name else ""


class Isa:
    """The tables of one target: `ops[format][opcode]` and the translation of scalar codes."""

    def __init__(self, target: str) -> None:
        self.generation, known = TARGETS[target]
        self.target = target
        self.cdna3 = known in ("gfx942", "gfx950")  # cache bits sc0 sc1 nt, scratch with an address or none
        self.ops: dict[str, dict[int, Op]] = {}
        interned: dict[tuple[str, str], Pick] = {}
        table = Path(__file__).with_name(f"gfx{self.generation}.txt").read_text(encoding="ascii")
        for line in table.splitlines():
            if not line or line.startswith("#"):
                continue
            form, opcode, name, shape, *targets = line.split()
            if targets and known not in targets[0].split(","):
                continue
            self.ops.setdefault(form, {})[int(opcode)] = _op(form, name, shape, interned)
        # Sources as canonical codes; a code that no operand has is absent. gfx9 has M0 at 124.
        valid = [*range(125), 125, 126, 127, *range(128, 209), *range(235, 249), 251, 252, 253, 254, 255]
        self.source: dict[int, int] = {code: code for code in (*valid, *range(256, 512))}
        if self.generation == 9:
            del self.source[125]
            self.source[124] = 125
        self.scalar: dict[int, int] = {code: to for code, to in self.source.items() if code < 128}


def _op(form: str, name: str, shape: str, interned: dict[tuple[str, str], Pick]) -> Op:
    shape, _, extra = shape.partition(":")
    dst, _, src = shape.partition("=")
    if form.startswith("VOP"):
        order = VECTOR_LETTERS
    elif form.startswith("SOP"):
        order = SCALAR_LETTERS
    elif form == "DS":
        order = "da01"
    else:
        order = ""

    def picker(letters: str) -> Pick:
        if (order, letters) not in interned:
            interned[order, letters] = _picker(letters, order)
        return interned[order, letters]

    nothing = itemgetter(slice(0, 0))
    return Op(
        name=name,
        written=picker(dst) if order else nothing,
        read=picker(src) if order else nothing,
        dst=dst,
        src=src,
        sources=sum(src.count(digit) for digit in "012"),
        half=0 if form == "DS" else ("0" in extra) | ("1" in extra) << 1 | ("d" in extra) << 3,
        kind=_kind(name),
        two=form == "DS" and extra == "2",
        old="d" in src and form.startswith("VOP"),
    )


@cache
def isa_of(target: str) -> Isa:
    """The tables of a target such as "gfx942"; CodeObjectError for one that the emulator does not know."""
    if target not in TARGETS:
        raise CodeObjectError(
            f"unknown architecture {target!r}; the emulator knows {', '.join(TARGETS)}", architecture=target
        )
    return Isa(target)


def unknown(isa: Isa, form: str, opcode: int, address: int) -> Any:
    """Raise the error for an opcode that the table of its format does not have."""
    raise CodeObjectError(
        f"{isa.target}: unknown instruction at {address:#x}: format {form}, opcode {opcode:#x}",
        format=form,
        opcode=opcode,
        address=address,
    )
