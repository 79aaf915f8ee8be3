"""Decoding of the scalar formats: SOP1, SOP2, SOPK, SOPC, SOPP and SMEM."""

from __future__ import annotations

from struct import Struct

from .inst import LITERAL, NULL, Inst
from .tables import Isa, unknown

_u32 = Struct("<I").unpack_from


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def sop2(isa: Isa, code: memoryview, offset: int, address: int, w: int) -> Inst:
    """32 bits and a literal: two sources and a destination."""
    op = isa.ops["SOP2"].get(w >> 23 & 0x7F)
    if op is None:
        return unknown(isa, "SOP2", w >> 23 & 0x7F, address)
    s0, s1 = isa.source[w & 0xFF], isa.source[w >> 8 & 0xFF]
    d = isa.scalar[w >> 16 & 0x7F] if op.dst else 0
    fields: dict[str, int] = {}
    size = 4
    if s0 == LITERAL or s1 == LITERAL or "L" in op.src:
        fields["literal"] = _u32(code, offset + 4)[0]
        size = 8
    values = (d, s0, s1, LITERAL, d)
    return Inst(address, size, op.name, "SOP2", op.written(values), op.read(values), fields)


def sopk_and_single(isa: Isa, code: memoryview, offset: int, address: int, w: int) -> Inst:
    """SOPK, and inside its space SOP1, SOPC and SOPP, which share the top bits 1011."""
    top = w >> 23 & 0x1F
    if top == 0x1F:
        return _sopp(isa, address, w)
    if top == 0x1E:
        return _sopc(isa, code, offset, address, w)
    if top == 0x1D:
        return _sop1(isa, code, offset, address, w)
    op = isa.ops["SOPK"].get(top)
    if op is None:
        return unknown(isa, "SOPK", top, address)
    simm = _signed(w & 0xFFFF, 16)
    fields = {"simm16": simm}
    size = 4
    if "L" in op.src:
        fields["literal"] = _u32(code, offset + 4)[0]
        size = 8
    if op.kind == "branch":
        fields["target"] = address + 4 + 4 * simm
    d = isa.scalar[w >> 16 & 0x7F] if op.dst or "s" in op.src else 0
    values = (d, 0, 0, LITERAL, d)
    return Inst(address, size, op.name, "SOPK", op.written(values), op.read(values), fields)


def _sop1(isa: Isa, code: memoryview, offset: int, address: int, w: int) -> Inst:
    op = isa.ops["SOP1"].get(w >> 8 & 0xFF)
    if op is None:
        return unknown(isa, "SOP1", w >> 8 & 0xFF, address)
    s0 = d = 0
    fields: dict[str, int] = {}
    size = 4
    if op.kind == "message":
        fields["simm16"] = w & 0xFF
    elif op.src:
        s0 = isa.source[w & 0xFF]
        if s0 == LITERAL:
            fields["literal"] = _u32(code, offset + 4)[0]
            size = 8
    if op.dst:
        d = isa.scalar[w >> 16 & 0x7F]
    values = (d, s0, 0, LITERAL, d)
    return Inst(address, size, op.name, "SOP1", op.written(values), op.read(values), fields)


def _sopc(isa: Isa, code: memoryview, offset: int, address: int, w: int) -> Inst:
    op = isa.ops["SOPC"].get(w >> 16 & 0x7F)
    if op is None:
        return unknown(isa, "SOPC", w >> 16 & 0x7F, address)
    s0 = isa.source[w & 0xFF]
    # s_set_gpr_idx_on has an immediate where the second source is.
    s1 = isa.source[w >> 8 & 0xFF] if op.sources == 2 else 0
    fields = {} if op.sources == 2 else {"simm16": w >> 8 & 0xFF}
    size = 4
    if s0 == LITERAL or s1 == LITERAL:
        fields["literal"] = _u32(code, offset + 4)[0]
        size = 8
    return Inst(address, size, op.name, "SOPC", (), op.read((0, s0, s1, LITERAL, 0)), fields)


def _sopp(isa: Isa, address: int, w: int) -> Inst:
    op = isa.ops["SOPP"].get(w >> 16 & 0x7F)
    if op is None:
        return unknown(isa, "SOPP", w >> 16 & 0x7F, address)
    simm = _signed(w & 0xFFFF, 16)
    fields = {"simm16": simm}
    if op.kind == "branch":
        fields["target"] = address + 4 + 4 * simm
    return Inst(address, 4, op.name, "SOPP", (), (), fields)


def smem(isa: Isa, code: memoryview, offset: int, address: int, w: int) -> Inst:
    """Scalar memory, 64 bits; where the offset and the cache bits are differs per generation."""
    generation = isa.generation
    opcode = w >> 13 & 0x3F if generation == 12 else w >> 18 & 0xFF
    op = isa.ops["SMEM"].get(opcode)
    if op is None:
        return unknown(isa, "SMEM", opcode, address)
    high = _u32(code, offset + 4)[0]
    fields: dict[str, int] = {}
    letters = op.src
    if not letters:  # the clock, the caches
        dst = (isa.scalar[w >> 6 & 0x7F],) if op.dst else ()
        return Inst(address, 8, op.name, "SMEM", dst, (), fields)
    if generation == 9:
        immediate, register = w >> 17 & 1, w >> 14 & 1
        distance = _signed(high & 0x1FFFFF, 21) if immediate else 0
        soffset = NULL
        if register:
            soffset = isa.scalar[high >> 25]
        elif not immediate:
            soffset = isa.scalar[high & 0x7F]
        if w >> 16 & 1:
            fields["glc"] = 1
    elif generation == 11:
        distance, soffset = _signed(high & 0x1FFFFF, 21), isa.scalar[high >> 25]
        for name, bit in (("glc", 14), ("dlc", 13)):
            if w >> bit & 1:
                fields[name] = 1
    else:
        distance, soffset = _signed(high & 0xFFFFFF, 24), isa.scalar[high >> 25]
        for name, bit in (("scope", 21), ("th", 23)):
            if w >> bit & 3:
                fields[name] = w >> bit & 3
    if distance:
        fields["offset"] = distance
    src: tuple[int, ...] = ((w & 0x3F) << 1, soffset)
    if letters == "p":
        fields["length"] = w >> 6 & 0x7F
        return Inst(address, 8, op.name, "SMEM", (), src, fields)
    dst = ()
    if letters == "x" or op.dst:
        data = isa.scalar[w >> 6 & 0x7F]
        if letters == "x":
            src = (*src, data)
        if op.dst == "s" or (op.dst == "r" and fields.get("glc")):
            dst = (data,)
    return Inst(address, 8, op.name, "SMEM", dst, src, fields)
