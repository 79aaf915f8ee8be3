"""A HIP program on an emulated GPU: compiled, loaded into this process, its `main` run."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from portable.backend import HostProgram, Programs
from portable.backends.rocm.emulator import native_build
from portable.backends.rocm.emulator.hip import build
from portable.backends.rocm.emulator.hip.api import Api
from portable.backends.rocm.emulator.runtime import runtime
from portable.errors import CompileError, LaunchError

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64))


def program(source: Path, arch: str, options: Sequence[str], races: bool) -> HostProgram:
    """Compile a HIP program; `options` are the compiler's. Raises CompileError."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise CompileError(
            "HIP programs", "they run on Linux on x86-64 only: the host's code is compiled for it"
        )
    found = Programs(
        f"emulated {arch}: the program's kernels run as its machine code on the CPU, not on a GPU; "
        f"its memory is the host's; no timings"
    )
    folder = tempfile.TemporaryDirectory(prefix="portable-")
    library = Path(folder.name, source.name + ".so")
    build.host_library(source, build.device_code(source, arch, options), options, library)

    def run(arguments: Sequence[str]) -> int:
        with folder, runtime(arch).global_races_if(races):
            return _run(library, arch, found, arguments)

    return HostProgram(found, run)


@functools.cache
def _libamdhip64() -> ctypes.CDLL:
    """This process's; the loader knows it by its name where a program asks for it."""
    hip = ctypes.CDLL(native_build.in_memory(build.runtime_image(), build.LIBRARY))
    hip.portable_hip_print_records.argtypes = (ctypes.c_void_p,)
    return hip


def _run(library: Path, arch: str, found: Programs, arguments: Sequence[str]) -> int:
    """Run `main` of the library in this process; returns its exit status, as a shell has it after a crash."""
    try:
        hip = _libamdhip64()
        api = Api(runtime(arch), found, hip.portable_hip_print_records)
        answer = _CALLBACK(lambda name, words: api.call(name.decode(), words))
        hip.portable_hip_answer(answer)
        program = ctypes.CDLL(str(library))
        main, finish = program.main, program.portable_hip_finish
    except (OSError, AttributeError) as error:
        raise LaunchError(library.stem, f"it is not loaded: {error}") from error
    words = [os.fsencode(each) for each in arguments]
    argv = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    environment = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ")
    sys.stdout.flush()
    former = signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's handler would wait for the program's end
    try:
        status = hip.portable_hip_run(main, finish, len(words), argv, environment)
    finally:
        signal.signal(signal.SIGINT, former)
        hip.portable_hip_answer(None)
    found.notes += api.notes()
    if status > 255:
        print(f"portable: the program ended by {signal.Signals(status - 256).name}", file=sys.stderr)
        return status - 128
    return status
