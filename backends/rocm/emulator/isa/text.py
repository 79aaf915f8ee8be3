"""Readable assembly of a decoded instruction, for messages; not LLVM's exact text."""

from __future__ import annotations

from .inst import LITERAL, Inst, register_name

_HEXADECIMAL = ("simm16", "dpp_ctrl", "row_mask", "bank_mask", "lane_sel", "bitop3")
_MODES = ("clamp", "gds", "lds", "offen", "idxen", "tfe", "dpp", "dpp8", "sdwa", "fi", "bound_ctrl")
_CACHES = ("glc", "slc", "dlc", "scc", "sc0", "sc1", "nt")
_FLAGS = frozenset((*_MODES, *_CACHES))
_SIGNED = frozenset({"neg", "abs", "literal", "target"})


def _operand(inst: Inst, code: int, place: int | None) -> str:
    name = hex(inst.fields.get("literal", 0)) if code == LITERAL else register_name(code)
    if place is not None:
        if inst.fields.get("abs", 0) >> place & 1:
            name = f"|{name}|"
        if inst.fields.get("neg", 0) >> place & 1:
            name = f"-{name}"
    return name


def text(inst: Inst, arch: str = "") -> str:
    """An instruction in one line, such as "v_add_f32 v0, s3, v1"."""
    written = [_operand(inst, code, None) for code in inst.dst]
    read = [_operand(inst, code, place) for place, code in enumerate(inst.src)]
    parts = []
    for name, value in inst.fields.items():
        if name in _SIGNED:
            continue
        if name in _FLAGS:
            parts.append(name)
        elif name == "simm16" and "target" in inst.fields:
            continue
        else:
            parts.append(f"{name}:{value & 0xFFFFFF:#x}" if name in _HEXADECIMAL else f"{name}:{value}")
    operands = ", ".join(written + read)
    line = " ".join(filter(None, (inst.name, operands)))
    if "target" in inst.fields:
        line += f" {inst.fields['target']:#x}"
    line = " ".join([line, *parts])
    return line if inst.second is None else f"{line} :: {text(inst.second, arch)}"
