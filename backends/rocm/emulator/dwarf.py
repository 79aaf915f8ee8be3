"""Source lines from DWARF: the line of an instruction's address, and the calls it was inlined through.

pyelftools runs the line programs of `.debug_line` (DWARF 2 to 5). This module reads their headers itself,
with pyelftools' primitives: its own reader trusts a count in the header, which in a damaged file can mean
2**63 entries of no bytes. Inlined calls are in `.debug_info`, which this module also reads, for the same
reason: a few damaged bytes can turn one abbreviation, or one list of ranges, into very many.
"""

from __future__ import annotations

import bisect
import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from elftools.common.utils import struct_parse
from elftools.construct import Container
from elftools.dwarf.enums import ENUM_DW_AT, ENUM_DW_FORM, ENUM_DW_LNCT, ENUM_DW_TAG
from elftools.dwarf.lineprogram import LineProgram
from elftools.dwarf.structs import DWARFStructs
from elftools.elf.elffile import ELFFile

__all__ = ["SourceLines"]

_SECTIONS = (
    *(".debug_line", ".debug_line_str", ".debug_str"),
    *(".debug_info", ".debug_abbrev", ".debug_addr", ".debug_ranges", ".debug_rnglists"),
)
_LARGEST_LINE = 1 << 31
_FORMS = {number: name for name, number in ENUM_DW_FORM.items() if isinstance(number, int)}
_PATH, _DIRECTORY = ENUM_DW_LNCT["DW_LNCT_path"], ENUM_DW_LNCT["DW_LNCT_directory_index"]

# Limits on `.debug_info`: numbers read, functions and ranges kept, depth of nested entries.
_MOST_STEPS = 1 << 20
_MOST_SCOPES = 1 << 16
_MOST_RANGES = 1 << 17
_DEEPEST = 256
_FUNCTION, _INLINED = ENUM_DW_TAG["DW_TAG_subprogram"], ENUM_DW_TAG["DW_TAG_inlined_subroutine"]
_ATTRIBUTES = {
    ENUM_DW_AT[f"DW_AT_{name}"]: name
    for name in (
        *("low_pc", "high_pc", "ranges", "call_file", "call_line"),
        *("stmt_list", "addr_base", "rnglists_base"),
    )
}
# Bytes of the forms that always have as many; 0: the abbreviation holds the value.
_FIXED = {
    **{"flag_present": 0, "implicit_const": 0, "addr": 8, "ref_sig8": 8, "data16": 16},
    **{f"{kind}{size}": size for kind in ("data", "ref", "ref_sup") for size in (1, 2, 4, 8)},
    **{f"{kind}{size}": size for kind in ("strx", "addrx") for size in (1, 2, 3, 4)},
    "flag": 1,
}
_OFFSETS = {"strp", "sec_offset", "line_strp", "strp_sup", "ref_addr"}
_NUMBERS = {"udata", "sdata", "ref_udata", "strx", "addrx", "loclistx", "rnglistx"}
_BLOCKS = {"block1": 1, "block2": 2, "block4": 4, "block": None, "exprloc": None}

# (first address, address behind the last), addresses of the rows, their (file, line)
_Sequence = tuple[int, int, list[int], list[tuple[str, int]]]
_Values = dict[str, tuple[str, int]]  # of one entry of `.debug_info`: attribute -> (form, value)


class SourceLines:
    """The line table of a code object, read at first use.

    Damaged or missing tables give None, or a shorter chain, and raise nothing: an error message without its
    source line is better than no message.
    """

    def __init__(self, image: bytes) -> None:
        self._image = bytes(image)
        self._sequences: list[_Sequence] | None = None
        self._starts: list[int] = []
        self._files: dict[int, list[str]] = {}
        self._calls: _Calls | None = None

    def at(self, address: int) -> str | None:
        """ "file.py:41" of the nearest row at or before `address` in its sequence; None if there is none."""
        found = self._nearest(address)
        return _line(*found[0]) if found else None

    def path(self, address: int) -> str | None:
        """The path of the file of `at`, as the compiler was given it."""
        found = self._nearest(address)
        return found[0][0] if found else None

    def inline_chain(self, address: int) -> tuple[str, ...]:
        """The line of `at`, then the line of the call it was inlined at, and so on to the outermost."""
        found = self._nearest(address)
        if found is None:
            return ()
        if self._calls is None:
            self._calls = _Calls(self._image, self._files)
        chain = [_line(*found[0])]
        for line in self._calls.around(found[1]):
            if line != chain[-1]:
                chain.append(line)
        return tuple(chain)

    def _nearest(self, address: int) -> tuple[tuple[str, int], int] | None:
        """The line and the address whose line it is: `address`, or a row before where that has no line."""
        if self._sequences is None:
            self._sequences, self._files = _tables(self._image)
            self._sequences.sort(key=lambda each: each[:2])
            self._starts = [each[0] for each in self._sequences]
        # A function that the linker dropped leaves a sequence at 0, which can reach over the others;
        # so the nearest start is searched first.
        for index in range(bisect.bisect_right(self._starts, address) - 1, -1, -1):
            _, end, addresses, rows = self._sequences[index]
            if address < end:
                nearest = bisect.bisect_right(addresses, address) - 1
                for row in range(nearest, -1, -1):
                    file, line = rows[row]
                    if line:  # 0: code of the compiler's own, between two lines
                        return (file, line), address if row == nearest else addresses[row]
                return None
        return None


def _units(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Each unit of `.debug_line` or `.debug_info`: its start, its end, the bytes of an offset in it."""
    start = 0
    while start + 4 <= len(data):
        wide = data[start : start + 4] == b"\xff\xff\xff\xff"
        at = start + (4 if wide else 0)
        size = 8 if wide else 4
        after = at + size + int.from_bytes(data[at : at + size], "little")
        if after > len(data):  # and where the next would start is unknown
            return
        yield start, after, size
        start = after


def _tables(image: bytes) -> tuple[list[_Sequence], dict[int, list[str]]]:
    """The sequences of all line programs, and the files of each by its offset."""
    found: list[_Sequence] = []
    files: dict[int, list[str]] = {}
    sections = _sections(image)
    data = sections.get(".debug_line", b"")
    for start, after, size in _units(data):
        with contextlib.suppress(Exception):  # a damaged program loses its own lines only
            program = _program(data[start:after], 8 * size, sections)
            files[start] = program["file_entry"]
            found += _rows(program)
    return found, files


def _sections(image: bytes) -> dict[str, bytes]:
    """The debug sections; none where the file is damaged."""
    if image[58:60] != b"\x40\x00":  # of another size, pyelftools could read one header for ever
        return {}
    found = {}
    with contextlib.suppress(Exception):  # pyelftools raises many kinds on damaged files; none matters here
        file = ELFFile(io.BytesIO(image))
        for name in _SECTIONS:
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
        directories = [name for name, _ in _table(read, structs, sections, len(unit))]
        files = _table(read, structs, sections, len(unit))
    else:
        directories, files = [b""], [(b"", 0)]  # both count from 1
        while name := _text(stream):
            directories.append(name)
        while name := _text(stream):
            files.append((name, read(number)))
            for _ in range(2):  # time, size
                read(number)
    header.file_entry += [_path(name, index, directories) for name, index in files]
    return LineProgram(header, stream, structs, behind, len(unit))


def _table(
    read: Any, structs: DWARFStructs, sections: dict[str, bytes], most: int
) -> list[tuple[bytes, int]]:
    """The names in a table of directories or files of version 5, and the number of each one's directory."""
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
        name, directory = b"", 0
        for content, form in columns:
            value = read(structs.Dwarf_dw_form[form])
            if content == _PATH:
                if form != "DW_FORM_string":
                    text = sections[".debug_line_str" if form == "DW_FORM_line_strp" else ".debug_str"]
                    value = text[value : text.index(b"\0", value)]
                name = value
            elif content == _DIRECTORY and isinstance(value, int):
                directory = value
        names.append((name, directory))
    return names


def _text(stream: io.BytesIO) -> bytes:
    start, data = stream.tell(), stream.getvalue()
    end = data.index(b"\0", start)
    stream.seek(end + 1)
    return data[start:end]


def _path(name: bytes, index: int, directories: list[bytes]) -> str:
    name = name.replace(b"\\", b"/")
    if not name.startswith(b"/") and index < len(directories) and directories[index]:
        name = directories[index] + b"/" + name
    return name.decode(errors="replace")


def _line(path: str, line: int) -> str:
    return f"{path.rsplit('/', 1)[-1]}:{line}"


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


@dataclass(frozen=True, slots=True)
class _Scope:
    """A function, or a copy of one inlined into `outer`; `line` is then that of the call."""

    outer: int | None
    function: int
    depth: int
    line: str | None


@dataclass(frozen=True, slots=True)
class _Unit:
    """Data that the entries of one unit share. `files` are those of its line program."""

    version: int
    size: int
    low_pc: int
    addresses: int
    ranges: int
    files: list[str]


class _Reader:
    """A position in some bytes. Each number read costs a step; all readers share one budget of steps."""

    def __init__(self, data: bytes, at: int, end: int, steps: list[int]) -> None:
        self.data, self.at, self.end, self._steps = data, at, min(end, len(data)), steps

    def skip(self, size: int) -> int:
        """Skip `size` bytes; returns the position before them."""
        self._steps[0] -= 1
        if self._steps[0] < 0 or size > self.end - self.at or self.at < 0:
            raise ValueError("damaged debug information")
        self.at += size
        return self.at - size

    def fixed(self, size: int) -> int:
        at = self.skip(size)
        return int.from_bytes(self.data[at : self.at], "little")

    def number(self) -> int:
        """An unsigned LEB128; a signed one is read as if it were, which is right if it is not negative."""
        at = self.skip(1)
        value = self.data[at] & 127
        for shift in range(7, 70, 7):
            if self.data[self.at - 1] < 128:
                return value
            value |= (self.data[self.skip(1)] & 127) << shift
        raise ValueError("a number of more than 64 bits")


class _Calls:
    """The inlined calls of a code object, from `.debug_info` (DWARF 2 to 5)."""

    def __init__(self, image: bytes, files: dict[int, list[str]]) -> None:
        self._sections = _sections(image)
        self._files = files
        self._steps = [_MOST_STEPS]
        self._scopes: list[_Scope] = []
        self._ranges: list[tuple[int, int, int]] = []  # first address, address behind the last, scope
        data = self._sections.get(".debug_info", b"")
        for start, after, size in _units(data):
            if self._steps[0] <= 0:
                break
            with contextlib.suppress(Exception):  # keep what was read before the damage
                self._read_unit(_Reader(data, start + (12 if size == 8 else 4), after, self._steps), size)

    def around(self, address: int) -> Iterator[str]:
        """The line of each call around `address`, the innermost first."""
        within = [each for each in self._ranges if each[0] <= address < each[1]]
        if not within:
            return
        # A function that the linker dropped may seem to cover it too; it starts earlier, mostly at 0.
        scopes = {scope: low for low, _, scope in within}
        starts = {scope: scopes.get(self._scopes[scope].function, 0) for scope in scopes}
        scope = max(scopes, key=lambda each: (starts[each], self._scopes[each].depth))
        while scope is not None and scope in scopes:
            if line := self._scopes[scope].line:
                yield line
            scope = self._scopes[scope].outer

    def _read_unit(self, reader: _Reader, size: int) -> None:
        version = reader.fixed(2)
        if not 2 <= version <= 5:
            raise ValueError(f"debug information of version {version}")
        if version == 5 and reader.fixed(1) not in (1, 3):
            raise ValueError("a unit without code")
        width = reader.fixed(1) if version == 5 else 8
        offset = reader.fixed(size)
        if (width if version == 5 else reader.fixed(1)) != 8:
            raise ValueError("addresses are not of 64 bits")
        kinds = self._abbreviations(offset)
        unit: _Unit | None = None
        nesting: list[int | None] = []  # of each entry that is open, the nearest scope
        while reader.at < reader.end:
            code = reader.number()
            if not code:
                if len(nesting) < 2:
                    return
                nesting.pop()
                continue
            tag, children, attributes = kinds[code]
            values: _Values = {}
            for name, form, value in attributes:
                value = _value(reader, form, value, version, size)
                if name in _ATTRIBUTES:
                    values[_ATTRIBUTES[name]] = form, value
            scope = nesting[-1] if nesting else None
            if unit is None:
                unit = self._unit(values, version, size)
            elif tag in (_FUNCTION, _INLINED):
                scope = self._add(unit, values, scope if tag == _INLINED else None)
            if children:
                if len(nesting) == _DEEPEST:
                    raise ValueError("entries nest too deep")
                nesting.append(scope)
            elif not nesting:
                return

    def _abbreviations(self, offset: int) -> dict[int, tuple[int, bool, list[tuple[int, str, int]]]]:
        """Code -> (tag, whether entries are within, attributes as (number, form, implicit constant))."""
        data = self._sections[".debug_abbrev"]
        reader = _Reader(data, offset, len(data), self._steps)
        found = {}
        while code := reader.number():
            tag, children = reader.number(), reader.fixed(1) == 1
            attributes = []
            while True:
                name, form = reader.number(), reader.number()
                if not name and not form:
                    break
                form = _FORMS[form].removeprefix("DW_FORM_")
                attributes.append((name, form, reader.number() if form == "implicit_const" else 0))
            found[code] = tag, children, attributes
        return found

    def _unit(self, values: _Values, version: int, size: int) -> _Unit:
        def value(name: str) -> int:
            return values.get(name, ("", 0))[1]

        files = self._files.get(value("stmt_list"), [])
        unit = _Unit(version, size, 0, value("addr_base"), value("rnglists_base"), files)
        low = self._address(unit, *values["low_pc"]) if "low_pc" in values else 0
        return _Unit(version, size, low, unit.addresses, unit.ranges, files)

    def _add(self, unit: _Unit, values: _Values, outer: int | None) -> int:
        file, line = (values.get(name, ("", 0))[1] for name in ("call_file", "call_line"))
        known = file < len(unit.files) and 0 < line < _LARGEST_LINE
        scope = len(self._scopes)
        if scope == _MOST_SCOPES:
            raise ValueError("too many functions")
        function, depth = scope, 0
        if outer is not None:
            function, depth = self._scopes[outer].function, self._scopes[outer].depth + 1
        self._scopes.append(_Scope(outer, function, depth, _line(unit.files[file], line) if known else None))
        with contextlib.suppress(KeyError, ValueError):  # without addresses it covers nothing
            for low, high in self._spans(unit, values):
                if len(self._ranges) == _MOST_RANGES:
                    break
                if low < high:
                    self._ranges.append((low, high, scope))
        return scope

    def _spans(self, unit: _Unit, values: _Values) -> Iterator[tuple[int, int]]:
        if "ranges" in values:
            form, at = values["ranges"]
            if form == "rnglistx":
                at = unit.ranges + self._fixed(".debug_rnglists", unit.ranges + at * unit.size, unit.size)
            yield from self._short_list(unit, at) if unit.version == 5 else self._long_list(unit, at)
        elif "low_pc" in values and "high_pc" in values:
            low = self._address(unit, *values["low_pc"])
            form, high = values["high_pc"]
            yield low, self._address(unit, form, high) if form.startswith("addr") else low + high

    def _long_list(self, unit: _Unit, at: int) -> Iterator[tuple[int, int]]:
        """A list of `.debug_ranges`, of versions before 5."""
        data, base = self._sections[".debug_ranges"], unit.low_pc
        reader = _Reader(data, at, len(data), self._steps)
        while True:
            low, high = reader.fixed(8), reader.fixed(8)
            if low == (1 << 64) - 1:
                base = high
            elif low or high:
                yield base + low, base + high
            else:
                return

    def _short_list(self, unit: _Unit, at: int) -> Iterator[tuple[int, int]]:
        """A list of `.debug_rnglists`, of version 5."""
        data, base = self._sections[".debug_rnglists"], unit.low_pc
        reader = _Reader(data, at, len(data), self._steps)
        while kind := reader.fixed(1):
            first = reader.fixed(8) if kind in (5, 6, 7) else reader.number()
            if kind in (1, 2, 3):
                first = self._address(unit, "addrx", first)
            if kind in (1, 5):  # DW_RLE_base_addressx, DW_RLE_base_address
                base = first
            elif kind == 2:  # DW_RLE_startx_endx
                yield first, self._address(unit, "addrx", reader.number())
            elif kind in (3, 7):  # DW_RLE_startx_length, DW_RLE_start_length
                yield first, first + reader.number()
            elif kind == 4:  # DW_RLE_offset_pair
                yield base + first, base + reader.number()
            elif kind == 6:  # DW_RLE_start_end
                yield first, reader.fixed(8)
            else:
                raise ValueError(f"range of kind {kind}")

    def _address(self, unit: _Unit, form: str, value: int) -> int:
        return value if form == "addr" else self._fixed(".debug_addr", unit.addresses + 8 * value, 8)

    def _fixed(self, section: str, at: int, size: int) -> int:
        data = self._sections[section]
        return _Reader(data, at, len(data), self._steps).fixed(size)


def _value(reader: _Reader, form: str, constant: int, version: int, size: int) -> int:
    """The value of a numeric attribute; other forms are skipped."""
    if form in _FIXED:
        return reader.fixed(_FIXED[form]) or constant
    if form in _OFFSETS:
        return reader.fixed(8 if form == "ref_addr" and version == 2 else size)
    if form in _NUMBERS:
        return reader.number()
    if form in _BLOCKS:
        length = _BLOCKS[form]
        return reader.skip(reader.number() if length is None else reader.fixed(length))
    if form == "string":
        return reader.skip(reader.data.index(b"\0", reader.at, reader.end) + 1 - reader.at)
    raise ValueError(f"form {form}")
