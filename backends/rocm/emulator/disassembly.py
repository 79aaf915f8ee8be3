"""The instructions of a code object for an AMD GPU, as the emulator decodes them."""

from __future__ import annotations

from portable.backends.rocm.emulator.code_object import CodeObject
from portable.backends.rocm.emulator.native_build import library
from portable.backends.rocm.emulator.translate import translate


def mnemonics(binary: bytes) -> list[str]:
    """The names of the instructions, in order."""
    program = translate(CodeObject(binary), library())
    return [inst.name for inst in program.instructions() if inst is not None]
