"""Decoding of the vector formats: VOP1, VOP2, VOPC with SDWA and DPP, VOP3, VOP3P, MFMA and VOPD."""

from __future__ import annotations

from struct import Struct

from portable.backends.rocm.emulator.faults import CodeObjectError

from .inst import EXEC, LITERAL, VCC, VGPR, Inst
from .tables import Isa, Op, unknown

_u32 = Struct("<I").unpack_from
_u64 = Struct("<II").unpack_from

# Numbers in the first source field that say "the real source is in the next dword".
_SDWA, _DPP16, _DPP8, _DPP8_FI = 249, 250, 233, 234
_EXTENSION = {9: frozenset({_SDWA, _DPP16}), 11: frozenset({_DPP16, _DPP8, _DPP8_FI})}
_EXTENSION[12] = _EXTENSION[11]


def short(isa: Isa, code: memoryview, offset: int, address: int, w: int) -> Inst:
    """VOP2, and in its space VOP1 and VOPC: 32 bits, then a literal or a DPP or SDWA dword."""
    top = w >> 25
    s1 = d = 0
    if top == 0x3F:
        form, opcode = "VOP1", w >> 9 & 0xFF
    elif top == 0x3E:
        form, opcode = "VOPC", w >> 17 & 0xFF
        s1 = VGPR + (w >> 9 & 0xFF)
    else:
        form, opcode = "VOP2", top
        s1 = VGPR + (w >> 9 & 0xFF)
    op = isa.ops[form].get(opcode)
    if op is None:
        return unknown(isa, form, opcode, address)
    raw = w >> 17 & 0xFF
    fields: dict[str, int] = {}
    size = 4
    s0 = w & 0x1FF
    sdst = -1
    if s0 < VGPR and op.sources:
        if s0 in _EXTENSION[isa.generation]:
            extension = _u32(code, offset + 4)[0]
            size = 8
            if s0 == _SDWA:
                s0, s1, sdst = _sdwa(isa, form, extension, s1, fields)
            else:
                s0 = _dpp(s0, extension, fields, True)
            if "L" in op.src or LITERAL in (s0, s1):  # the dword that follows is taken
                raise _refused(isa, op, address, "literal beside SDWA or DPP")
        else:
            s0 = isa.source[s0]
            if s0 == LITERAL or "L" in op.src:
                fields["literal"] = _u32(code, offset + 4)[0]
                size = 8
    elif "L" in op.src:
        fields["literal"] = _u32(code, offset + 4)[0]
        size = 8
    d = isa.scalar[raw] if op.dst == "s" else VGPR + raw
    half = op.half
    if half:
        # Bit 7 of a 16-bit operand's register number chooses the upper half (true16).
        selected = 0
        if half & 1 and s0 >= VGPR + 128:
            s0 -= 128
            selected = 1
        if half & 2 and s1 >= VGPR + 128:
            s1 -= 128
            selected |= 4 if op.src == "0L1" else 2
        if half & 8 and raw & 0x80:
            d -= 128
            selected |= 8
        if selected:
            fields["op_sel"] = selected
    if op.kind == "mfma":  # v_accvgpr_mov_b32
        if s0 < VGPR:
            raise _refused(isa, op, address, "operand but an AGPR")
        d += VGPR
        s0 += VGPR
    values = (d, s0, s1, 0, 0, d, VCC if sdst < 0 or form != "VOPC" else sdst, EXEC, LITERAL)
    if op.dst == "d0":  # an exchange: dst[i] gets src[i]
        if fields.get("op_sel", 0) & 8:
            fields["op_sel"] |= 2
        return Inst(address, size, op.name, form, (d, s0), (s0, d), fields)
    return Inst(address, size, op.name, form, op.written(values), op.read(values), fields)


def _dpp(marker: int, extension: int, fields: dict[str, int], modifiers: bool) -> int:
    """Read a DPP dword into `fields`; the real first source comes back."""
    if marker == _DPP16:
        fields["dpp"] = 1
        fields["dpp_ctrl"] = extension >> 8 & 0x1FF
        fields["row_mask"] = extension >> 28
        fields["bank_mask"] = extension >> 24 & 0xF
        if extension >> 18 & 1:
            fields["fi"] = 1
        if extension >> 19 & 1:
            fields["bound_ctrl"] = 1
        if modifiers and extension >> 20 & 0xF:
            neg = extension >> 20 & 1 | extension >> 21 & 2
            absolute = extension >> 21 & 1 | extension >> 22 & 2
            if neg:
                fields["neg"] = neg
            if absolute:
                fields["abs"] = absolute
    else:
        fields["dpp8"] = 1
        fields["lane_sel"] = extension >> 8
        if marker == _DPP8_FI:
            fields["fi"] = 1
    return VGPR + (extension & 0xFF)


def _sdwa(isa: Isa, form: str, x: int, s1: int, fields: dict[str, int]) -> tuple[int, int, int]:
    """Read an SDWA dword into `fields`; the real sources and the SGPR destination (or -1) come back."""
    fields["sdwa"] = 1
    fields["src0_sel"] = x >> 16 & 7
    if x >> 19 & 1:
        fields["src0_sext"] = 1
    neg, absolute = x >> 20 & 1, x >> 21 & 1
    s0 = isa.source[x & 0xFF] if x >> 23 & 1 else VGPR + (x & 0xFF)
    sdst = -1
    if form != "VOP1":
        fields["src1_sel"] = x >> 24 & 7
        if x >> 27 & 1:
            fields["src1_sext"] = 1
        neg |= x >> 27 & 2
        absolute |= x >> 28 & 2
        if x >> 31:
            s1 = isa.source[s1 - VGPR]
    if form == "VOPC":
        if x >> 15 & 1:
            sdst = isa.scalar[x >> 8 & 0x7F]
    else:
        fields["dst_sel"] = x >> 8 & 7
        fields["dst_unused"] = x >> 11 & 3
        if x >> 13 & 1:
            fields["clamp"] = 1
        if x >> 14 & 3:
            fields["omod"] = x >> 14 & 3
    if neg:
        fields["neg"] = neg
    if absolute:
        fields["abs"] = absolute
    return s0, s1, sdst


def _refused(isa: Isa, op: Op, address: int, what: str) -> CodeObjectError:
    return CodeObjectError(f"{isa.target}: {op.name} at {address:#x} takes no {what}", address=address)


def _long_sources(
    isa: Isa, op: Op, code: memoryview, offset: int, address: int, high: int, fields: dict[str, int]
) -> tuple[int, int, int, int]:
    """(source 0, source 1, source 2, size) of a 64-bit vector instruction with all that may follow it."""
    count = op.sources
    table = isa.source
    s0, s1, s2 = high & 0x1FF, high >> 9 & 0x1FF, high >> 18 & 0x1FF
    size = 8
    if count == 0:
        return 0, 0, 0, size
    literal = False
    if s0 < VGPR:
        if s0 in _EXTENSION[isa.generation]:
            if isa.generation == 9:
                raise _refused(isa, op, address, "SDWA or DPP")
            s0 = _dpp(s0, _u32(code, offset + 8)[0], fields, False)
            size = 12
        else:
            s0 = table[s0]
            literal = s0 == LITERAL
    if count > 1:
        if s1 < VGPR:
            s1 = table[s1]
            literal = literal or s1 == LITERAL
        if count > 2 and s2 < VGPR:
            s2 = table[s2]
            literal = literal or s2 == LITERAL
    if literal:
        if isa.generation == 9 or size == 12:
            raise _refused(isa, op, address, "literal")
        fields["literal"] = _u32(code, offset + 8)[0]
        size = 12
    return s0, s1, s2, size


def vop3(isa: Isa, code: memoryview, offset: int, address: int, w: int) -> Inst:
    """VOP3 with one destination or a second, scalar one; on gfx9 VOP3P lies in the same space."""
    opcode = w >> 16 & 0x3FF
    if isa.generation == 9 and opcode >= 0x380:
        return vop3p(isa, code, offset, address, w)
    op = isa.ops["VOP3"].get(opcode)
    if op is None:
        return unknown(isa, "VOP3", opcode, address)
    high = _u32(code, offset + 4)[0]
    fields: dict[str, int] = {}
    s0, s1, s2, size = _long_sources(isa, op, code, offset, address, high, fields)
    carry = 0
    if op.kind == "bitop3":
        # The truth table sits where neg, abs and omod are.
        fields["bitop3"] = high >> 29 | (w >> 8 & 7) << 3 | (high >> 27 & 3) << 6
        if w >> 11 & 0xF:
            fields["op_sel"] = w >> 11 & 0xF
    else:
        if "b" in op.dst:
            carry = isa.scalar[w >> 8 & 0x7F]
        else:
            if w & 0x700:
                fields["abs"] = w >> 8 & 7
            if w & 0x7800:
                fields["op_sel"] = w >> 11 & 0xF
        if high >> 27:
            if high >> 29:
                fields["neg"] = high >> 29
            if high >> 27 & 3:
                fields["omod"] = high >> 27 & 3
    if w & 0x8000:
        fields["clamp"] = 1
    d = w & 0xFF
    scalar = isa.scalar[d] if op.dst == "s" else 0
    d += VGPR
    if op.dst == "d0":
        return Inst(address, size, op.name, "VOP3", (d, s0), (s0, d), fields)
    values = (d, s0, s1, s2, carry, scalar, VCC, EXEC, LITERAL)
    return Inst(address, size, op.name, "VOP3", op.written(values), op.read(values), fields)


def vop3p(isa: Isa, code: memoryview, offset: int, address: int, w: int) -> Inst:
    """Packed arithmetic, dot products, WMMA; on gfx9 also MFMA, whose operands may be AGPRs."""
    op = isa.ops["VOP3P"].get(w >> 16 & 0x7F)
    if op is None:
        return unknown(isa, "VOP3P", w >> 16 & 0x7F, address)
    high = _u32(code, offset + 4)[0]
    if op.kind == "mfma":
        return _mfma(isa, op, address, w, high)
    if op.kind == "ld_scale":
        return _mfma_scale(isa, code, offset, address, w, high)
    fields: dict[str, int] = {}
    s0, s1, s2, size = _long_sources(isa, op, code, offset, address, high, fields)
    for name, value in (
        ("op_sel", w >> 11 & 7),
        ("op_sel_hi", high >> 27 & 3 | w >> 12 & 4),
        ("neg", high >> 29),
        ("neg_hi", w >> 8 & 7),
        ("clamp", w >> 15 & 1),
    ):
        if value:
            fields[name] = value
    d = VGPR + (w & 0xFF)
    values = (d, s0, s1, s2, 0, 0, VCC, EXEC, LITERAL)
    return Inst(address, size, op.name, "VOP3P", op.written(values), op.read(values), fields)


def _mfma(isa: Isa, op: Op, address: int, w: int, high: int) -> Inst:
    """A matrix instruction or a move from or to an AGPR."""
    table = isa.source
    count = op.sources
    s0, s1, s2 = table[high & 0x1FF], table[high >> 9 & 0x1FF] if count > 1 else 0, 0
    if s0 >= VGPR and high >> 27 & 1 and count > 1:
        s0 += VGPR
    if s1 >= VGPR and high >> 28 & 1:
        s1 += VGPR
    d = VGPR + (w & 0xFF)
    accumulator = w >> 15 & 1
    if count == 1:
        # The moves have one AGPR whatever these bits say, and the other operand is none.
        accumulator = op.name == "v_accvgpr_write_b32"
        if not accumulator:
            if s0 < VGPR:
                raise _refused(isa, op, address, "operand but an AGPR")
            s0 += VGPR
    elif count == 3:
        s2 = table[high >> 18 & 0x1FF]
    if accumulator:
        d += VGPR
        if s2 >= VGPR and not op.old:
            s2 += VGPR
    fields: dict[str, int] = {}
    if count > 1:
        for name, value in (("cbsz", w >> 8 & 7), ("abid", w >> 11 & 0xF), ("blgp", high >> 29)):
            if value:
                fields[name] = value
    if s0 == LITERAL or (count > 1 and (s1 == LITERAL or s2 == LITERAL)):
        raise _refused(isa, op, address, "literal")
    values = (d, s0, s1, s2, 0, 0, VCC, EXEC, LITERAL)
    return Inst(address, 8, op.name, "VOP3P", op.written(values), op.read(values), fields)


def _mfma_scale(isa: Isa, code: memoryview, offset: int, address: int, w: int, high: int) -> Inst:
    """gfx950's 128-bit form: a dword pair with the scales, then the MFMA that they scale.

    Sources are (a, b, c, scale of a, scale of b); op_sel and op_sel_hi (bit 0 for a, bit 1 for b) say
    which byte of each scale register counts.
    """
    low2, high2 = _u64(code, offset + 8)
    op = isa.ops["VOP3P"].get(low2 >> 16 & 0x7F)
    if low2 >> 23 != 0x1A7 or op is None or not op.name.endswith("_f8f6f4"):
        raise CodeObjectError(f"{isa.target}: scales without their MFMA at {address:#x}", address=address)
    inst = _mfma(isa, op, address, low2, high2)
    scales = (isa.source[high & 0x1FF], isa.source[high >> 9 & 0x1FF])
    fields = inst.fields
    fields.pop("abid", None)  # here it only marks the MFMA as scaled
    if w >> 11 & 3:
        fields["op_sel"] = w >> 11 & 3
    if high >> 27 & 3:
        fields["op_sel_hi"] = high >> 27 & 3
    name = op.name.replace("v_mfma_", "v_mfma_scale_")
    return Inst(address, 16, name, "VOP3P", inst.dst, inst.src + scales, fields)


def vopd(isa: Isa, code: memoryview, offset: int, address: int, w: int) -> Inst:
    """Two operations of wave32 at once; the Y half is `second`, and one literal serves both."""
    x = isa.ops["VOPDX"].get(w >> 22 & 0xF)
    y = isa.ops["VOPDY"].get(w >> 17 & 0x1F)
    if x is None:
        return unknown(isa, "VOPD X", w >> 22 & 0xF, address)
    if y is None:
        return unknown(isa, "VOPD Y", w >> 17 & 0x1F, address)
    high = _u32(code, offset + 4)[0]
    x0, y0 = isa.source[w & 0x1FF], isa.source[high & 0x1FF]
    dx = high >> 24
    # The destinations' lowest bits differ, so Y's is not stored.
    dy = (high >> 17 & 0x7F) << 1 | (~dx & 1)
    size = 8
    fields: dict[str, int] = {}
    if x0 == LITERAL or y0 == LITERAL or "L" in x.src or "L" in y.src:
        fields["literal"] = _u32(code, offset + 8)[0]
        size = 12
    halves = []
    for op, d, s0, s1 in (
        (x, VGPR + dx, x0, VGPR + (w >> 9 & 0xFF)),
        (y, VGPR + dy, y0, VGPR + (high >> 9 & 0xFF)),
    ):
        values = (d, s0, s1, 0, 0, 0, VCC, EXEC, LITERAL)
        halves.append(Inst(address, size, op.name, "VOPD", op.written(values), op.read(values), dict(fields)))
    halves[0].second = halves[1]
    return halves[0]
