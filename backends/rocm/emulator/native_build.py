"""Builds the native library (native/*.c) with the clang of the `ziglang` package, once per machine."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

from portable.backends.rocm.emulator import abi
from portable.errors import CompileError, LaunchError
from portable.runtime import disk_cache

_NATIVE = Path(__file__).resolve().parent / "native"
_FLAGS = (
    # Without debugging information it is 1.5 MB rather than 4.8: every process hashes it.
    *("-O2", "-g0", "-march=native", "-std=c17", "-fPIC", "-fno-sanitize=undefined"),
    *("-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"),
    # The steps of most instructions call small functions of other files: inlined by the linker.
    *("-fomit-frame-pointer", "-flto=full"),
)  # fmt: skip


@dataclass(frozen=True)
class Op:
    """One instruction that the library executes: its index there, the letters of its results and
    sources (native/wave.h), its class for the counters, its matrix FLOPs."""

    index: int
    name: str
    results: str
    sources: str
    cls: int
    work: int


class Library:
    """The loaded library and its table of ops."""

    def __init__(self, path: str):
        ctypes.CDLL("libm.so.6", ctypes.RTLD_GLOBAL)  # the library's only dependency besides libc
        self.handle: Any = ctypes.CDLL(path)
        self.handle.emulator_op.restype = ctypes.POINTER(abi.OpInfo)
        self.handle.emulator_link.argtypes = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)
        self.handle.emulator_run.argtypes = (ctypes.c_void_p,)
        self.handle.emulator_races.argtypes = (ctypes.c_void_p,)
        self.handle.emulator_races.restype = ctypes.c_void_p
        self.handle.emulator_races_free.argtypes = (ctypes.c_void_p,)
        self.handle.emulator_forget_said.argtypes = (ctypes.c_void_p,)
        self.handle.emulator_forget.argtypes = (ctypes.c_void_p,)
        self.handle.emulator_stream.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
        self.handle.emulator_stream.restype = ctypes.c_void_p
        self.handle.emulator_free_stream.argtypes = (ctypes.c_void_p,)
        self.handle.emulator_time.argtypes = (ctypes.c_void_p,)
        abi.check(self.handle)
        self.ops = {op.name: op for op in self._table()}
        self.encodings: dict[str, dict[bytes, Any]] = {}  # of `translate`: by architecture and machine code

    def _table(self):
        index = 0
        while row := self.handle.emulator_op(index):
            info = row.contents
            results, _, sources = info.signature.decode().partition("=")
            yield Op(index, info.name.decode(), results, sources, info.cls, info.work)
            index += 1


def missing() -> str | None:
    """Why this machine cannot build the library, or None."""
    for package in ("ziglang", "elftools"):
        if util.find_spec(package) is None:
            return "the emulator needs ziglang and pyelftools: pip install 'portable-kernels[emulate]'"
    return None


@functools.cache
def library() -> Library:
    """This process's library. Raises CompileError if it cannot be built, LaunchError if not loaded."""
    try:
        return Library(in_memory(image(), "portable-emulator"))
    except OSError as error:
        raise LaunchError("the emulator", f"its library is not loaded: {error}") from error


def image() -> bytes:
    """The library's file: the cache's for these sources and this CPU where it verifies, else a new one.

    Raises CompileError.
    """
    sources = sorted(_NATIVE.glob("*.c"))
    texts = [path.read_bytes() for path in sorted(_NATIVE.glob("*.[ch]"))]
    digest = disk_cache.key(*texts, " ".join(_FLAGS), metadata.version("ziglang"), _processor())
    name = f"emulator-{digest[:32]}"
    for folder in _folders():
        found = disk_cache.read(name, folder)
        if found is None and disk_cache.writable(folder):
            with disk_cache.locked(".emulator-lock", folder):  # a second process uses what the first builds
                found = disk_cache.get(name, lambda: _built(sources), folder)
        if found is not None:
            return found
    return _built(sources)


def _folders() -> Iterator[Path]:
    """The cache, and for one that cannot be written a folder of this user among the temporary files."""
    yield disk_cache.directory()
    with contextlib.suppress(OSError):
        folder = Path(tempfile.gettempdir()) / f"portable-{os.getuid()}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
            yield folder


def in_memory(image: bytes, name: str) -> str:
    """A path of `image` in memory that no other process writes: what was hashed is what the loader maps.

    The file stays open, because the loader takes an equal path for the library that it knows.
    """
    descriptor = os.memfd_create(name)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(image)
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def _built(sources: list[Path]) -> bytes:
    try:
        with tempfile.TemporaryDirectory(prefix="portable-") as folder, _progress():
            target = Path(folder) / "emulator.so"
            _compile(sources, target)
            return target.read_bytes()
    except OSError as error:
        raise CompileError("the emulator", f"its files cannot be written: {error}") from error


def _progress() -> contextlib.AbstractContextManager[Any]:
    """A status line on a terminal: the build takes about 20 s, once per machine."""
    if not sys.stderr.isatty():
        return contextlib.nullcontext()
    from rich.console import Console

    return Console(stderr=True).status("compiling the emulator, once on this machine")


def _compile(sources: list[Path], target: Path) -> None:
    """Compiles beside `target`, in a folder that is deleted."""
    zig, folder = (sys.executable, "-m", "ziglang"), target.parent
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(folder), "ZIG_LOCAL_CACHE_DIR": str(folder)}

    def one(source: Path) -> str:
        done = str(folder / f"{source.stem}.o")
        _run([*zig, "cc", *_FLAGS, "-c", str(source), "-o", done], environment)
        return done

    # The slowest first. Linked by lld alone: `zig cc` would build a C runtime of its own first.
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = list(pool.map(one, sorted(sources, key=lambda path: -path.stat().st_size)))
    _run([*zig, "ld.lld", "-shared", *objects, "-o", str(target)], environment)


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise CompileError("the emulator", done.stderr.strip() or f"clang ended with {done.returncode}")


def _processor() -> str:
    """What -march=native depends on."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return f"{platform.machine()} {line}"
    except OSError:
        pass
    return f"{platform.machine()} {platform.processor()}"
