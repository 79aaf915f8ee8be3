"""Builds the native library (native/*.c) with the clang of the `ziglang` package, once per machine."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

from portable.backends.rocm.emulator import abi
from portable.errors import CompileError
from portable.runtime import disk_cache

_NATIVE = Path(__file__).resolve().parent / "native"
_FLAGS = (
    *("-O2", "-march=native", "-std=c17", "-fPIC", "-fno-sanitize=undefined"),
    *("-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"),
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

    def __init__(self, path: Path):
        ctypes.CDLL("libm.so.6", ctypes.RTLD_GLOBAL)  # the library's only dependency besides libc
        self.handle: Any = ctypes.CDLL(str(path))
        self.handle.emulator_op.restype = ctypes.POINTER(abi.OpInfo)
        self.handle.emulator_link.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
        self.handle.emulator_run.argtypes = (ctypes.c_void_p,)
        abi.check(self.handle)
        self.ops = {op.name: op for op in self._table()}

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
    """This process's library. Raises CompileError if it cannot be built."""
    return Library(build())


def build() -> Path:
    """The path of the library; compiles it if the cache has none for these sources and this CPU."""
    sources = sorted(_NATIVE.glob("*.c"))
    texts = [path.read_bytes() for path in sorted(_NATIVE.glob("*.[ch]"))]
    name = disk_cache.key(*texts, " ".join(_FLAGS), metadata.version("ziglang"), _processor())
    for folder in (disk_cache.directory(), Path(tempfile.gettempdir()) / f"portable-{os.getuid()}"):
        path = folder / f"emulator-{name[:32]}.so"
        if path.is_file() and path.stat().st_uid == os.getuid():
            return path
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = open(folder / ".emulator-lock", "w")  # noqa: SIM115 - entered below
        except OSError:
            continue
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits for the first and uses its library
            if not path.is_file():
                _build_at(sources, path)
        return path
    raise CompileError("the emulator", "neither the cache directory nor the temporary one can be written")


def _build_at(sources: list[Path], path: Path) -> None:
    handle, temporary = tempfile.mkstemp(prefix=".emulator-", dir=path.parent)
    os.close(handle)
    try:
        with _progress():
            _compile(sources, Path(temporary))
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _progress() -> contextlib.AbstractContextManager[Any]:
    """A status line on a terminal: the build takes about 20 s, once per machine."""
    if not sys.stderr.isatty():
        return contextlib.nullcontext()
    from rich.console import Console

    return Console(stderr=True).status("compiling the emulator, once on this machine")


def _compile(sources: list[Path], target: Path) -> None:
    zig = (sys.executable, "-m", "ziglang")
    with tempfile.TemporaryDirectory(prefix="portable-") as folder:
        environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder}

        def one(source: Path) -> str:
            done = os.path.join(folder, source.stem + ".o")
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
