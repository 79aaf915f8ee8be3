"""The HIP runtime through ctypes: load a code object, find a function, launch it.

Only documented calls of libamdhip64.so are used, so any library with the same ABI serves. A kernel's
arguments travel as one buffer (`extra` of hipModuleLaunchKernel); the runtime copies it before
the call returns. Contexts are torch's; this file makes none beyond what a call itself needs.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 3
_Extra = ctypes.c_void_p * 5
_OUT = ctypes.POINTER(ctypes.c_int)

# Values of hipDeviceAttribute_t, whose order is frozen since ROCm 5.
ATTRIBUTES = {
    "l2_bytes": 19,
    "max_threads": 56,
    "multiprocessors": 63,
    "shared_memory": 74,
    "warp_size": 87,
}

_SIGNATURES = {
    "hipGetDevice": (_OUT,),
    "hipSetDevice": (ctypes.c_int,),
    "hipGetDeviceCount": (_OUT,),
    "hipDeviceGetAttribute": (_OUT, ctypes.c_int, ctypes.c_int),
    "hipModuleLoadData": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p),
    "hipModuleUnload": (ctypes.c_void_p,),
    "hipModuleGetFunction": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_char_p),
}


class Runtime:
    """One loaded HIP runtime. Methods may be called from any thread; a failed call raises LaunchError
    with the runtime's own words."""

    def __init__(self, path: str | Path):
        try:
            self._library: Any = ctypes.CDLL(str(path))
        except OSError as error:
            raise _launch_error("the HIP runtime", f"{path} cannot be loaded: {error}") from error
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        self._library.hipGetErrorString.argtypes = (ctypes.c_int,)
        self._library.hipGetErrorString.restype = ctypes.c_char_p

    def device_count(self) -> int:
        count = ctypes.c_int()
        self._check(
            self._library.hipGetDeviceCount(ctypes.byref(count)), "the HIP runtime", "counting devices"
        )
        return count.value

    def properties(self, index: int) -> dict[str, int]:
        """The attributes named in `ATTRIBUTES` of device `index`; sizes in bytes."""
        figures = {}
        for name, attribute in ATTRIBUTES.items():
            value = ctypes.c_int()
            status = self._library.hipDeviceGetAttribute(ctypes.byref(value), attribute, index)
            self._check(status, f"device {index}", f"asking for {name}")
            figures[name] = value.value
        return figures

    @contextmanager
    def on_device(self, index: int) -> Iterator[None]:
        """Make device `index` this thread's current one, and restore the former one at the end."""
        former = ctypes.c_int()
        self._check(
            self._library.hipGetDevice(ctypes.byref(former)),
            "the HIP runtime",
            "asking for the current device",
        )
        if former.value == index:
            yield
            return
        self._check(self._library.hipSetDevice(index), f"device {index}", "choosing it")
        try:
            yield
        finally:
            self._check(self._library.hipSetDevice(former.value), f"device {former.value}", "choosing it")

    def load_module(self, image: bytes) -> int:
        """Load a code object on this thread's current device; returns the module's handle."""
        module = ctypes.c_void_p()
        status = self._library.hipModuleLoadData(ctypes.byref(module), image)
        self._check(status, "a code object", f"loading its {len(image)} bytes")
        return module.value or 0

    def unload_module(self, module: int) -> None:
        self._check(self._library.hipModuleUnload(module), "a code object", "unloading it")

    def get_function(self, module: int, name: str) -> int:
        function = ctypes.c_void_p()
        status = self._library.hipModuleGetFunction(ctypes.byref(function), module, name.encode())
        self._check(status, name, "finding it in its code object")
        return function.value or 0

    def set_dynamic_lds(self, index: int, nbytes: int, name: str) -> None:
        """Raise LaunchError if device `index` cannot give a block `nbytes` of dynamic LDS.

        AMD's runtime lets a launch ask for all the LDS there is; unlike NVIDIA's it needs no attribute
        set on the function first. What is left is to fail early, with the device's limit.
        """
        most = self.properties(index)["shared_memory"]
        if nbytes > most:
            raise _launch_error(name, f"it needs {nbytes} bytes of LDS; a block has {most}")

    def launch(
        self,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        stream: int,
        kernarg: bytes | bytearray,
        name: str = "a kernel",
    ) -> None:
        """Launch once, as `launcher` does."""
        segment = bytearray(kernarg)
        self.launcher(function, grid, block, shared, segment, name)(stream)

    def launcher(
        self,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        kernarg: bytearray,
        name: str = "a kernel",
    ) -> Callable[[int], None]:
        """A callable `(stream)`, for one thread, that launches with `shared` bytes of dynamic LDS; `grid`
        counts blocks, `kernarg` is the kernel argument segment, with its contents at that time."""
        handle = ctypes.c_void_p()
        size = ctypes.c_size_t(len(kernarg))
        address = ctypes.addressof(ctypes.c_char.from_buffer(kernarg)) if kernarg else 0
        extra = _Extra(_BUFFER_POINTER, address, _BUFFER_SIZE, ctypes.addressof(size), _END)
        numbers = map(ctypes.c_uint, (*grid, *block, shared))
        given = (ctypes.c_void_p(function), *numbers, handle, None, extra)
        launch = self._library["hipModuleLaunchKernel"]  # without argtypes: what is given needs no converting

        def start(stream: int, pointed_to: Any = (size, kernarg)) -> None:
            handle.value = stream
            status = launch(*given)
            if status:
                self._check(status, name, f"grid {grid}, block {block}, {shared} bytes of LDS")

        return start

    def _check(self, status: int, what: str, doing: str) -> None:
        if status:
            text = (self._library.hipGetErrorString(status) or b"").decode()
            raise _launch_error(what, f"{doing}: the HIP runtime answered {status}, {text}")


def _launch_error(what: str, log: str) -> Exception:
    from portable.errors import LaunchError

    return LaunchError(what, log)


@functools.cache
def runtime() -> Runtime:
    """The process's HIP runtime: the one that torch has loaded or brings along, else the system's."""
    return Runtime(_loaded() or _of_torch() or "libamdhip64.so")


def _loaded() -> str | None:
    """The path of a libamdhip64 in this process: a second copy would have streams of its own."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    for line in maps.splitlines():
        path = line.split(maxsplit=5)[-1]
        if "/libamdhip64.so" in path:
            return path
    return None


def _of_torch() -> Path | None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "lib" / "libamdhip64.so"
    return path if path.exists() else None
