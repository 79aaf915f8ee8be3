"""CUDA C++ to a cubin through NVRTC, on any machine: needs no GPU, driver or toolkit.

NVRTC comes with the `nvidia-cuda-nvrtc` package (or a toolkit); `cuda.bindings` finds and calls it. The
kernels include no header of NVIDIA's, so a compile is all ptxas: a second or two.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from portable.errors import CompileError, NoCompilerError
from portable.spec import registry

_HERE = Path(__file__).resolve().parent


def compile(
    source: Path,
    defines: tuple[tuple[str, int | str], ...],
    arch: str,
    *,
    includes: tuple[Path, ...] = (),
) -> bytes:
    """The cubin of one .cu file for `arch` ("sm_90a").

    IEEE arithmetic: denormals are kept, division and square root are rounded to nearest; only the
    contraction of a * b + c is allowed. Raises CompileError with NVRTC's log, or
    NoCompilerError.
    """
    nvrtc = _nvrtc()
    folders = dict.fromkeys((_HERE, *includes, *registry.kernel_roots()))
    options = [
        f"--gpu-architecture={arch}",
        "--std=c++17",
        "--ftz=false",
        "--prec-div=true",
        "--prec-sqrt=true",
        "--fmad=true",
        "--device-as-default-execution-space",
        *(f"-I{folder}" for folder in folders),
        *(f"-D{name}={value}" for name, value in defines),
    ]
    what = f"{source.name} for {arch} ({', '.join(f'{name}={value}' for name, value in defines)})"
    program = _ok(nvrtc.nvrtcCreateProgram(source.read_bytes(), str(source).encode(), 0, None, None), what)
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
        if int(status):
            log = bytearray(_ok(nvrtc.nvrtcGetProgramLogSize(program), what))
            _ok(nvrtc.nvrtcGetProgramLog(program, log), what)
            raise CompileError(what, log.rstrip(b"\0").decode(errors="replace"))
        cubin = bytearray(_ok(nvrtc.nvrtcGetCUBINSize(program), what))
        _ok(nvrtc.nvrtcGetCUBIN(program, cubin), what)
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@functools.cache
def version() -> str:
    """NVRTC's version, for cache keys."""
    return "nvrtc {}.{}".format(*_ok_pair(_nvrtc().nvrtcVersion(), "asking NVRTC for its version"))


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc  # pyright: ignore[reportAttributeAccessIssue] - an extension module

        nvrtc.nvrtcVersion()  # the first call loads the library
    except (ImportError, RuntimeError) as error:
        reason = f"no NVRTC ({str(error).splitlines()[0]})"
        raise NoCompilerError("CUDA C++", reason, "pip install 'portable-kernels[check]'") from None
    return nvrtc


def _ok(answer: Any, what: str) -> Any:
    status, *values = answer
    if int(status):
        raise CompileError(what, re.sub(r"^.*nvrtcResult\.", "", str(status)))
    return values[0] if values else None


def _ok_pair(answer: Any, what: str) -> tuple[int, int]:
    _ok(answer, what)
    return answer[1], answer[2]
