"""Translates machine code to the array of `Inst` structs (abi.INST) that the native library executes."""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from portable.backends.rocm.emulator import abi
from portable.backends.rocm.emulator.code_object import CodeObject
from portable.backends.rocm.emulator.faults import CodeObjectError
from portable.backends.rocm.emulator.isa.decode import Inst, decode, text
from portable.backends.rocm.emulator.mnemonics import library_mnemonic
from portable.backends.rocm.emulator.native_build import Library, Op

_NULL, _LITERAL = 124, 255
_NOWHERE = 0xFFFFFFFF  # in `index_of`: no instruction starts here
_ADDRESS, _ADDRESS_OFFSET = struct.Struct("<Q"), 16  # Inst.address
_MOST_KNOWN = 1 << 18  # encodings kept of an architecture, about 400 bytes each: 100 MB
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
_FLAGS = (
    ("clamp", abi.CLAMP),
    ("sdwa", abi.SDWA),
    ("dpp", abi.DPP),
    ("dpp8", abi.DPP8),
    ("offen", abi.OFFEN),
    ("idxen", abi.IDXEN),
    ("lds", abi.TO_LDS),
)
_NO_OPERAND = abi.OPERAND.pack(*abi.NO_OPERAND)
_FLIGHT = abi.FLIGHT.pack()
_ENDS = {"s_endpgm", "s_endpgm_saved", "s_branch", "s_setpc_b64", "s_trap", "s_code_end"}

# gfx9's older 16-bit instructions clear the upper half of their result, in every encoding; the
# multiply-adds and those that came with op_sel keep it (LLVM: GCNSubtarget::zeroesHigh16BitsOfDest).
_CLEAR_UPPER = re.compile(
    r"v_(cvt_(f16_[fiu]|[iu]16_f16|norm_)|(rcp|rsq|sqrt|log|exp|frexp_mant|floor|ceil|trunc|rndne|fract|sin|cos)_f16"
    r"|frexp_exp_i16|(add|sub|subrev|mul|min|max|ldexp)_f16|(add|sub|subrev|mul_lo)_u16|(min|max)_[iu]16"
    r"|(lshlrev|lshrrev)_b16|ashrrev_i16|\w+_legacy_[fiu]16)"
)


class Encoding(NamedTuple):
    """What an instruction's bytes become wherever they stand, but for the address: one `Inst` struct, or two
    of a dual-issue one, the `ops` of each (None: not supported), and the `size` of the bytes."""

    structs: bytes
    ops: tuple[Op | None, ...]
    size: int


@dataclass
class Program:
    """A code object's text as `count` packed `Inst` structs, the last an end marker. `index_of` maps
    (address - text start) / 4 to the index of a decoded instruction, `addresses` back; both instructions of a
    dual-issue one have its address."""

    encoded: bytearray
    count: int
    addresses: list[int]
    ops: list[Op | None]
    index_of: bytes
    code: CodeObject

    def instruction(self, index: int) -> Inst | None:
        """The instruction at an index, decoded again; None for bytes that are none, and beyond the end."""
        if not 0 <= index < len(self.addresses):
            return None
        address = self.addresses[index]
        try:
            inst = _decode(self.code, address)
        except CodeObjectError:
            return None
        return inst.second if index and self.addresses[index - 1] == address else inst

    def instructions(self) -> Iterator[Inst | None]:
        return map(self.instruction, range(len(self.addresses)))

    def text(self, index: int) -> str | None:
        inst = self.instruction(index)
        return None if inst is None else text(inst, self.code.arch)


def _decode(code: CodeObject, address: int) -> Inst:
    text = memoryview(code.memory)[: code.text[1] - code.base]
    return decode(text, address - code.base, address, code.arch)


def translate(code: CodeObject, library: Library) -> Program:
    """Decode and translate all instructions of `code`. Raises CodeObjectError for an unsupported instruction
    that a kernel can reach."""
    start, end = code.text
    machine_code = bytes(memoryview(code.memory)[start - code.base : end - code.base])
    # Kernels repeat themselves and each other: of 1.35 million instructions in the smoke tier's kernels
    # three of four are known, and encoding one anew takes 20 us (2026-11-22).
    known: dict[bytes, Encoding] = library.encodings.setdefault(code.arch, {})
    encoder = _Encoder(code)
    index_of = array("I", [_NOWHERE]) * ((end - start + 3) // 4)
    addresses: list[int] = []
    encoded: list[Encoding | Inst] = []  # by index; a branch stays an Inst until its target's index is known
    unknown: dict[int, str] = {}
    offset = 0
    while offset < len(machine_code):
        index_of[offset // 4] = len(addresses)
        each = (
            known.get(machine_code[offset : offset + 4])
            or known.get(machine_code[offset : offset + 8])
            or known.get(machine_code[offset : offset + 12])
        )
        if each is None:
            each = _encode(encoder, library, start + offset, len(addresses), unknown)
            if isinstance(each, Encoding) and None not in each.ops:
                known[machine_code[offset : offset + each.size]] = each
        count = len(each.ops) if isinstance(each, Encoding) else 1
        encoded += [each] * count
        addresses += [start + offset] * count
        offset += each.size
    if len(known) > _MOST_KNOWN:
        known.clear()
    encoder.place(index_of, len(addresses))
    packed = bytearray()
    ops: list[Op | None] = []
    while len(ops) < len(encoded):
        each = encoded[len(ops)]
        if isinstance(each, Inst):
            op = library.ops[library_mnemonic(each.name)]
            packed += encoder.inst(each, op)
            ops.append(op)
        else:
            packed += each.structs
            ops += each.ops
    for index, address in enumerate(addresses):
        _ADDRESS.pack_into(packed, index * abi.INST.size + _ADDRESS_OFFSET, address)
    packed += encoder.end(end)
    if unknown:
        _refuse_reachable(code, encoded, ops, index_of, unknown)
    return Program(packed, len(addresses) + 1, addresses, ops, index_of.tobytes(), code)


def _encode(
    encoder: _Encoder, library: Library, address: int, index: int, unknown: dict[int, str]
) -> Encoding | Inst:
    """The encoding of the instruction at `address`, or the branch itself. `unknown` gets why, by index, where
    the emulator does not support it."""
    arch = encoder.code.arch
    try:
        inst = _decode(encoder.code, address)
    except CodeObjectError as error:
        unknown[index] = str(error)
        return Encoding(encoder.unknown(address), (None,), 4)
    structs, ops = b"", []
    for each in (inst, inst.second):
        if each is None:
            continue
        op = library.ops.get(library_mnemonic(each.name))
        if op is not None and "target" in each.fields:
            return each
        try:
            if op is None:
                raise IndexError("the emulator does not support this instruction")
            structs += encoder.inst(each, op)
        except (IndexError, struct.error) as error:
            unknown[index + len(ops)] = f"{text(each, arch)}: {error}"
            structs += encoder.unknown(each.address)
            op = None
        ops.append(op)
    return Encoding(structs, tuple(ops), inst.size)


def _refuse_reachable(
    code: CodeObject,
    encoded: list[Encoding | Inst],
    ops: list[Op | None],
    index_of: array[int],
    unknown: dict[int, str],
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
            if index == _NOWHERE:
                continue
            each, op = encoded[index], ops[index]
            dual = isinstance(each, Encoding) and len(each.ops) > 1
            reason = unknown.get(index) or (unknown.get(index + 1) if dual else None)
            if reason:
                raise CodeObjectError(f"{kernel.name} ({code.arch}), at {address:#x}: {reason}")
            if isinstance(each, Inst):
                pending.append(each.fields["target"])
            if op is not None and op.name not in _ENDS:
                pending.append(address + each.size)


def _past_the_caches(fields: dict[str, int]) -> bool:
    """Whether a memory instruction goes to what all compute units share: an atomic or volatile one."""
    return bool(fields.get("sc1") or fields.get("glc") or fields.get("scope", 0) > 1)


class _Encoder:
    """Packs decoded instructions into `Inst` structs."""

    def __init__(self, code: CodeObject):
        self.code = code
        self._start, self._end = code.text
        self._index_of: array[int] = array("I")
        self._end_index = 0
        self._gfx9 = code.arch.startswith("gfx9")
        self._pack = abi.INST.pack
        self._operands: dict[tuple[Any, ...], bytes] = {}
        self._no_result = abi.OPERAND.pack(abi.NONE, 0, 6, 99, 0, 0, 0)

    def place(self, index_of: array[int], count: int) -> None:
        """Where branches lead: the index by place in the text, and that of the end marker."""
        self._index_of, self._end_index = index_of, count

    def unknown(self, address: int) -> bytes:
        """An instruction that the library does not support; executing it is a fault."""
        return self._pack(0, 0, address, 0, 0, 0, 0, 0, 0, abi.UNKNOWN, 0, 0, 4, *abi.NO_OPERAND * 7)

    def end(self, address: int) -> bytes:
        """The marker behind the last instruction; reaching it is a fault."""
        return self._pack(0, 0, address, 0, 0, 0, 0, 0, 0, abi.OFF_THE_CODE, 0, 0, 4, *abi.NO_OPERAND * 7)

    def inst(self, inst: Inst, op: Op) -> bytes:
        fields, name = inst.fields, inst.name
        get = fields.get
        codes = iter(inst.dst)
        operands = [
            self._no_result if letter == "c" else self._operand(next(codes, _NULL), letter, 0, 6, 0, name)
            for letter in op.results
        ]
        results = len(operands)
        if results < 2:
            operands += [_NO_OPERAND] * (2 - results)
        op_sel = get("op_sel", 0)
        modifiers = [(word, bit) for key, bit in _MODIFIERS if (word := get(key, 0))] if fields else ()
        sdwa, literal, given = get("sdwa", 0), get("literal", 0), inst.src
        for k, letter in enumerate(op.sources):
            mods, sel = 0, 6
            for word, bit in modifiers:
                if word >> k & 1:
                    mods |= bit
            if sdwa and k < 2:
                sel = get(f"src{k}_sel", 6)
                mods |= abi.SEXT * get(f"src{k}_sext", 0)
            code = given[k] if k < len(given) else _NULL
            operands.append(self._operand(code, letter, mods, sel, literal if code == _LITERAL else 0, name))
        operands += [_NO_OPERAND] * (7 - len(operands))
        flags = self._flags(inst, op, op_sel)
        aux = self._aux(fields, flags, op_sel) if fields else (0, 0, 0, 0)
        if "target" in fields:
            imm = self._target(fields["target"])
        else:
            imm = fields["offset"] if "offset" in fields else get("simm16", 0)
        head = abi.INST_HEAD.pack(
            0, 0, inst.address, flags, imm, *aux, op.index, len(op.sources), results, inst.size
        )
        return head + b"".join(operands) + _FLIGHT

    def _aux(self, fields: dict[str, int], flags: int, op_sel: int) -> tuple[int, int, int, int]:
        get = fields.get
        first = second = 0
        if flags & abi.DPP8:
            first = get("lane_sel", 0) | get("fi", 0) << 25
        elif flags & abi.DPP:
            first = (
                get("dpp_ctrl", 0) | get("row_mask", 0) << 16 | get("bank_mask", 0) << 20
                | get("bound_ctrl", 0) << 24 | get("fi", 0) << 25
            )  # fmt: skip
        elif "offset0" in fields or "offset1" in fields:
            first, second = get("offset0", 0), get("offset1", 0)
        elif fields.keys() & {"cbsz", "abid", "blgp"}:
            first = get("cbsz", 0) | get("abid", 0) << 8 | get("blgp", 0) << 16
        if flags & abi.SDWA:
            second = get("dst_sel", 6) | get("dst_unused", 0) << 8
        return first, second, get("bitop3", op_sel), get("omod", 0)

    def _target(self, address: int) -> int:
        """The index of the instruction at an address; that of the end marker where no instruction starts."""
        if self._start <= address < self._end and address % 4 == 0:
            index = self._index_of[(address - self._start) // 4]
            if index != _NOWHERE:
                return index
        return self._end_index

    def _flags(self, inst: Inst, op: Op, op_sel: int) -> int:
        flags = 0
        if inst.fields:
            for name, bit in _FLAGS:
                if inst.fields.get(name):
                    flags |= bit
        if inst.second is not None:
            flags |= abi.DUAL
        if "atomic" in inst.name and inst.dst:
            flags |= abi.RETURNS
        if _past_the_caches(inst.fields):
            flags |= abi.SHARED
        if inst.name.startswith("v_cmpx"):
            flags |= abi.WRITES_EXEC
        if op.results[:1] in ("h", "w"):
            if op_sel >> 3 & 1:
                flags |= abi.DST_UPPER
            elif self._gfx9 and _CLEAR_UPPER.match(inst.name):
                flags |= abi.DST_ZERO
        return flags

    def _operand(self, code: int, letter: str, mods: int, sel: int, literal: int, name: str) -> bytes:
        # Only a constant's bits depend on the literal and on the instruction.
        key = (
            (code, letter, mods, sel)
            if code < 128 or code >= 256
            else (code, letter, mods, sel, literal, name)
        )
        found = self._operands.get(key)
        if found is None:
            kind, index, value = self._location(code, letter, literal, name)
            found = self._operands[key] = abi.OPERAND.pack(kind, mods, sel, ord(letter), index, 0, value)
        return found

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
    if letter in "hwP" or (letter == "b" and "dot2" in name):  # a pair's: the lower half is the number
        if "bf16" in name:
            return single >> 16
        # 1 / (2 pi) in float16 is 0x3118 by the manuals, which is what rounding gives.
        return struct.unpack("<H", struct.pack("<e", number))[0]
    return single | single << 32 if letter in "rF" else single
