"""What a code object says about its kernels: the AMDGPU metadata note, decoded without tools.

The note is MessagePack inside the ELF (LLVM's AMDGPU usage guide, "Code Object V3 and Above
Metadata"); the subset of MessagePack that it uses is decoded here.
"""

from __future__ import annotations

import struct
from typing import Any

_NOTE_SEGMENT = 4
_METADATA_NOTE = 32

_FIGURES = {
    "vgprs": ".vgpr_count",
    "agprs": ".agpr_count",
    "sgprs": ".sgpr_count",
    "vgpr_spills": ".vgpr_spill_count",
    "sgpr_spills": ".sgpr_spill_count",
    "lds": ".group_segment_fixed_size",
    "scratch": ".private_segment_fixed_size",
    "kernarg_size": ".kernarg_segment_size",
    "wavefront": ".wavefront_size",
    "threads": ".max_flat_workgroup_size",
}


def resources(code_object: bytes) -> dict[str, dict[str, int]]:
    """Per entry: vgprs, agprs, sgprs, vgpr_spills, sgpr_spills (registers), lds, scratch and
    kernarg_size (bytes, static), wavefront (lanes), threads (the most per block).

    On gfx90a and later `vgprs` counts the unified file, so accumulation registers are in it.
    """
    return {
        kernel[".name"]: {figure: int(kernel.get(key, 0)) for figure, key in _FIGURES.items()}
        for kernel in kernels(code_object)
    }


def kernels(code_object: bytes) -> list[dict[str, Any]]:
    """The metadata's kernel descriptions as LLVM writes them; ValueError if there is no note."""
    return metadata(code_object)["amdhsa.kernels"]


def metadata(code_object: bytes) -> dict[str, Any]:
    """The whole metadata map of a code object; ValueError if it is no AMDGPU ELF."""
    if code_object[:5] != b"\x7fELF\x02":
        raise ValueError("not a 64-bit ELF file")
    header_offset = struct.unpack_from("<Q", code_object, 32)[0]
    header_size, header_count = struct.unpack_from("<HH", code_object, 54)
    for index in range(header_count):
        kind, _, offset, _, _, size = struct.unpack_from(
            "<IIQQQQ", code_object, header_offset + index * header_size
        )
        if kind == _NOTE_SEGMENT:
            for name, note, payload in _notes(code_object, offset, offset + size):
                if name == b"AMDGPU" and note == _METADATA_NOTE:
                    return _decode(payload, 0)[0]
    raise ValueError("the ELF file has no AMDGPU metadata note")


def _notes(elf: bytes, at: int, end: int):
    while at + 12 <= end:
        name_size, size, note = struct.unpack_from("<III", elf, at)
        name = elf[at + 12 : at + 12 + name_size].rstrip(b"\0")
        at += 12 + (name_size + 3 & ~3)
        yield name, note, elf[at : at + size]
        at += size + 3 & ~3


# MessagePack type byte -> struct format of the value, or of the length that precedes it.
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_STRINGS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_ARRAYS = {0xDC: ">H", 0xDD: ">I"}
_MAPS = {0xDE: ">H", 0xDF: ">I"}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def _decode(data: bytes, at: int) -> tuple[Any, int]:
    """One MessagePack value at `at`, and where the next one starts."""
    tag = data[at]
    at += 1
    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 256, at
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at
    if tag in _NUMBERS:
        return _unpack(_NUMBERS[tag], data, at)
    if tag < 0x90:
        return _map(data, at, tag & 15)
    if tag < 0xA0:
        return _array(data, at, tag & 15)
    if tag < 0xC0:
        return _string(data, at, tag & 31)
    for table, read in ((_STRINGS, _string), (_ARRAYS, _array), (_MAPS, _map)):
        if tag in table:
            length, at = _unpack(table[tag], data, at)
            return read(data, at, length)
    raise ValueError(f"unknown MessagePack tag {tag:#x}")


def _unpack(form: str, data: bytes, at: int) -> tuple[Any, int]:
    return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)


def _string(data: bytes, at: int, length: int) -> tuple[str, int]:
    return data[at : at + length].decode(), at + length


def _array(data: bytes, at: int, length: int) -> tuple[list[Any], int]:
    values = []
    for _ in range(length):
        value, at = _decode(data, at)
        values.append(value)
    return values, at


def _map(data: bytes, at: int, length: int) -> tuple[dict[str, Any], int]:
    pairs = {}
    for _ in range(length):
        key, at = _decode(data, at)
        pairs[key], at = _decode(data, at)
    return pairs, at
