"""NVIDIA GPUs: detection, compilation and launches."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from portable.backend import Backend, CodeObject, Detection, Machine, Resources
from portable.errors import CompileError
from portable.plan import ByValueArgument, Device, KernelArgument, NativeKernel, TensorMap

_KB = 1024


def _target(arch: str, name: str, multiprocessors: int, shared_kb: int, l2_mb: int) -> Device:
    return Device("cuda", arch, name, 0, multiprocessors, 32, shared_kb * _KB, 255, l2_mb * _KB * _KB)


# Largest shared memory of one block, from the compute capability table of the CUDA programming guide.
TARGETS = (
    _target("sm_80", "NVIDIA A100", 108, 163, 40),
    _target("sm_90a", "NVIDIA H100/H200", 132, 227, 50),
    _target("sm_100", "NVIDIA B200", 148, 227, 126),
)
# GPUs that have tuned configs but are not compiled for by `portable check`.
OTHERS = (
    _target("sm_86", "NVIDIA RTX 3090", 82, 99, 6),
    _target("sm_89", "NVIDIA RTX 4090", 128, 99, 72),
    _target("sm_120", "NVIDIA RTX 5090", 170, 99, 96),
)


def arch_name(major: int, minor: int) -> str:
    """The compiler's name of a compute capability; Hopper's own instructions need the `a`."""
    return "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def _capability(arch: str) -> int:
    return int("".join(c for c in arch if c.isdigit()))


class CudaBackend(Backend):
    """NVIDIA GPUs through Triton, CUDA C++ (NVRTC, CuPy) and torch's own libraries."""

    name = "cuda"
    languages = ("cuda", "triton", "torch")
    device_type = "cuda"

    @classmethod
    def detect(cls, machine: Machine) -> Detection:
        visible = machine.environ.get("CUDA_VISIBLE_DEVICES")
        present = (
            machine.exists("/dev/nvidia0") or machine.exists("/dev/nvidiactl") or machine.exists("/dev/dxg")
        )
        if not present:
            return Detection(False, False, "no NVIDIA GPU: neither /dev/nvidia0 nor /dev/nvidiactl exists")
        if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
            return Detection(False, False, f"CUDA_VISIBLE_DEVICES={visible!r} hides the NVIDIA GPU")
        if machine.torch_build.get("cuda") is None:
            kind = "for ROCm" if machine.torch_build.get("hip") else "for the CPU only"
            return Detection(
                True,
                False,
                f"there is an NVIDIA GPU, but this torch is built {kind}: install a CUDA build of torch "
                "(pytorch.org/get-started) to use it",
            )
        return Detection(
            True,
            True,
            f"there is an NVIDIA GPU and torch is built for CUDA {machine.torch_build['cuda']}",
        )

    @functools.cache  # noqa: B019 - one instance lives as long as the process
    def device(self, index: int) -> Device:
        found = torch.cuda.get_device_properties(index)
        arch = arch_name(found.major, found.minor)
        shared = getattr(found, "shared_memory_per_block_optin", 0) or 48 * _KB
        return Device(
            self.name,
            arch,
            found.name,
            index,
            found.multi_processor_count,
            32,
            shared,
            255,
            getattr(found, "L2_cache_size", 0),
        )

    def language_missing(self, language: str) -> str | None:
        needs = {"triton": ("triton",), "cuda": ("cupy", "cuda.bindings")}.get(language, ())
        for module in needs:
            try:
                found = importlib.util.find_spec(module)
            except ModuleNotFoundError:
                found = None
            if found is None:
                return f"{module} is not installed (pip install 'portable-kernels[cuda]')"
        return None

    def targets(self) -> tuple[Device, ...]:
        return TARGETS

    def arch_matches(self, pattern: str, arch: str) -> bool:
        """`sm_80+` admits compute capability 8.0 and every later one; else globs."""
        if pattern.endswith("+"):
            return _capability(arch) >= _capability(pattern)
        return super().arch_matches(pattern, arch)

    def known(self) -> tuple[Device, ...]:
        return TARGETS + OTHERS

    def generation(self, arch: str) -> float:
        return _capability(arch) / 10

    def versions(self) -> dict[str, str]:
        import torch

        found = {"cuda": str(torch.version.cuda)}
        with contextlib.suppress(OSError):
            text = Path("/proc/driver/nvidia/version").read_text()
            if (match := re.search(r"\b\d+\.\d+(\.\d+)?\b", text)) is not None:
                found["driver"] = match[0]
        return found

    def triton_target(self, device: Device) -> tuple[str, int | str, int]:
        return "cuda", _capability(device.arch), device.warp_size

    def compile_native(self, kernel: NativeKernel, device: Device, includes: tuple[Path, ...]) -> bytes:
        from portable.backends.cuda.compile import compile

        return compile(kernel.source, kernel.defines, device.arch, includes=includes)

    def predefined_macros(self, device: Device) -> Mapping[str, str]:
        return {"__CUDACC__": "1", "__CUDA_ARCH__": f"{_capability(device.arch)}0"}

    def compiler_version(self, language: str) -> str:
        from portable.backends.cuda.compile import version

        return version()

    def resources(self, code: CodeObject) -> Resources:
        return cubin_resources(code.binary, code.entry)

    def load(self, code: CodeObject, device: Device) -> Any:
        from portable.backends.cuda import driver

        if code.language == "triton":
            return driver.load(code.binary, code.entry, code.shared, device)
        return _load_with_cupy(code, device)

    def encoder(self, argument: ByValueArgument) -> Callable[[int], bytes]:
        from portable.backends.cuda import tensor_map

        return tensor_map.encoder(argument) if isinstance(argument, TensorMap) else super().encoder(argument)

    def launcher(
        self,
        function: Any,
        code: CodeObject,
        device: Device,
        arguments: tuple[KernelArgument, ...],
        grid: tuple[int, int, int],
        kernarg: bytearray,
    ) -> Callable[[int], None]:
        from portable.backends.cuda import driver

        handle = function if isinstance(function, int) else function.kernel.ptr
        offsets = tuple(argument.offset for argument in arguments)
        pdl = code.pdl and _capability(device.arch) >= 90
        return driver.launcher(
            handle, code.entry, code.threads, code.shared, device.index, offsets, grid, kernarg, pdl
        )

    # torch's own functions, which a build without CUDA lacks; each costs 0.05 us.
    current = staticmethod(getattr(torch._C, "_cuda_getDevice", Backend.current))
    stream = staticmethod(getattr(torch._C, "_cuda_getCurrentRawStream", Backend.stream))
    # What torch.compile's own code allocates with: without torch's dispatcher.
    empty = staticmethod(torch._C._dynamo.guards._empty_strided_cuda)  # type: ignore[attr-defined]

    def count(self) -> int:
        return torch.cuda.device_count()

    def on(self, index: int) -> AbstractContextManager[Any]:
        return torch.cuda.device(index)

    def info(self) -> list[tuple[str, str]]:
        rows = []
        for index in range(torch.cuda.device_count()):
            device = self.device(index)
            rows.append((f"device {index}", f"{device}, {device.multiprocessors} multiprocessors"))
        for module in ("cupy", "cuda.bindings", "triton"):
            rows.append(
                (module, "missing" if importlib.util.find_spec(module.split(".")[0]) is None else "installed")
            )
        return rows


def _load_with_cupy(code: CodeObject, device: Device) -> Any:
    """A CuPy RawKernel over the cubin; CuPy loads from a file, which may go once it is loaded."""
    import cupy  # pyright: ignore[reportMissingImports] - not installed without a GPU

    torch.cuda.current_stream(device.index).query()
    handle, path = tempfile.mkstemp(suffix=".cubin")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(code.binary)
        with cupy.cuda.Device(device.index):
            function = cupy.RawModule(path=path).get_function(code.entry)
            if code.shared > 48 * _KB:
                function.max_dynamic_shared_size_bytes = code.shared
            function.kernel  # noqa: B018 - loads the module now, while the file is there
    finally:
        os.unlink(path)
    return function


# From compute capability 9.0 on compilers count the kilobyte that the driver keeps of every block, which is
# not of what a block may ask for (seen 2026-11-21: a kernel that asks for none is said to have 1024).
_RESERVED = 1024


def _compiled_for(cubin: bytes) -> int:
    """The compute capability in a cubin's ELF flags, 90 for 9.0; CUDA 13 moved it up by a byte."""
    flags = int.from_bytes(cubin[48:52], "little")
    high = (flags >> 8) & 0xFF
    return high if high >= 50 else flags & 0xFF


def cubin_resources(cubin: bytes, entry: str) -> Resources:
    """Registers, shared memory, stack and spills, by the cuobjdump that Triton's wheel brings."""
    import triton

    tool = Path(str(triton.__file__)).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True)
    text = done.stdout + done.stderr
    for block in text.split("Function ")[1:]:
        if block.split(":")[0].strip() == entry:
            figures = {name: int(value) for name, value in re.findall(r"([A-Z]+):(\d+)", block)}
            shared = figures["SHARED"]
            if _compiled_for(cubin) >= 90 and shared >= _RESERVED:
                shared -= _RESERVED
            return Resources(figures["REG"], shared, figures["STACK"], figures["LOCAL"])
    raise CompileError(entry, f"no resource usage in: {text.strip()}")
