"""Compiles HIP programs: the kernels to a code object, the host's code to a library that has its `main`.

Both by the clang of the `ziglang` package; the C++ library, and the linker, are those of the machine's g++.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from portable.backends.rocm import compile as rocm
from portable.errors import CompileError, NoCompilerError
from portable.runtime import disk_cache

HERE = Path(__file__).resolve().parent
INCLUDE = HERE / "include"
_NATIVE = HERE / "native"
_HOST = "--target=x86_64-linux-gnu"
_WRAPPED = ("exit", "_exit", "_Exit", "quick_exit")
LIBRARY = "libamdhip64.so"


def device_code(source: Path, arch: str, options: Sequence[str] = (), *, rtc: bool = False) -> bytes:
    """The code object of a HIP C++ file's kernels, with line tables. Raises CompileError."""
    flags = [*_language(source, options), "--cuda-device-only", "--no-gpu-bundle-output"]
    flags += [f"--offload-arch={arch}", "-O3", "-gline-tables-only"]
    if rtc:
        flags += ["-D__HIPCC_RTC__", "-nostdinc++", "-include", "hip/hip_runtime.h"]
    return rocm.code_object(f"{source.name} for {arch}", source, arch, flags)


def host_library(source: Path, code: bytes, options: Sequence[str], target: Path) -> None:
    """Write to `target` the library of a HIP C++ file's host code, with `code` in it. Raises CompileError."""
    with tempfile.TemporaryDirectory(prefix="portable-") as folder:
        image, made, runtime = (Path(folder, name) for name in ("kernels.co", "host.o", LIBRARY))
        image.write_bytes(code)
        runtime.write_bytes(runtime_image())
        flags = [*_language(source, options), "--cuda-host-only", "-O1", "-g", "-fPIC", "-c"]
        flags += ["-include", "hip/portable_finish.h"]
        flags += ["-Xclang", "-fcuda-include-gpubinary", "-Xclang", str(image)]
        _run(source.name, [*rocm.toolchain().clang, *flags, str(source), "-o", str(made)])
        link = [_linker(), "-shared", "-pthread", "-Wl,-Bsymbolic", "-Wl,--no-undefined"]
        link += [f"-Wl,--wrap={name}" for name in _WRAPPED]
        _run(source.name, [*link, str(made), str(runtime), "-o", str(target)])


def _language(source: Path, options: Sequence[str]) -> list[str]:
    # Both compilations give a static variable of the GPU the name that the host asks for by this number.
    number = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]
    flags = [_HOST, "-x", "hip", "-nogpulib", "-nogpuinc", "-std=c++17", f"-cuid={number}", "-w"]
    flags += ["-isystem", str(INCLUDE), "-isystem", str(_resources()), "-include", "hip/portable_math.h"]
    return [*flags, *options]


@functools.cache
def _resources() -> Path:
    """clang's own headers, which the `ziglang` package has in a place of its own."""
    from importlib import util

    package = util.find_spec("ziglang")
    if package is None or not package.submodule_search_locations:
        raise NoCompilerError("HIP programs", "no ziglang", "pip install 'portable-kernels[emulate]'")
    return Path(package.submodule_search_locations[0]) / "lib" / "include"


@functools.cache
def _linker() -> str:
    found = shutil.which("g++")
    if found is None:
        raise NoCompilerError(
            "HIP programs", "no g++, whose C++ library the host's code needs", "install g++"
        )
    return found


@functools.cache
def runtime_image() -> bytes:
    """The file of our libamdhip64: the cache's for these sources, else a new one. Raises CompileError."""
    texts = [path.read_bytes() for path in sorted((*_NATIVE.iterdir(), *INCLUDE.rglob("*.h")))]
    name = f"amdhip64-{disk_cache.key(*texts, metadata.version('ziglang'))[:32]}"
    return disk_cache.get(name, _runtime)


def _runtime() -> bytes:
    zig = [sys.executable, "-m", "ziglang"]
    with tempfile.TemporaryDirectory(prefix="portable-") as folder:
        caches = {"ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder}
        environment = {**os.environ, **caches}
        flags = ["-O1", "-fPIC", "-std=c++17", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden"]
        flags += ["-fno-sanitize=undefined", f"-I{INCLUDE}", "-c"]
        made = []
        for source in sorted(_NATIVE.glob("*.cpp")):
            made.append(os.path.join(folder, f"{source.stem}.o"))
            _run(LIBRARY, [*zig, "c++", *flags, str(source), "-o", made[-1]], environment)
        target = Path(folder, LIBRARY)
        link = [*zig, "ld.lld", "-shared", "-soname", LIBRARY, *made, "-o", str(target)]
        _run(LIBRARY, link, environment)
        return target.read_bytes()


def _run(what: str, command: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment)
    if done.returncode:
        text = done.stderr.strip() or f"{command[0]} ended with {done.returncode}"
        raise CompileError(what, re.sub(r"\x1b\[[0-9;]*m", "", text))
