"""One decoded instruction, and the register codes that its operands use.

The codes are the same on every architecture (see `register_name`): scalar registers and constants have
the numbers of the 8-bit source field of RDNA3, vector registers start at 256 and accumulation registers
at 512. gfx9's number of M0 (124) is translated, because 124 is NULL here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

VCC, NULL, M0, EXEC, SCC, LITERAL, VGPR, AGPR = 106, 124, 125, 126, 253, 255, 256, 512


@dataclass(slots=True)
class Inst:
    """An instruction: what it is, what it writes and reads, and its modifiers (`fields`; absent means 0)."""

    address: int
    size: int
    name: str
    format: str
    dst: tuple[int, ...] = ()
    src: tuple[int, ...] = ()
    fields: dict[str, int] = field(default_factory=dict)
    second: Inst | None = None


_NAMED = {
    106: "vcc_lo",
    107: "vcc_hi",
    124: "null",
    125: "m0",
    126: "exec_lo",
    127: "exec_hi",
    235: "src_shared_base",
    236: "src_shared_limit",
    237: "src_private_base",
    238: "src_private_limit",
    239: "src_pops_exiting_wave_id",
    240: "0.5",
    241: "-0.5",
    242: "1.0",
    243: "-1.0",
    244: "2.0",
    245: "-2.0",
    246: "4.0",
    247: "-4.0",
    248: "0.15915494",
    251: "src_vccz",
    252: "src_execz",
    253: "src_scc",
    254: "src_lds_direct",
    255: "literal",
}


def register_name(code: int) -> str:
    """How a register code reads in assembly."""
    if code >= AGPR:
        return f"a{code - AGPR}"
    if code >= VGPR:
        return f"v{code - VGPR}"
    if code in _NAMED:
        return _NAMED[code]
    if code < 106:
        return f"s{code}"
    if 108 <= code < 124:
        return f"ttmp{code - 108}"
    if 128 <= code <= 192:
        return str(code - 128)
    if 193 <= code <= 208:
        return str(192 - code)
    return f"reserved{code}"
