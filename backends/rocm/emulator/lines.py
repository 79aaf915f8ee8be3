"""From an address of the code to the line it was compiled from.

The line programs of `.debug_line` (DWARF 2 to 5) are run by pyelftools. Their headers are read here with
pyelftools' primitives: its own reader follows a count in the header as far as it says, and in a damaged
file that is 2**63 entries of no bytes. No other debug section is needed but the strings.
"""

from __future__ import annotations

import bisect
import contextlib
import io
from typing import Any

from elftools.common.utils import struct_parse
from elftools.construct import Container
from elftools.dwarf.enums import ENUM_DW_FORM, ENUM_DW_LNCT
from elftools.dwarf.lineprogram import LineProgram
from elftools.dwarf.structs import DWARFStructs
from elftools.elf.elffile import ELFFile

__all__ = ["Lines"]

_LARGEST_LINE = 1 << 31
_FORMS = {number: name for name, number in ENUM_DW_FORM.items() if isinstance(number, int)}
_PATH = ENUM_DW_LNCT["DW_LNCT_path"]

# (first address, address behind the last), addresses of the rows, their (file, line)
_Sequence = tuple[int, int, list[int], list[tuple[str, int]]]


class Lines:
    """The line table of a code object, read at the first question.

    Whatever is damaged or missing answers None: a message without its line is better than none.
    """

    def __init__(self, image: bytes) -> None:
        self._image = bytes(image)
        self._sequences: list[_Sequence] | None = None
        self._starts: list[int] = []

    def at(self, address: int) -> str | None:
        """"file.py:41" of the nearest row at or before `address` in its sequence; None if there is none."""
        if self._sequences is None:
            self._sequences = sorted(_sequences(self._image), key=lambda each: each[:2])
            self._starts = [each[0] for each in self._sequences]
        # A function that the linker dropped leaves a sequence at 0, which can reach over the others;
        # so the nearest start is asked first.
        for index in range(bisect.bisect_right(self._starts, address) - 1, -1, -1):
            _, end, addresses, rows = self._sequences[index]
            if address < end:
                for row in range(bisect.bisect_right(addresses, address) - 1, -1, -1):
                    file, line = rows[row]
                    if line:  # 0: code of the compiler's own, between two lines
                        return f"{file}:{line}"
                return None
        return None


def _sequences(image: bytes) -> list[_Sequence]:
    try:
        sections = _sections(image)
    except Exception:  # pyelftools raises many kinds on damaged files, and none matters here
        return []
    found: list[_Sequence] = []
    data = sections.get(".debug_line", b"")
    start = 0
    while start + 4 <= len(data):
        wide = data[start : start + 4] == b"\xff\xff\xff\xff"
        at = start + (4 if wide else 0)
        size = 8 if wide else 4
        after = at + size + int.from_bytes(data[at : at + size], "little")
        if after > len(data):  # and where the next would start is unknown
            break
        with contextlib.suppress(Exception):  # one damaged program costs its own lines only
            found += _rows(_program(data[start:after], 64 if wide else 32, sections))
        start = after
    return found


def _sections(image: bytes) -> dict[str, bytes]:
    if image[58:60] != b"\x40\x00":  # of another size, pyelftools could read one header for ever
        raise ValueError("section headers are not of 64 bytes")
    file = ELFFile(io.BytesIO(image))
    found = {}
    for name in (".debug_line", ".debug_line_str", ".debug_str"):
        section = file.get_section_by_name(name)
        if section is not None and not section.compressed and section["sh_type"] == "SHT_PROGBITS":
            found[name] = image[section["sh_offset"] : section["sh_offset"] + section["sh_size"]]
    return found


def _program(unit: bytes, width: int, sections: dict[str, bytes]) -> LineProgram:
    """The program of one unit; `unit` is the whole of it from its length on."""
    stream = io.BytesIO(unit)
    structs = DWARFStructs(little_endian=True, dwarf_format=width, address_size=8)

    def read(form: Any) -> Any:
        return struct_parse(form, stream)

    byte, number = structs.Dwarf_uint8(""), structs.Dwarf_uleb128("")
    read(structs.Dwarf_initial_length(""))
    header = Container(version=read(structs.Dwarf_uint16("")))
    if not 2 <= header.version <= 5:
        raise ValueError(f"line table of version {header.version}")
    if header.version == 5 and (read(byte), read(byte)) != (8, 0):
        raise ValueError("line table of other addresses than 64 bits")
    behind = read(structs.Dwarf_offset(""))
    behind += stream.tell()
    header.minimum_instruction_length = read(byte)
    header.maximum_operations_per_instruction = read(byte) if header.version >= 4 else 1
    header.default_is_stmt = read(byte)
    header.line_base = read(structs.Dwarf_int8(""))
    header.line_range = read(byte)
    header.opcode_base = read(byte)
    for _ in range(1, header.opcode_base):
        read(byte)
    header.file_entry = []
    if header.version == 5:
        _table(read, structs, sections, len(unit))  # directories
        header.file_entry += _table(read, structs, sections, len(unit))
    else:
        while _text(stream):  # directories
            pass
        header.file_entry.append("")  # files count from 1
        while name := _text(stream):
            header.file_entry.append(_base_name(name))
            for _ in range(3):  # directory, time, size
                read(number)
    return LineProgram(header, stream, structs, behind, len(unit))


def _table(read: Any, structs: DWARFStructs, sections: dict[str, bytes], most: int) -> list[str]:
    """The base names in a table of directories or files of version 5."""
    number = structs.Dwarf_uleb128("")
    columns = []
    for _ in range(read(structs.Dwarf_uint8(""))):
        content = read(number)
        columns.append((content, _FORMS[read(number)]))
    count = read(number)
    if count > most or (count and not columns):
        raise ValueError(f"{count} entries in {most} bytes")
    names = []
    for _ in range(count):
        name = b""
        for content, form in columns:
            value = read(structs.Dwarf_dw_form[form])
            if content == _PATH:
                if form != "DW_FORM_string":
                    text = sections[".debug_line_str" if form == "DW_FORM_line_strp" else ".debug_str"]
                    value = text[value : text.index(b"\0", value)]
                name = value
        names.append(_base_name(name))
    return names


def _text(stream: io.BytesIO) -> bytes:
    start, data = stream.tell(), stream.getvalue()
    end = data.index(b"\0", start)
    stream.seek(end + 1)
    return data[start:end]


def _base_name(path: bytes) -> str:
    return path.replace(b"\\", b"/").rsplit(b"/", 1)[-1].decode(errors="replace")


def _rows(program: LineProgram) -> list[_Sequence]:
    files = program["file_entry"]
    found: list[_Sequence] = []
    addresses: list[int] = []
    rows: list[tuple[str, int]] = []
    for entry in program.get_entries():
        state = entry.state
        if state is None:
            continue
        if state.end_sequence:
            if addresses and addresses == sorted(addresses) and addresses[-1] <= state.address:
                found.append((addresses[0], state.address, addresses, rows))
            addresses, rows = [], []
            continue
        known = state.file < len(files) and 0 < state.line < _LARGEST_LINE
        addresses.append(state.address)
        rows.append((files[state.file], state.line) if known else ("", 0))
    return found
