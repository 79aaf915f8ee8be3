"""Machine code of AMD GPUs to instructions: `decode` one, `disassemble` all, `text` to read one.

The layouts are those of AMD's instruction set guides (CDNA2 for gfx90a, CDNA3 for gfx942, CDNA4 for
gfx950, RDNA3 for gfx11, RDNA4 for gfx12). The top six bits of the first dword choose the decoder of a
format; the opcodes are in tables (`tables.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache

from portable.backends.rocm.emulator.faults import CodeObjectError

from . import memory, scalar, vector
from .inst import Inst, register_name
from .tables import TARGETS, Isa, isa_of, unknown
from .text import text

__all__ = ["TARGETS", "Inst", "decode", "disassemble", "register_name", "text"]

Decoder = Callable[[Isa, memoryview, int, int, int], Inst]

_u32 = struct.Struct("<I").unpack_from


def _none(isa: Isa, code: memoryview, offset: int, address: int, w: int) -> Inst:
    return unknown(isa, f"{w >> 26:#08b}", 0, address)


def _vop3p_or_none(isa: Isa, code: memoryview, offset: int, address: int, w: int) -> Inst:
    """gfx11's 110011: VOP3P has 00 below; interpolation and LDS-direct, which only shaders have, the rest."""
    if w >> 24 == 0xCC:
        return vector.vop3p(isa, code, offset, address, w)
    return unknown(isa, "VINTERP or LDSDIR", w >> 16 & 0x7F, address)


@cache
def _formats(target: str) -> tuple[Isa, list[Decoder]]:
    """The tables of a target and, by the top six bits, the decoder of every format."""
    isa = isa_of(target)
    table: list[Decoder] = [_none] * 64
    table[0:32] = [vector.short] * 32
    table[32:44] = [scalar.sop2] * 12
    table[44:48] = [scalar.sopk_and_single] * 4
    table[0x36] = memory.ds
    if isa.generation == 9:
        table[0x30] = scalar.smem
        table[0x34] = vector.vop3
        table[0x37] = memory.flat
        table[0x38] = table[0x3A] = memory.buffer
    else:
        table[0x32] = vector.vopd
        table[0x33] = _vop3p_or_none
        table[0x35] = vector.vop3
        table[0x3D] = scalar.smem
        if isa.generation == 11:
            table[0x37] = memory.flat
            table[0x38] = table[0x3A] = memory.buffer
        else:
            table[0x31] = memory.buffer12
            table[0x3B] = memory.flat12
    return isa, table


def decode(code: bytes | bytearray | memoryview, offset: int, address: int, arch: str) -> Inst:
    """The instruction at `offset` of `code`, which lies at the virtual `address`.

    CodeObjectError when the bytes end inside it, when its opcode or an operand is not one of the
    architecture's, and for an unknown architecture.
    """
    isa, table = _formats(arch)
    if offset < 0:
        raise CodeObjectError(f"{arch}: negative offset {offset} into the code", address=address)
    try:
        word = _u32(code, offset)[0]
        return table[word >> 26](isa, code, offset, address, word)  # pyright: ignore[reportArgumentType]
    except struct.error:
        raise CodeObjectError(f"{arch}: truncated instruction at {address:#x}", address=address) from None
    except KeyError as error:
        raise CodeObjectError(
            f"{arch}: instruction at {address:#x} ({word:#010x}) has a reserved operand code {error}",
            address=address,
        ) from None


def disassemble(code: bytes | bytearray | memoryview, start_address: int, arch: str) -> list[Inst]:
    """Every instruction of `code`, which begins at `start_address`, one after the other."""
    listing = []
    offset, end = 0, len(code)
    while offset < end:
        inst = decode(code, offset, start_address + offset, arch)
        listing.append(inst)
        offset += inst.size
    return listing
