"""The code that a HIP program loads: its modules, their kernels and variables."""

from __future__ import annotations

import ctypes
import functools
import io
import struct
from dataclasses import dataclass, field
from typing import Any

from portable.backends.rocm.emulator.hip.memory import DEVICE, Piece
from portable.backends.rocm.emulator.launch import linked_program
from portable.backends.rocm.emulator.runtime import EmulatedRuntime
from portable.errors import LaunchError

PRINT_TO = "portable_hip_print_to"
"""The variable of hip/portable_print.h that holds the address of the buffer for printf."""

_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
_MOST_ENTRIES = 64


@dataclass
class Module:
    """A loaded code object: the runtime's handle; its variables by name; functions that were asked for."""

    handle: int
    code: Any
    variables: dict[str, Piece]
    functions: dict[str, int] = field(default_factory=dict)


def load(runtime: EmulatedRuntime, image: bytes, prints_to: int) -> Module:
    """Load a code object; its kernels print to the buffer at `prints_to`. Raises LaunchError."""
    handle = runtime.load_module(image)
    code = runtime.module(handle)
    memory = linked_program(code).memory.address
    variables = {}
    for name, (address, nbytes, writable) in _variables(image).items():
        place = memory + address - code.base
        if name == PRINT_TO:
            ctypes.memmove(place, struct.pack("<Q", prints_to), 8)
        elif nbytes:
            variables[name] = Piece(f"the variable {name}", place, nbytes, DEVICE, None, writable)
    return Module(handle, code, variables)


def _variables(image: bytes) -> dict[str, tuple[int, int, bool]]:
    """Name -> (virtual address, bytes, whether kernels may write it) of the variables of a code object."""
    from elftools.elf.elffile import ELFFile

    found = {}
    file = ELFFile(io.BytesIO(image))
    for table in (".dynsym", ".symtab"):
        section: Any = file.get_section_by_name(table)
        for symbol in section.iter_symbols() if section else ():
            index = symbol["st_shndx"]
            if symbol["st_info"]["type"] != "STT_OBJECT" or not isinstance(index, int):
                continue
            if symbol.name.endswith(".kd"):
                continue
            writable = bool(file.get_section(index)["sh_flags"] & 1)
            found[symbol.name] = (symbol["st_value"], symbol["st_size"], writable)
    return found


@functools.cache
def demangled(name: str) -> str:
    """The C++ name behind a symbol, "scale(float*, int)"; what is none stays as it is."""
    demangle, status = getattr(ctypes.CDLL("libstdc++.so.6"), "__cxa_demangle"), ctypes.c_int()
    demangle.restype = ctypes.c_void_p
    text = demangle(name.encode(), None, None, ctypes.byref(status))
    if not text:
        return name
    found = ctypes.string_at(text).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(text))
    return found


def image_at(address: int, arch: str) -> bytes:
    """The code object at an address: an ELF file, or one of an offload bundle. Raises LaunchError."""
    if ctypes.string_at(address, len(_BUNDLE)) == _BUNDLE:
        return _of_bundle(address, arch)
    if ctypes.string_at(address, 4) != b"\x7fELF":
        raise LaunchError("a code object", "loading it: neither an ELF file nor clang's offload bundle")
    # lld writes the table of sections last.
    (sections,) = struct.unpack("<Q", ctypes.string_at(address + 40, 8))
    size, count = struct.unpack("<HH", ctypes.string_at(address + 58, 4))
    return ctypes.string_at(address, sections + size * count)


def _of_bundle(address: int, arch: str) -> bytes:
    at = address + len(_BUNDLE)
    (count,) = struct.unpack("<Q", ctypes.string_at(at, 8))
    at += 8
    targets = []
    for _ in range(min(count, _MOST_ENTRIES)):
        offset, size, length = struct.unpack("<QQQ", ctypes.string_at(at, 24))
        target = ctypes.string_at(at + 24, length).decode(errors="replace")
        at += 24 + length
        targets.append(target)
        if target.startswith("hip") and target.split(":")[0].rsplit("-", 1)[-1] == arch:
            return ctypes.string_at(address + offset, size)
    raise LaunchError("a code object", f"its bundle has none for {arch}; it has {', '.join(targets)}")
