"""A Triton driver for an emulated GPU: runs `kernel[grid](cpu_tensors, ...)` of any Triton program.

    with emulated("gfx942"):
        kernel[(8,)](x, y, n, BLOCK=128)

or `triton.runtime.driver.set_active(EmulatedDriver("gfx942"))` for the whole process. Triton compiles as
for the real GPU; a kernel has finished when the call returns. A kernel may access a tensor from its first
element to its last; anything before or after that, also within the storage of a view, is out of bounds.
Works with Triton 3.6 to 3.9. Tensor descriptors, tuples, clusters and cooperative launches are refused, and
so is timing: an emulated GPU has no timings.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from portable.backends.rocm import metadata
from portable.backends.rocm.backend import TARGETS
from portable.backends.rocm.emulator.faults import EmulatorError
from portable.backends.rocm.emulator.launch import Buffer
from portable.backends.rocm.emulator.runtime import EmulatedRuntime, runtime
from portable.errors import LaunchError

# Triton keys compiled kernels by device number. Real GPUs have small numbers; each emulated architecture has
# its own large one, so that none gets the machine code of another.
_FIRST_DEVICE = 900
# Triton's scalar types as struct formats; bfloat16 is packed by hand.
_FORMATS = {
    "i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q",
    "u1": "?", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "fp16": "e", "bf16": "H", "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip
_C_TYPES = {
    "i1": "int8_t", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
    "u1": "uint8_t", "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t",
    "fp16": "double", "bf16": "double", "fp32": "double", "f32": "double", "fp64": "double",
}  # fmt: skip


@contextmanager
def emulated(arch: str = "gfx942") -> Iterator[EmulatedDriver]:
    """Make the emulated GPU's driver Triton's active one within the context, then restore the former one."""
    config: Any = triton.runtime.driver
    former = config._active  # None if none was used yet; reading `active` would start a real GPU's runtime
    driver = EmulatedDriver(arch)
    config.set_active(driver)
    try:
        yield driver
    finally:
        config._active = former


class EmulatedDriver(DriverBase):
    """Triton's driver of one emulated GPU. Raises LaunchError for an unknown architecture."""

    def __init__(self, arch: str = "gfx942"):
        super().__init__()
        self.runtime = runtime(arch)
        self.utils = Utils(self.runtime)
        self.launcher_cls = functools.partial(Launcher, self.runtime)
        self._index = _FIRST_DEVICE + [target.arch for target in TARGETS].index(arch)

    @classmethod
    def is_active(cls) -> bool:
        return False  # only set_active selects it, never Triton itself

    def map_python_to_cpp_type(self, ty: str) -> str:
        return "hipDeviceptr_t" if ty.startswith("*") else _C_TYPES[ty]

    def get_current_target(self) -> GPUTarget:
        target = self.runtime.target
        return GPUTarget("hip", target.arch, target.warp_size)

    def get_current_device(self) -> int:
        return self._index

    def set_current_device(self, device: int) -> None:
        if device != self._index:
            raise EmulatorError(f"device {device}: the one emulated GPU is device {self._index}")

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        digits = self.runtime.target.arch.removeprefix("gfx")
        return int(digits[:-2]), int(digits[-2], 16)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Interface:
        return Interface(self._index)

    def get_benchmarker(self) -> Any:
        raise _no_time()

    def get_empty_cache_for_benchmark(self) -> Any:
        raise _no_time()

    def clear_cache(self, cache: Any) -> None:
        raise _no_time()

    def assemble_tensormap_to_arg(self, tensormaps_info: Any, args: Any) -> Any:
        return args

    def allocate_default_profile_scratch(self, size: int, alignment: int, stream: Any) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.int8)


class Interface:
    """The part of torch.cuda that programs without timing use."""

    def __init__(self, index: int):
        self._index = index

    def current_device(self) -> int:
        return self._index

    def synchronize(self, device: Any = None) -> None:
        """Does nothing: a kernel has finished when its launch returns."""

    def Event(self, *args: Any, **kwargs: Any) -> Any:
        raise _no_time()


def _no_time() -> EmulatorError:
    return EmulatorError(
        "No timings on an emulated GPU: nothing can be benchmarked or autotuned. Give the kernel one config"
    )


class Utils:
    """Loading of code objects and device properties, under the names of Triton's own driver utilities."""

    def __init__(self, runtime: EmulatedRuntime):
        self._runtime = runtime
        self._functions: dict[tuple[str, bytes], int] = {}

    def load_binary(
        self, name: str, binary: bytes, shared: int, device: int
    ) -> tuple[None, int, int, int, int]:
        """(no module, function, registers, spills, threads). Triton unloads the module of a dropped
        kernel through the driver that is active then, which may be a real one; so no module is returned."""
        runtime = self._runtime
        runtime.set_dynamic_lds(0, shared, name)
        function = self._functions.get((name, binary))
        if function is None:
            function = self._functions[name, binary] = runtime.get_function(runtime.load_module(binary), name)
        found = metadata.resources(binary)[name]
        spills = found["vgpr_spills"] + found["sgpr_spills"]
        return None, function, found["vgprs"], spills, found["threads"]

    def unload_module(self, module: int | None) -> None:
        if module is not None:
            self._runtime.unload_module(module)

    def get_device_properties(self, device: int) -> dict[str, Any]:
        """Device properties, without clock and bus figures: those would be about speed."""
        target = self._runtime.target
        return {
            "max_shared_mem": target.shared_memory,
            "max_num_regs": 65536,
            "multiprocessor_count": target.multiprocessors,
            "arch": target.arch,
            "warpSize": target.warp_size,
            "max_threads_per_sm": 2048,
            "cooperativeLaunch": 0,
        }


class Launcher:
    """Packs the arguments of one compiled kernel and launches it."""

    def __init__(self, runtime: EmulatedRuntime, src: Any, metadata: Any):
        self._runtime = runtime
        self._name = metadata.name
        self._warp_size = metadata.warp_size
        self._kinds: list[tuple[str, str]] = []
        for key, kind in src.signature.items():
            self._check_kind(str(key), kind)
            self._kinds.append((str(key), kind))
        if getattr(metadata, "launch_cooperative_grid", False) or getattr(metadata, "num_ctas", 1) != 1:
            raise LaunchError(self._name, "clusters and cooperative grids are not emulated")
        self._scratch = [
            (what, getattr(metadata, f"{what}_size", 0) or 0, getattr(metadata, f"{what}_align", 1) or 1)
            for what in ("global_scratch", "profile_scratch")
        ]

    def _check_kind(self, name: str, kind: Any) -> None:
        if not isinstance(kind, str):
            what = "a tuple"
        elif kind == "constexpr" or kind.startswith("*") or kind in _FORMATS:
            return
        else:
            what = "a tensor descriptor" if kind.startswith(("tensordesc", "nvTma")) else f"a {kind}"
        raise LaunchError(self._name, f"argument {name!r} is {what}, which the emulator does not support")

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: Any,
        function: int,
        kernel_metadata: tuple[int, int, int],
        launch_metadata: Any,
        enter_hook: Any,
        exit_hook: Any,
        *args: Any,
    ) -> None:
        if enter_hook is not None:
            enter_hook(launch_metadata)
        grid = (grid_x, grid_y, grid_z)
        if 0 not in grid:
            warps, _, shared = kernel_metadata[:3]
            kernarg, buffers, kept = self._pack(grid, args)
            block = (warps * self._warp_size, 1, 1)
            self._runtime.launch(function, grid, block, shared, 0, kernarg, self._name, buffers=buffers)
            del kept  # keeps the scratch alive during the launch
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _pack(
        self, grid: tuple[int, int, int], args: Sequence[Any]
    ) -> tuple[bytes, list[Buffer], list[torch.Tensor]]:
        """The argument segment: each argument aligned to its size, then the two scratch pointers."""
        data, buffers, kept = bytearray(), [], []
        for (name, kind), value in zip(self._kinds, args, strict=True):
            if kind == "constexpr":
                continue
            if kind.startswith("*"):
                address, extent = self._pointer(name, value)
                if extent:
                    buffers.append(Buffer(name, address, extent, not kind.startswith("*k")))
                _append(data, struct.pack("<Q", address))
            else:
                _append(data, self._scalar(name, kind, value))
        for name, size, alignment in self._scratch:
            address = 0
            if size:
                nbytes = size * grid[0] * grid[1] * grid[2]
                space = torch.empty(nbytes + alignment, dtype=torch.uint8)
                address = -(-space.data_ptr() // alignment) * alignment
                buffers.append(Buffer(name, address, nbytes))
                kept.append(space)
            _append(data, struct.pack("<Q", address))
        return bytes(data), buffers, kept

    def _scalar(self, name: str, kind: str, value: Any) -> bytes:
        try:
            if kind == "bf16":
                return struct.pack("<h", torch.tensor(value, dtype=torch.bfloat16).view(torch.int16).item())
            return struct.pack("<" + _FORMATS[kind], value)
        except struct.error as error:
            raise LaunchError(self._name, f"argument {name!r} is {value!r}, no {kind}: {error}") from None

    def _pointer(self, name: str, value: Any) -> tuple[int, int]:
        """Address and bytes of a tensor, from its first element to its last."""
        if value is None or (isinstance(value, int) and value == 0):
            return 0, 0
        tensor: Any = value if isinstance(value, torch.Tensor) else getattr(value, "base", value)
        if not isinstance(tensor, torch.Tensor):
            kind = type(value).__name__
            raise LaunchError(self._name, f"argument {name!r} is a {kind}, whose extent is not known")
        if tensor.device.type != "cpu":
            where = f"argument {name!r} is on {tensor.device}"
            raise LaunchError(self._name, f"{where}; an emulated GPU takes CPU tensors")
        buffer = Buffer.of(name, tensor)
        return buffer.address, buffer.nbytes


def _append(data: bytearray, value: bytes) -> None:
    data.extend(bytes(-len(data) % len(value)) + value)
