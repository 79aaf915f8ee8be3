"""hiprtc: the compiler that a HIP program calls."""

from __future__ import annotations

import ctypes
import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path

from portable.backends.rocm.emulator.hip import build
from portable.backends.rocm.emulator.hip.memory import load, store
from portable.errors import CompileError

INVALID_PROGRAM, COMPILATION = 4, 6  # of hiprtcResult


@dataclass
class _Program:
    source: str
    name: str
    headers: dict[str, str]
    log: bytes = b"\0"
    code: bytes = b""


class Compiler:
    """The programs of hiprtc, by handle; methods as those of `api.Api`, which return a hiprtcResult."""

    def __init__(self, arch: str):
        self._arch = arch
        self._handles = itertools.count(1)
        self._programs: dict[int, _Program] = {}

    def hiprtcCreateProgram(
        self, program: int, source: int, name: int, count: int, headers: int, names: int
    ) -> int | None:
        texts = [_texts(place, count) for place in (names, headers)]
        label = ctypes.string_at(name).decode() if name else "default_program"
        handle = next(self._handles)
        text = ctypes.string_at(source).decode()
        self._programs[handle] = _Program(text, label, dict(zip(*texts, strict=True)))
        store(program, "<Q", handle)
        return None

    def hiprtcDestroyProgram(self, program: int) -> int | None:
        return None if self._programs.pop(load(program), None) else INVALID_PROGRAM

    def hiprtcCompileProgram(self, program: int, count: int, options: int) -> int | None:
        found = self._programs.get(program)
        if found is None:
            return INVALID_PROGRAM
        flags = [
            each for each in _texts(options, count) if not each.startswith(("--gpu-arch", "--offload-arch"))
        ]
        with tempfile.TemporaryDirectory(prefix="portable-") as folder:
            for name, text in {**found.headers, found.name: found.source}.items():
                path = Path(folder, name.lstrip("/"))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            source = Path(folder, found.name.lstrip("/"))
            try:
                found.code = build.device_code(source, self._arch, [f"-I{folder}", *flags], rtc=True)
            except CompileError as error:
                found.log = error.log.replace(f"{folder}/", "").encode() + b"\0"
                return COMPILATION
        return None

    def hiprtcGetProgramLogSize(self, program: int, size: int) -> int | None:
        return self._size(program, size, "log")

    def hiprtcGetProgramLog(self, program: int, log: int) -> int | None:
        return self._bytes(program, log, "log")

    def hiprtcGetCodeSize(self, program: int, size: int) -> int | None:
        return self._size(program, size, "code")

    def hiprtcGetCode(self, program: int, code: int) -> int | None:
        return self._bytes(program, code, "code")

    def _size(self, program: int, size: int, what: str) -> int | None:
        found = self._programs.get(program)
        if found is None:
            return INVALID_PROGRAM
        store(size, "<Q", len(getattr(found, what)))
        return None

    def _bytes(self, program: int, to: int, what: str) -> int | None:
        found = self._programs.get(program)
        if found is None:
            return INVALID_PROGRAM
        data = getattr(found, what)
        ctypes.memmove(to, data, len(data))
        return None


def _texts(place: int, count: int) -> list[str]:
    """`count` strings of a char **."""
    return [ctypes.string_at(load(place + 8 * i)).decode() for i in range(count)]
