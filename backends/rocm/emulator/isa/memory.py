"""Decoding of the vector memory formats: DS, FLAT, GLOBAL, SCRATCH, MUBUF and MTBUF."""

from __future__ import annotations

from struct import Struct

from portable.backends.rocm.emulator.faults import CodeObjectError

from .inst import AGPR, LITERAL, NULL, VGPR, Inst
from .tables import Isa, Op, unknown

_u32 = Struct("<I").unpack_from
_u64 = Struct("<II").unpack_from

_SEGMENTS = ("FLAT", "SCRATCH", "GLOBAL")


def ds(isa: Isa, code: memoryview, offset: int, address: int, w: int) -> Inst:
    """Local data share, 64 bits."""
    if isa.generation == 9:
        opcode, gds, base = w >> 17 & 0xFF, w >> 16 & 1, AGPR if w >> 25 & 1 else VGPR
    else:
        opcode, gds, base = w >> 18 & 0xFF, w >> 17 & 1, VGPR
    op = isa.ops["DS"].get(opcode)
    if op is None:
        return unknown(isa, "DS", opcode, address)
    high = _u32(code, offset + 4)[0]
    fields: dict[str, int] = {}
    if op.two:
        if w & 0xFF:
            fields["offset0"] = w & 0xFF
        if w & 0xFF00:
            fields["offset1"] = w >> 8 & 0xFF
    elif w & 0xFFFF:
        fields["offset"] = w & 0xFFFF
    if gds:
        fields["gds"] = 1
    data0, data1 = base + (high >> 8 & 0xFF), base + (high >> 16 & 0xFF)
    values = (base + (high >> 24), VGPR + (high & 0xFF), data0, data1)
    return Inst(address, 8, op.name, "DS", op.written(values), op.read(values), fields)


def _flat_operands(
    op: Op, fields: dict[str, int], vdst: int, data: int, vaddr: int, saddr: int, returns: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(dst, src) from the letters of the table."""
    if op.dst == "-":
        return (), ()
    if op.kind == "lds" or fields.get("lds"):
        fields["lds"] = 1
        return (), (vaddr, saddr)
    src = (vaddr, saddr, data) if op.src else (vaddr, saddr)
    return (vdst,) if op.dst == "d" or (op.dst == "r" and returns) else (), src


def flat(isa: Isa, code: memoryview, offset: int, address: int, w: int) -> Inst:
    """FLAT, SCRATCH and GLOBAL of gfx9 and gfx11: 64 bits, told apart by the segment."""
    nine = isa.generation == 9
    segment = w >> 14 & 3 if nine else w >> 16 & 3
    if segment == 3:
        return unknown(isa, "FLAT", w >> 18 & 0x7F, address)
    form = _SEGMENTS[segment]
    op = isa.ops[form].get(w >> 18 & 0x7F)
    if op is None:
        return unknown(isa, form, w >> 18 & 0x7F, address)
    high = _u32(code, offset + 4)[0]
    fields: dict[str, int] = {}
    if segment:
        distance = w & 0x1FFF
        if distance & 0x1000:
            distance -= 0x2000
    else:
        distance = w & 0xFFF
    if distance:
        fields["offset"] = distance
    vaddr, scalar = VGPR + (high & 0xFF), high >> 16 & 0x7F
    base = VGPR
    if nine:
        no_address = scalar == 0x7F
        if isa.cdna3:
            names = (("sc0", 16), ("nt", 17), ("sc1", 25))
            uses_vector = w >> 13 & 1
        else:
            names = (("glc", 16), ("slc", 17), ("scc", 25), ("lds", 13))
            uses_vector = no_address
        if high >> 23 & 1:
            base = AGPR
        returns = w >> 16 & 1
    else:
        no_address = scalar == 0x7C
        names = (("glc", 14), ("slc", 15), ("dlc", 13))
        uses_vector = high >> 23 & 1
        returns = w >> 14 & 1
    for name, bit in names:
        if w >> bit & 1:
            fields[name] = 1
    saddr = NULL if no_address or segment == 0 else isa.scalar[scalar]
    if (segment == 1 and not uses_vector) or op.kind == "addtid":
        vaddr = NULL
    vdst, data = base + (high >> 24), base + (high >> 8 & 0xFF)
    dst, src = _flat_operands(op, fields, vdst, data, vaddr, saddr, returns)
    return Inst(address, 8, op.name, form, dst, src, fields)


def flat12(isa: Isa, code: memoryview, offset: int, address: int, w: int) -> Inst:
    """VFLAT, VSCRATCH and VGLOBAL of gfx12: 96 bits."""
    segment = w >> 24 & 3
    opcode = w >> 14 & 0xFF
    if segment == 3:
        return unknown(isa, "FLAT", opcode, address)
    form = _SEGMENTS[segment]
    op = isa.ops[form].get(opcode)
    if op is None:
        return unknown(isa, form, opcode, address)
    middle, last = _u64(code, offset + 4)
    fields: dict[str, int] = {}
    distance = last >> 8
    if distance:
        fields["offset"] = distance - 0x1000000 if distance & 0x800000 else distance
    th = middle >> 20 & 7
    if th:
        fields["th"] = th
    if middle >> 18 & 3:
        fields["scope"] = middle >> 18 & 3
    saddr = isa.scalar[w & 0x7F] if segment else NULL
    vaddr = VGPR + (last & 0xFF)
    if (segment == 1 and not middle >> 17 & 1) or op.kind == "addtid":
        vaddr = NULL
    dst, src = _flat_operands(
        op, fields, VGPR + (middle & 0xFF), VGPR + (middle >> 23 & 0xFF), vaddr, saddr, th & 1
    )
    return Inst(address, 12, op.name, form, dst, src, fields)


def _buffer(
    op: Op, form: str, address: int, size: int, fields: dict[str, int], data: int, place: tuple[int, ...]
) -> Inst:
    """An Inst of a buffer access: a load, a store or an atomic, of registers or straight to LDS."""
    if op.dst == "-":
        return Inst(address, size, op.name, form, (), (), fields)
    if op.kind == "lds" or fields.get("lds"):
        fields["lds"] = 1
        return Inst(address, size, op.name, form, (), place, fields)
    returns = fields.get("glc") or fields.get("sc0") or fields.get("th", 0) & 1
    dst = (data,) if op.dst == "d" or (op.dst == "r" and returns) else ()
    src = (*place, data) if op.src else place
    return Inst(address, size, op.name, form, dst, src, fields)


def buffer(isa: Isa, code: memoryview, offset: int, address: int, w: int) -> Inst:
    """MUBUF and MTBUF of gfx9 and gfx11: 64 bits."""
    form = "MTBUF" if w >> 26 == 0x3A else "MUBUF"
    nine = isa.generation == 9
    opcode = w >> 15 & 0xF if form == "MTBUF" else w >> 18 & (0x7F if nine else 0xFF)
    op = isa.ops[form].get(opcode)
    if op is None:
        return unknown(isa, form, opcode, address)
    high = _u32(code, offset + 4)[0]
    fields: dict[str, int] = {}
    base = VGPR
    if nine:
        offen, idxen = w >> 12 & 1, w >> 13 & 1
        if high >> 23 & 1:
            base = AGPR
        if form == "MTBUF":
            names = (("sc0" if isa.cdna3 else "glc", 14),)
            if high >> 21 & 1:
                fields["sc1" if isa.cdna3 else "scc"] = 1
            if high >> 22 & 1:
                fields["nt" if isa.cdna3 else "slc"] = 1
        elif isa.cdna3:
            names = (("sc0", 14), ("sc1", 15), ("lds", 16), ("nt", 17))
        else:
            names = (("glc", 14), ("scc", 15), ("lds", 16), ("slc", 17))
    else:
        offen, idxen = high >> 22 & 1, high >> 23 & 1
        names = (("slc", 12), ("dlc", 13), ("glc", 14))
        if high >> 21 & 1:
            fields["tfe"] = 1
    for name, bit in names:
        if w >> bit & 1:
            fields[name] = 1
    if w & 0xFFF:
        fields["offset"] = w & 0xFFF
    if offen:
        fields["offen"] = 1
    if idxen:
        fields["idxen"] = 1
    if form == "MTBUF":
        fields["format"] = w >> 19 & 0x7F
    if op.dst == "-":
        return Inst(address, 8, op.name, form, (), (), fields)
    vaddr = VGPR + (high & 0xFF) if offen or idxen else NULL
    soffset = isa.source[high >> 24]
    if soffset == LITERAL:
        raise CodeObjectError(f"{isa.target}: {op.name} at {address:#x} takes no literal", address=address)
    operands = (vaddr, (high >> 16 & 0x1F) << 2, soffset)
    return _buffer(op, form, address, 8, fields, base + (high >> 8 & 0xFF), operands)


def buffer12(isa: Isa, code: memoryview, offset: int, address: int, w: int) -> Inst:
    """VBUFFER of gfx12: 96 bits, typed and untyped accesses in one opcode space."""
    opcode = w >> 14 & 0xFF
    form = "MUBUF"
    op = isa.ops[form].get(opcode)
    if op is None:
        form = "MTBUF"
        op = isa.ops[form].get(opcode)
        if op is None:
            return unknown(isa, "MUBUF", opcode, address)
    middle, last = _u64(code, offset + 4)
    fields: dict[str, int] = {}
    distance = last >> 8
    if distance:
        fields["offset"] = distance - 0x1000000 if distance & 0x800000 else distance
    for name, value in (
        ("offen", middle >> 30 & 1),
        ("idxen", middle >> 31),
        ("th", middle >> 20 & 7),
        ("scope", middle >> 18 & 3),
        ("tfe", w >> 22 & 1),
    ):
        if value:
            fields[name] = value
    if form == "MTBUF":
        fields["format"] = middle >> 23 & 0x7F
    vaddr = VGPR + (last & 0xFF) if middle >> 30 else NULL
    descriptor = middle >> 9 & 0x1FF
    if descriptor > 127:  # the field has nine bits, the scalar registers seven
        what = f"{isa.target}: {op.name} at {address:#x}"
        raise CodeObjectError(f"{what}: its descriptor is no scalar register", address=address)
    operands = (vaddr, descriptor, isa.scalar[w & 0x7F])
    return _buffer(op, form, address, 12, fields, VGPR + (middle & 0xFF), operands)
