"""A Triton driver for an emulated GPU: runs `kernel[grid](cpu_tensors, ...)` of any Triton program.

    with emulated("gfx942"):
        kernel[(8,)](x, y, n, BLOCK=128)

or `triton.runtime.driver.set_active(EmulatedDriver("gfx942"))` for the whole process. Triton compiles as
for the real GPU; a kernel has finished when the call returns. A kernel may access a tensor from its first
element to its last; anything before or after that, also within the storage of a view, is out of bounds (with
`extents="storage"` the whole storage may be accessed). Works with Triton 3.6 to 3.9. The programs of a
cooperative grid (`launch_cooperative_grid=True`) may wait for each other. Clusters are refused, and so is
timing: an emulated GPU has no timings. For code that says `device="cuda"` see `programs.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from portable.backends.rocm import metadata
from portable.backends.rocm.backend import TARGETS
from portable.backends.rocm.emulator import triton_arguments
from portable.backends.rocm.emulator.faults import EmulatorError
from portable.backends.rocm.emulator.found import Listener
from portable.backends.rocm.emulator.runtime import EmulatedRuntime, runtime
from portable.errors import LaunchError

# Triton keys compiled kernels by device number. Real GPUs have small numbers; each emulated architecture has
# its own large one, so that none gets the machine code of another.
_FIRST_DEVICE = 900


@contextmanager
def emulated(
    arch: str = "gfx942", extents: str = "view", listener: Listener | None = None
) -> Iterator[EmulatedDriver]:
    """Make the emulated GPU's driver Triton's active one within the context, then restore the former one."""
    config: Any = triton.runtime.driver
    former = config._active  # None if none was used yet; reading `active` would start a real GPU's runtime
    driver = EmulatedDriver(arch, extents, listener)
    config.set_active(driver)
    try:
        yield driver
    finally:
        config._active = former


class EmulatedDriver(DriverBase):
    """Triton's driver of one emulated GPU. A kernel may access of a tensor what `extents` says: its "view" or
    its "storage". `listener` is told of every launch. Raises LaunchError for an unknown architecture."""

    torch_device = torch.device("cpu")
    """Where Triton says that the GPU's tensors are."""

    def __init__(self, arch: str = "gfx942", extents: str = "view", listener: Listener | None = None):
        super().__init__()
        self.runtime = runtime(arch)
        self.utils = Utils(self.runtime)
        self.launcher_cls = functools.partial(Launcher, self)
        self.extents, self.listener = extents, listener
        self.interface: Any = None
        self._index = _FIRST_DEVICE + [target.arch for target in TARGETS].index(arch)

    @classmethod
    def is_active(cls) -> bool:
        return False  # only set_active selects it, never Triton itself

    def map_python_to_cpp_type(self, ty: str) -> str:
        return "hipDeviceptr_t" if ty.startswith("*") else triton_arguments.C_TYPES[ty]

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
        return self.torch_device

    def get_device_interface(self) -> Any:
        return self.interface or Interface(self._index)

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
            "cooperativeLaunch": 1,
        }


def _now(launch: Callable[[], None]) -> None:
    __tracebackhide__ = True
    launch()


class Launcher:
    """Packs the arguments of one compiled kernel and launches it."""

    def __init__(self, driver: EmulatedDriver, src: Any, metadata: Any):
        self._runtime = driver.runtime
        # A kernel is loaded once and may be launched under a later driver of the same GPU.
        self._driver = driver
        self._name = metadata.name
        self._warp_size = metadata.warp_size
        function = getattr(getattr(src, "fn", None), "fn", None)
        self._file: str | None = getattr(getattr(function, "__code__", None), "co_filename", None)
        self._arguments = triton_arguments.Arguments(self._name, src.signature, metadata)
        self._cooperative = bool(getattr(metadata, "launch_cooperative_grid", False))
        if getattr(metadata, "num_ctas", 1) != 1:
            raise LaunchError(self._name, "clusters are not emulated")

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
        __tracebackhide__ = True  # of pytest: the fault is the kernel's
        if enter_hook is not None:
            enter_hook(launch_metadata)
        grid = (grid_x, grid_y, grid_z)
        launch = functools.partial(self._launch, grid, function, kernel_metadata, args)
        if 0 not in grid:
            (self._runtime.recorder or _now)(launch)
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _launch(self, grid: tuple[int, int, int], function: int, kernel_metadata: Any, args: Any) -> None:
        __tracebackhide__ = True
        driver: Any = triton.runtime.driver.active
        if not isinstance(driver, EmulatedDriver) or driver.runtime is not self._runtime:
            driver = self._driver
        warps, _, shared = kernel_metadata[:3]
        block = (warps * self._warp_size, 1, 1)
        kernel = self._runtime.kernel(function, self._name)
        with torch._C.DisableTorchFunction():  # a tensor's device is the memory's, whatever a mode says of it
            packed = self._arguments.pack(grid, args, driver.extents)
        told = nullcontext() if driver.listener is None else driver.listener(kernel, self._file)
        with told:
            self._runtime.launch(
                *(function, grid, block, shared, 0, packed.kernarg, self._name),
                buffers=packed.buffers,
                cooperative=self._cooperative,
            )
