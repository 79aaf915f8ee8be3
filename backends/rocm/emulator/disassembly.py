"""The instructions of a code object for an AMD GPU, as the emulator decodes them."""

from __future__ import annotations

from portable.backends.rocm.emulator.code_object import CodeObject
from portable.backends.rocm.emulator.isa.inst import Inst
from portable.backends.rocm.emulator.native_build import library
from portable.backends.rocm.emulator.translate import translate

FORMATS = ("fp8", "bf8", "fp6", "bf6", "fp4")
"""By cbsz and blgp, the operands' formats in gfx950's f8f6f4 instructions."""


def mnemonics(binary: bytes) -> list[str]:
    """The names of the instructions, in order; an f8f6f4 one's has its two operands' formats behind it."""
    program = translate(CodeObject(binary), library())
    return [_named(inst) for inst in program.instructions() if inst is not None]


def _named(inst: Inst) -> str:
    if not inst.name.endswith("f8f6f4"):
        return inst.name
    return " ".join([inst.name, *(FORMATS[inst.fields.get(name, 0)] for name in ("cbsz", "blgp"))])
