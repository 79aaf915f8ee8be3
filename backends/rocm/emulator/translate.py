"""Translates machine code to the array of `Inst` structs (abi.INST) that the native library executes."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from portable.backends.rocm.emulator import abi
from portable.backends.rocm.emulator.code_object import CodeObject
from portable.backends.rocm.emulator.faults import CodeObjectError
from portable.backends.rocm.emulator.isa.decode import Inst, decode, text
from portable.backends.rocm.emulator.mnemonics import library_mnemonic
from portable.backends.rocm.emulator.native_build import Library, Op

_NULL, _LITERAL = 124, 255
_SHARED_APERTURE, _PRIVATE_APERTURE = 1 << 48, 1 << 49
_APERTURES = {235: _SHARED_APERTURE, 236: _SHARED_APERTURE, 237: _PRIVATE_APERTURE, 238: _PRIVATE_APERTURE}
_STATUS = {251: abi.VCCZ_BIT, 252: abi.EXECZ_BIT, 253: abi.SCC_BIT}
_FLOATS = {
    240: 0.5, 241: -0.5, 242: 1.0, 243: -1.0, 244: 2.0, 245: -2.0, 246: 4.0, 247: -4.0,
    248: 0.15915494309189532,  # 1 / (2 pi)
}  # fmt: skip
_MODIFIERS = (  # fields with a bit per source
    ("neg", abi.NEG),
    ("abs", abi.ABS),
    ("op_sel", abi.UPPER),
    ("neg_hi", abi.NEG_HI),
    ("op_sel_hi", abi.UPPER_HI),
)
_ENDS = {"s_endpgm", "s_endpgm_saved", "s_branch", "s_setpc_b64", "s_trap", "s_code_end"}

# gfx9's older 16-bit instructions clear the upper half of their result, in every encoding; the
# multiply-adds and those that came with op_sel keep it (LLVM: GCNSubtarget::zeroesHigh16BitsOfDest).
_CLEAR_UPPER = re.compile(
    r"v_(cvt_(f16_[fiu]|[iu]16_f16|norm_)|(rcp|rsq|sqrt|log|exp|frexp_mant|floor|ceil|trunc|rndne|fract|sin|cos)_f16"
    r"|frexp_exp_i16|(add|sub|subrev|mul|min|max|ldexp)_f16|(add|sub|subrev|mul_lo)_u16|(min|max)_[iu]16"
    r"|(lshlrev|lshrrev)_b16|ashrrev_i16|\w+_legacy_[fiu]16)"
)


@dataclass
class Program:
    """A code object's text as `count` packed `Inst` structs. `index_of` maps (address - text start) / 4 to
    the index of a decoded instruction."""

    encoded: bytearray
    count: int
    instructions: list[Inst | None]
    ops: list[Op | None]
    index_of: bytes
    arch: str

    def text(self, index: int) -> str | None:
        inst = self.instructions[index] if 0 <= index < len(self.instructions) else None
        return None if inst is None else text(inst, self.arch)


def translate(code: CodeObject, library: Library) -> Program:
    """Decode and translate all instructions of `code`. Raises CodeObjectError for an unsupported instruction
    that a kernel can reach."""
    start, end = code.text
    index_of = [0xFFFFFFFF] * ((end - start + 3) // 4)
    found: list[Inst | None] = []
    unknown: dict[int, str] = {}
    address, memory = start, memoryview(code.memory)
    while address < end:
        slot = (address - start) // 4
        index_of[slot] = len(found)
        try:
            inst = decode(memory[: end - code.base], address - code.base, address, code.arch)
        except CodeObjectError as error:
            unknown[len(found)] = str(error)
            found.append(None)
            address += 4
            continue
        found.append(inst)
        if inst.second is not None:
            found.append(inst.second)
        address += inst.size
    encoder = _Encoder(code, index_of, len(found))
    packed = bytearray()
    ops: list[Op | None] = []
    for index, inst in enumerate(found):
        if inst is None:
            op, struct_bytes = None, encoder.unknown(start)
        else:
            op = library.ops.get(library_mnemonic(inst.name))
            if op is None:
                unknown[index] = f"{text(inst, code.arch)}: the emulator does not support this instruction"
                struct_bytes = encoder.unknown(inst.address)
            else:
                try:
                    struct_bytes = encoder.inst(inst, op)
                except (IndexError, struct.error) as error:
                    unknown[index] = f"{text(inst, code.arch)}: {error}"
                    struct_bytes = encoder.unknown(inst.address)
        packed += struct_bytes
        ops.append(op)
    packed += encoder.end(end)
    if unknown:
        _refuse_reachable(code, found, index_of, unknown)
    return Program(
        packed, len(found) + 1, found, ops, struct.pack(f"<{len(index_of)}I", *index_of), code.arch
    )


def _refuse_reachable(
    code: CodeObject, found: list[Inst | None], index_of: list[int], unknown: dict[int, str]
) -> None:
    """Raise for the first unsupported instruction that a kernel can reach by falling through or branching."""
    start, end = code.text
    for kernel in code.kernels.values():
        pending, seen = [kernel.entry], set()
        while pending:
            address = pending.pop()
            if address in seen or not start <= address < end:
                continue
            seen.add(address)
            index = index_of[(address - start) // 4]
            if index in unknown or (index < len(found) and _second_unknown(found, index, unknown)):
                reason = unknown.get(index) or unknown[index + 1]
                raise CodeObjectError(f"{kernel.name} ({code.arch}), at {address:#x}: {reason}")
            inst = found[index] if index < len(found) else None
            if inst is None:
                continue
            if "target" in inst.fields:
                pending.append(inst.fields["target"])
            if inst.name not in _ENDS:
                pending.append(address + inst.size)


def _second_unknown(found: list[Inst | None], index: int, unknown: dict[int, str]) -> bool:
    inst = found[index]
    return inst is not None and inst.second is not None and index + 1 in unknown


class _Encoder:
    """Packs decoded instructions into `Inst` structs."""

    def __init__(self, code: CodeObject, index_of: list[int], count: int):
        self._start, self._end = code.text
        self._index_of = index_of
        self._gfx9 = code.arch.startswith("gfx9")
        self._end_index = count
        self._pack = abi.INST.pack

    def unknown(self, address: int) -> bytes:
        """An instruction that the library does not support; executing it is a fault."""
        return self._pack(0, 0, address, 0, 0, 0, 0, 0, 0, abi.UNKNOWN, 0, 0, 4, *abi.NO_OPERAND * 7)

    def end(self, address: int) -> bytes:
        """The marker behind the last instruction; reaching it is a fault."""
        return self._pack(0, 0, address, 0, 0, 0, 0, 0, 0, abi.OFF_THE_CODE, 0, 0, 4, *abi.NO_OPERAND * 7)

    def inst(self, inst: Inst, op: Op) -> bytes:
        fields = inst.fields
        get = fields.get
        results: list[tuple[int, ...]] = []
        codes = iter(inst.dst)
        for letter in op.results:
            if letter == "c":
                results.append((abi.NONE, 0, 6, 99, 0, 0, 0))
            else:
                results.append(self._operand(next(codes, _NULL), letter, 0, 6, 0, inst.name))
        op_sel = get("op_sel", 0)
        modifiers = [(word, bit) for name, bit in _MODIFIERS if (word := get(name, 0))]
        sdwa = get("sdwa", 0)
        literal = get("literal", 0)
        sources = []
        for k, letter in enumerate(op.sources):
            mods = sum(bit for word, bit in modifiers if word >> k & 1)
            sel = 6
            if sdwa and k < 2:
                sel = get(f"src{k}_sel", 6)
                mods |= abi.SEXT * get(f"src{k}_sext", 0)
            code = inst.src[k] if k < len(inst.src) else _NULL
            sources.append(self._operand(code, letter, mods, sel, literal, inst.name))
        flags = self._flags(inst, op, op_sel)
        aux = [0, 0, 0, get("omod", 0)]
        if flags & (abi.DPP | abi.DPP8):
            aux[0] = (
                get("lane_sel", 0) | get("fi", 0) << 25 if flags & abi.DPP8
                else get("dpp_ctrl", 0) | get("row_mask", 0) << 16 | get("bank_mask", 0) << 20
                | get("bound_ctrl", 0) << 24 | get("fi", 0) << 25
            )  # fmt: skip
        elif "offset0" in fields or "offset1" in fields:
            aux[0], aux[1] = get("offset0", 0), get("offset1", 0)
        elif "cbsz" in fields or "blgp" in fields:
            aux[0] = get("cbsz", 0) | get("abid", 0) << 8 | get("blgp", 0) << 16
        if sdwa:
            aux[1] = get("dst_sel", 6) | get("dst_unused", 0) << 8
        aux[2] = fields.get("bitop3", op_sel)
        if "target" in fields:
            imm = self._target(fields["target"])
        else:
            imm = fields["offset"] if "offset" in fields else get("simm16", 0)
        operands = [*results, *[abi.NO_OPERAND] * (2 - len(results)), *sources]
        operands += [abi.NO_OPERAND] * (7 - len(operands))
        flat = [value for each in operands for value in each]
        return self._pack(
            0, 0, inst.address, flags, imm, *aux, op.index, len(sources), len(results), inst.size, *flat
        )

    def _target(self, address: int) -> int:
        """The index of the instruction at an address; that of the end marker where no instruction starts."""
        if self._start <= address < self._end and address % 4 == 0:
            index = self._index_of[(address - self._start) // 4]
            if index != 0xFFFFFFFF:
                return index
        return self._end_index

    def _flags(self, inst: Inst, op: Op, op_sel: int) -> int:
        get = inst.fields.get
        flags = 0
        if get("clamp"):
            flags |= abi.CLAMP
        if get("sdwa"):
            flags |= abi.SDWA
        if get("dpp"):
            flags |= abi.DPP
        if get("dpp8"):
            flags |= abi.DPP8
        if inst.second is not None:
            flags |= abi.DUAL
        if get("offen"):
            flags |= abi.OFFEN
        if get("idxen"):
            flags |= abi.IDXEN
        if get("lds"):
            flags |= abi.TO_LDS
        if "atomic" in inst.name and inst.dst:
            flags |= abi.RETURNS
        if inst.name.startswith("v_cmpx"):
            flags |= abi.WRITES_EXEC
        if op.results[:1] in ("h", "w"):
            if op_sel >> 3 & 1:
                flags |= abi.DST_UPPER
            elif self._gfx9 and _CLEAR_UPPER.match(inst.name):
                flags |= abi.DST_ZERO
        return flags

    def _operand(
        self, code: int, letter: str, mods: int, sel: int, literal: int, name: str
    ) -> tuple[int, ...]:
        kind, index, value = self._location(code, letter, literal, name)
        return kind, mods, sel, ord(letter), index, 0, value

    def _location(self, code: int, letter: str, literal: int, name: str) -> tuple[int, int, int]:
        if code >= 256:
            return abi.VGPR, code - 256, 0
        if code == _NULL:
            return abi.NOTHING, 0, 0
        if code < 128:
            return abi.SGPR, code, 0
        if code in _STATUS:
            return _STATUS[code], 0, 0
        return abi.CONSTANT, 0, self._constant(code, letter, literal, name)

    def _constant(self, code: int, letter: str, literal: int, name: str) -> int:
        if code in _APERTURES:
            return _APERTURES[code] | (0xFFFFFFFF if code in (236, 238) else 0)
        if code == _LITERAL:
            return _literal(letter, literal & 0xFFFFFFFF, name)
        if code <= 208:
            number = code - 128 if code <= 192 else 192 - code
            if letter in "qd":
                return number & 0xFFFFFFFFFFFFFFFF
            number &= 0xFFFFFFFF
            return number | number << 32 if letter in "rF" else number
        if code in _FLOATS:
            return _float(letter, _FLOATS[code], name)
        raise IndexError(f"source operand {code} has no meaning")


def _literal(letter: str, literal: int, name: str) -> int:
    """A 32-bit literal at its operand's type: the high word of a float64; signed integers extend."""
    if letter == "d":
        return literal << 32
    if letter == "q":
        signed = name.endswith(("_i64", "_i64_i32")) and literal >> 31
        return literal | (0xFFFFFFFF00000000 if signed else 0)
    if letter in "rF":
        return literal | literal << 32
    return literal


def _float(letter: str, number: float, name: str) -> int:
    """An inline constant's bits at its operand's type."""
    if letter in "qd" or (letter == "r" and "f64" in name):
        return struct.unpack("<Q", struct.pack("<d", number))[0]
    single = struct.unpack("<I", struct.pack("<f", number))[0]
    if letter in "hwP":
        if "bf16" in name:
            return single >> 16
        # 1 / (2 pi) in float16 is 0x3118 by the manuals, which is what rounding gives.
        return struct.unpack("<H", struct.pack("<e", number))[0]
    return single | single << 32 if letter in "rF" else single
