"""HIP C++ to a loadable code object, with or without ROCm on the machine.

`ziglang` from PyPI carries clang and lld with the AMDGPU target, and the Triton wheel carries AMD's
device libraries. clang's own link step fails there, so compiling, assembling and linking are three
calls. Without `ziglang` the same three are made with the clang of a ROCm installation or of the system.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from portable.backends.rocm.metadata import resources

__all__ = ["Toolchain", "code_object", "compile", "resources", "toolchain"]

_HERE = Path(__file__).resolve().parent
_KERNELS = _HERE.parent.parent / "kernels"
_OLDEST_CLANG = 19  # the first with fences over local memory alone, which the kernels use
# Version 5 loads on every ROCm from 5.6 on; newer compilers default to 6.
_CODE_OBJECT = "-mcode-object-version=5"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The commands that start clang and lld, the device libraries, and a name for cache keys."""

    name: str
    clang: tuple[str, ...]
    lld: tuple[str, ...]
    bitcode: tuple[Path, ...]


def compile(
    source: Path,
    defines: tuple[tuple[str, int | str], ...],
    arch: str,
    *,
    includes: tuple[Path, ...] = (),
    debug: bool = False,
) -> bytes:
    """The code object of a HIP C++ file for one architecture ("gfx942"; features after ":" are dropped).

    `includes` are searched after this folder and `kernels/`; `debug` adds line tables, which change no
    instruction. Raises `portable.errors.CompileError` with the compiler's message.
    """
    arch = arch.split(":")[0]
    flags = _flags(arch, defines, includes, debug)
    return code_object(f"{source.name} for {arch}", source, arch, flags)


def code_object(what: str, source: Path, arch: str, flags: list[str]) -> bytes:
    """The code object of a HIP C++ file: compiled with these flags, linked with AMD's device libraries where
    they are there. Raises `portable.errors.CompileError`, which says `what` was compiled."""
    tools = toolchain()
    with tempfile.TemporaryDirectory(prefix="portable-") as folder:
        assembly, relocatable, linked, controls = (
            os.path.join(folder, f"kernel.{end}") for end in ("s", "o", "co", "bc")
        )
        libraries = [str(path) for path in tools.bitcode]
        if libraries:
            Path(controls).write_bytes(_controls(tools, arch))
            libraries.append(controls)
        linked_in = [flag for path in libraries for flag in _cc1("-mlink-builtin-bitcode", path)]
        flags = [*flags, _CODE_OBJECT, *linked_in]
        _run(what, [*tools.clang, *flags, "-S", str(source), "-o", assembly])
        _run(what, [*tools.clang, *_target(arch), "-x", "assembler", assembly, "-o", relocatable])
        _run(what, [*tools.lld, "-shared", "--no-undefined", relocatable, "-o", linked])
        return Path(linked).read_bytes()


@functools.cache
def _controls(tools: Toolchain, arch: str) -> bytes:
    """The bitcode of the variables that the device libraries ask for: the GPU's version and options."""
    with tempfile.TemporaryDirectory(prefix="portable-") as folder:
        made = os.path.join(folder, "controls.bc")
        command = [*tools.clang, *_target(arch), "-emit-llvm", f"-DISA_VERSION={_isa_version(arch)}"]
        _run(f"device_libs.c for {arch}", [*command, "-nogpulib", str(_HERE / "device_libs.c"), "-o", made])
        return Path(made).read_bytes()


def _target(arch: str) -> list[str]:
    return ["-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", _CODE_OBJECT, "-c"]


def _flags(
    arch: str,
    defines: tuple[tuple[str, int | str], ...],
    includes: tuple[Path, ...],
    debug: bool,
) -> list[str]:
    flags = ["-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", f"--offload-arch={arch}"]
    flags += ["-nogpulib", "-nogpuinc", "-O3", "-std=c++17", "-ffp-contract=on", "-Wall"]
    flags.append("-fuse-cuid=none")  # a hash of the paths would make every build differ
    flags += [f"-I{folder}" for folder in (_HERE, _KERNELS, *includes)]
    if debug:  # names without this machine's folders, so that the same source makes the same bytes anywhere
        flags += ["-gline-tables-only", "-fdebug-compilation-dir=."]
        flags += [f"-fdebug-prefix-map={_HERE}=rocm", f"-fdebug-prefix-map={_KERNELS}=kernels"]
    return flags + [f"-D{name}={value}" for name, value in defines]


def _cc1(*flags: str) -> list[str]:
    return [each for flag in flags for each in ("-Xclang", flag)]


def _isa_version(arch: str) -> int:
    """AMD's number for "gfx<major><minor><stepping>": 90a -> 9010; the last two are hexadecimal digits."""
    digits = arch.removeprefix("gfx")
    return int(digits[:-2]) * 1000 + int(digits[-2], 16) * 100 + int(digits[-1], 16)


def _run(what: str, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        from portable.errors import CompileError

        raise CompileError(what, done.stderr.strip() or f"{command[0]} ended with {done.returncode}")


@functools.cache
def toolchain() -> Toolchain:
    """The first usable clang: of the `ziglang` package, of ROCm, of the system; NoCompilerError if none."""
    for find in (_zig, _rocm, _system):
        found = find()
        if found is not None:
            return found
    from portable.errors import NoCompilerError

    reason = f"no clang {_OLDEST_CLANG} or newer with the AMDGPU target"
    raise NoCompilerError("HIP C++", reason, "pip install 'portable-kernels[check]'")


def _zig() -> Toolchain | None:
    package = util.find_spec("ziglang")
    if package is None or not package.submodule_search_locations:
        return None
    # The program itself: `python -m ziglang` takes longer to start than a small kernel to assemble.
    program = Path(package.submodule_search_locations[0]) / ("zig.exe" if os.name == "nt" else "zig")
    zig = (str(program),) if os.access(program, os.X_OK) else (sys.executable, "-m", "ziglang")
    return Toolchain(
        f"ziglang {metadata.version('ziglang')}",
        (*zig, "clang"),
        (*zig, "ld.lld"),
        _device_libraries(_triton_library()),
    )


def _rocm() -> Toolchain | None:
    root = Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
    return _clang(root / "llvm" / "bin" / "clang", root / "amdgcn" / "bitcode")


def _system() -> Toolchain | None:
    found = shutil.which("clang")
    return None if found is None else _clang(Path(found), _triton_library())


def _clang(clang: Path, libraries: Path | None) -> Toolchain | None:
    linker = shutil.which("ld.lld", path=str(clang.resolve().parent)) or shutil.which("ld.lld")
    if not clang.exists() or linker is None:
        return None
    said = subprocess.run([str(clang), "--version"], capture_output=True, text=True).stdout
    version = re.search(r"version (\d+)", said)
    if version is None or int(version[1]) < _OLDEST_CLANG:
        return None
    return Toolchain(said.splitlines()[0], (str(clang),), (linker,), _device_libraries(libraries))


def _triton_library() -> Path | None:
    spec = util.find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "backends" / "amd" / "lib"


def _device_libraries(folder: Path | None) -> tuple[Path, ...]:
    if folder is None:
        return ()
    return tuple(path for path in (folder / "ocml.bc", folder / "ockl.bc") if path.exists())
