"""The backend of an emulated AMD GPU: RocmBackend over the emulator's runtime, on CPU tensors."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from portable.backend import (
    Backend,
    CodeObject,
    Detection,
    HostProgram,
    Machine,
    Modelled,
    ModelledRoof,
    Programs,
    Trace,
)
from portable.backends.rocm import pipe_model
from portable.backends.rocm.backend import TARGETS, RocmBackend
from portable.backends.rocm.emulator import native_build
from portable.errors import listed
from portable.plan import Device, KernelArgument

ARCH_VARIABLE = "PORTABLE_ROCM_ARCH"
DEFAULT_ARCH = "gfx942"


def arch(machine: Machine) -> str:
    """The architecture to emulate: PORTABLE_ROCM_ARCH, or gfx942."""
    return machine.environ.get(ARCH_VARIABLE, "").strip() or DEFAULT_ARCH


def emulation(machine: Machine) -> Detection:
    """Whether this machine can emulate a GPU, and which architecture."""
    wanted, known = arch(machine), [target.arch for target in TARGETS]
    if wanted not in known:
        what = f"{ARCH_VARIABLE}={wanted!r} names no GPU that can be emulated"
        return Detection(False, False, f"{what}; expected one of {listed(known)}")
    reason = native_build.missing()
    if reason is not None:
        return Detection(False, False, reason)
    return Detection(False, True, f"emulated {wanted}")


class EmulatedRocmBackend(RocmBackend):
    """RocmBackend whose one device is an emulated GPU of `arch`; its tensors are CPU tensors."""

    device_type = "cpu"
    program_suffixes = (".hip", ".cpp", ".cc", ".cxx")

    def __init__(self, folder: Path, arch: str):
        super().__init__(folder)
        target = next(target for target in TARGETS if target.arch == arch)
        self._model = target.name
        self._device = replace(target, name=f"emulated {arch}", emulated=True)

    def device(self, index: int) -> Device:
        return self._device

    def language_missing(self, language: str) -> str | None:
        return native_build.missing() or super().language_missing(language)

    def runtime(self) -> Any:
        from portable.backends.rocm.emulator.runtime import runtime

        return runtime(self._device.arch)

    def triton(self) -> AbstractContextManager[Any]:
        if super().language_missing("triton") is not None:
            return nullcontext()
        from portable.backends.rocm.emulator.triton_driver import emulated

        return emulated(self._device.arch)

    def programs(self, extents: str, races: bool) -> AbstractContextManager[Programs]:
        from portable.backends.rocm.emulator.programs import programs

        return programs(self._device, extents, races)

    def host_program(self, source: Path, options: Sequence[str], races: bool) -> HostProgram:
        from portable.backends.rocm.emulator.hip.program import program

        return program(source, self._device.arch, options, races)

    def load(self, code: CodeObject, device: Device) -> Any:
        from portable.backends.rocm.emulator import launch  # noqa: F401 - under the lock that a fork waits for

        return super().load(code, device)

    def launcher(
        self,
        function: Any,
        code: CodeObject,
        device: Device,
        arguments: tuple[KernelArgument, ...],
        grid: tuple[int, int, int],
        kernarg: bytearray,
    ) -> Callable[[int], None]:
        from portable.backends.rocm.emulator.launch import Buffer

        launch = self.runtime().launch
        block = (code.threads, 1, 1)
        pointers = [pointer for argument in arguments for pointer in argument.pointers()]

        def start(stream: int) -> None:
            addresses = [struct.unpack_from("<Q", kernarg, each.offset)[0] for each in pointers]
            buffers = [
                Buffer(each.name, address, each.extent, each.written)
                for each, address in zip(pointers, addresses, strict=True)
                if each.extent
            ]
            launch(function, grid, block, code.shared, stream, kernarg, name=code.entry, buffers=buffers)

        return start

    def trace(self) -> AbstractContextManager[list[Trace]]:
        return self.runtime().trace()

    def model(self) -> AbstractContextManager[list[Modelled]]:
        return self.runtime().model()

    def modelled_roof(self) -> ModelledRoof:
        pipes = pipe_model.models()[self._device.arch]
        return ModelledRoof(pipes.roof(), pipes.timing.accuracy)

    count = Backend.count
    current = staticmethod(Backend.current)
    stream = staticmethod(Backend.stream)
    empty = staticmethod(Backend.empty)
    on = Backend.on

    def info(self) -> list[tuple[str, str]]:
        from portable.backends.rocm.compile import toolchain

        what = f"{self._device}: machine code of the {self._model}, executed by the CPU; no timings"
        return [("device 0", what), ("HIP compiler", toolchain().name)]
