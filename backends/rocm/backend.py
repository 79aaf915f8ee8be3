"""AMD GPUs: detection, compilation and launches."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from portable.backend import Backend, CodeObject, Detection, Machine, MainLoop, Resources
from portable.errors import CompileError
from portable.plan import Device, KernelArgument, NativeKernel

_KB = 1024
_TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"


def _target(arch: str, name: str, compute_units: int, wave: int, lds_kb: int, l2_mb: int) -> Device:
    return Device(
        "rocm",
        arch,
        name,
        0,
        compute_units,
        wave,
        lds_kb * _KB,
        512 if wave == 64 else 256,
        l2_mb * _KB * _KB,
    )


# Compute units, LDS and L2 as in the hardware table of the ROCm documentation.
TARGETS = (
    _target("gfx90a", "AMD Instinct MI250X (one die)", 110, 64, 64, 8),
    _target("gfx942", "AMD Instinct MI300X", 304, 64, 64, 4),
    _target("gfx950", "AMD Instinct MI355X", 256, 64, 160, 4),
    _target("gfx1100", "AMD Radeon RX 7900 XTX", 96, 32, 64, 6),
    _target("gfx1201", "AMD Radeon RX 9070 XT", 64, 32, 64, 8),
)


def arch_name(feature_name: str) -> str:
    """`gfx942:sramecc+:xnack-` as the compilers' `gfx942`."""
    return feature_name.partition(":")[0]


class RocmBackend(Backend):
    """AMD GPUs through Triton, HIP C++ and torch's own libraries."""

    name = "rocm"
    languages = ("hip", "triton", "torch")
    device_type = "cuda"  # what a ROCm build of torch calls its devices

    def modelled(self, op: str, device: Device) -> list[str]:
        from portable.backends.rocm import modelled

        return modelled.lines(op, device.arch)

    @classmethod
    def detect(cls, machine: Machine) -> Detection:
        if not machine.exists("/dev/kfd"):
            return Detection(False, False, "no AMD GPU: /dev/kfd does not exist")
        if not cls._has_gpu_node(machine):
            return Detection(False, False, "no AMD GPU: the kernel driver is loaded but lists no GPU")
        for variable in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
            visible = machine.environ.get(variable)
            if visible is not None and visible.strip() in ("", "-1"):
                return Detection(False, False, f"{variable}={visible!r} hides the AMD GPU")
        if machine.torch_build.get("hip") is None:
            kind = "for CUDA" if machine.torch_build.get("cuda") else "for the CPU only"
            return Detection(
                True,
                False,
                f"there is an AMD GPU, but this torch is built {kind}: install a ROCm build of torch "
                "(pytorch.org/get-started) to use it",
            )
        return Detection(
            True,
            True,
            f"there is an AMD GPU and torch is built for ROCm {machine.torch_build['hip']}",
        )

    @classmethod
    def emulation(cls, machine: Machine) -> Detection:
        from portable.backends.rocm.emulator import backend

        return backend.emulation(machine)

    def emulated(self, machine: Machine) -> Backend:
        from portable.backends.rocm.emulator import backend

        return backend.EmulatedRocmBackend(self.folder, backend.arch(machine))

    @staticmethod
    def _has_gpu_node(machine: Machine) -> bool:
        """A topology node with SIMDs is a GPU; the CPU's nodes have none."""
        try:
            for node in machine.listdir(_TOPOLOGY):
                for line in machine.read(f"{_TOPOLOGY}/{node}/properties").splitlines():
                    key, _, value = line.partition(" ")
                    if key == "simd_count" and value.strip() not in ("", "0"):
                        return True
        except OSError:
            return False
        return False

    @functools.cache  # noqa: B019 - one instance lives as long as the process
    def device(self, index: int) -> Device:
        found = torch.cuda.get_device_properties(index)
        arch = arch_name(found.gcnArchName)
        known = next((target for target in TARGETS if target.arch == arch), None)
        return Device(
            self.name,
            arch,
            found.name,
            index,
            found.multi_processor_count,
            getattr(found, "warp_size", known.warp_size if known else 64),
            known.shared_memory if known else 64 * _KB,
            known.registers if known else 256,
            getattr(found, "L2_cache_size", 0),
        )

    def language_missing(self, language: str) -> str | None:
        if language == "triton" and importlib.util.find_spec("triton") is None:
            return "triton is not installed"
        if language == "hip":
            from portable.backends.rocm import compile

            try:
                compile.toolchain()
            except CompileError as error:
                return str(error)
        return None

    def targets(self) -> tuple[Device, ...]:
        return TARGETS

    def generation(self, arch: str) -> float:
        """11.0 of gfx1100, 9.42 of gfx942: the last two characters are hexadecimal digits."""
        number, step = arch.removeprefix("gfx")[:-2], arch[-2:]
        return int(number) + int(step[0], 16) / 10 + int(step[1], 16) / 100 if number.isdigit() else 0.0

    def versions(self) -> dict[str, str]:
        import torch

        found = {"hip": str(getattr(torch.version, "hip", None))}
        with contextlib.suppress(OSError):
            found["driver"] = Path("/sys/module/amdgpu/version").read_text().strip()
        return found

    def triton_target(self, device: Device) -> tuple[str, int | str, int]:
        return "hip", device.arch, device.warp_size

    def compile_native(self, kernel: NativeKernel, device: Device, includes: tuple[Path, ...]) -> bytes:
        from portable.backends.rocm.compile import compile

        # Line tables cost no instruction, and a fault or a profile can name its source line.
        return compile(kernel.source, kernel.defines, device.arch, includes=includes, debug=True)

    def predefined_macros(self, device: Device) -> Mapping[str, str]:
        family = "__GFX9__" if device.arch.startswith("gfx9") else f"__{device.arch[:5].upper()}__"
        return {"__HIP__": "1", f"__{device.arch}__": "1", family: "1"}

    def compiler_version(self, language: str) -> str:
        from portable.backends.rocm.compile import toolchain

        return f"{toolchain().name}, line tables"

    def resources(self, code: CodeObject) -> Resources:
        from portable.backends.rocm.metadata import resources

        found = resources(code.binary)[code.entry]
        return Resources(
            found["vgprs"],
            found["lds"],
            found["scratch"],
            found["vgpr_spills"] + found["sgpr_spills"],
        )

    def main_loop(self, code: CodeObject) -> MainLoop | None:
        from portable.backends.rocm.emulator.main_loop import main_loop

        return main_loop(code.binary, code.entry)

    def runtime(self) -> Any:
        """What loads and launches: `runtime.Runtime`, or what has its methods."""
        from portable.backends.rocm.runtime import runtime

        return runtime()

    def load(self, code: CodeObject, device: Device) -> Any:
        hip = self.runtime()
        with hip.on_device(device.index):
            return hip.get_function(hip.load_module(code.binary), code.entry)

    def launcher(
        self,
        function: Any,
        code: CodeObject,
        device: Device,
        arguments: tuple[KernelArgument, ...],
        grid: tuple[int, int, int],
        kernarg: bytearray,
    ) -> Callable[[int], None]:
        block = (code.threads, 1, 1)
        return self.runtime().launcher(function, grid, block, code.shared, kernarg, code.entry)

    current = staticmethod(getattr(torch._C, "_cuda_getDevice", Backend.current))
    stream = staticmethod(getattr(torch._C, "_cuda_getCurrentRawStream", Backend.stream))

    @staticmethod
    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")

    def count(self) -> int:
        return torch.cuda.device_count()

    def on(self, index: int) -> AbstractContextManager[Any]:
        return torch.cuda.device(index)

    def info(self) -> list[tuple[str, str]]:
        from portable.backends.rocm.compile import toolchain

        rows = [
            (f"device {index}", f"{self.device(index)}, {self.device(index).multiprocessors} compute units")
            for index in range(torch.cuda.device_count())
        ]
        return [*rows, ("HIP compiler", toolchain().name)]
