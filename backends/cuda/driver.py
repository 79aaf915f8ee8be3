"""The four calls of the CUDA driver API that loading and launching need, through ctypes.

A call costs one struct.pack of the arguments and one
foreign call. Primary contexts are torch's; this file makes none.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

from portable.errors import LaunchError
from portable.plan import Device

_MAX_DYNAMIC_SHARED = 8
_GRID_DIMENSIONS = (ctypes.c_uint,) * 7


@functools.cache
def _library() -> Any:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LaunchError("the CUDA driver", f"libcuda.so.1 cannot be loaded: {error}") from error
    library.cuLaunchKernel.argtypes = [
        ctypes.c_void_p,
        *_GRID_DIMENSIONS,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    return library


def _check(status: int, what: str) -> None:
    if status:
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        _library().cuGetErrorName(status, ctypes.byref(name))
        _library().cuGetErrorString(status, ctypes.byref(text))
        spelled = f"{(name.value or b'').decode()}: {(text.value or b'').decode()}"
        raise LaunchError(what, f"the driver answered {status} {spelled}")


def bind_context(index: int) -> None:
    """Make the primary context of card `index`, which is torch's, current in this thread if it has none."""
    context, device = ctypes.c_void_p(), ctypes.c_int()
    _check(_library().cuCtxGetCurrent(ctypes.byref(context)), "asking for the current context")
    if not context.value:
        _check(_library().cuDeviceGet(ctypes.byref(device), index), f"asking for card {index}")
        status = _library().cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        _check(status, f"asking for the context of card {index}")
        _check(_library().cuCtxSetCurrent(context), f"binding the context of card {index}")


def load(binary: bytes, entry: str, shared: int, device: Device) -> int:
    """Load a cubin on torch's context of `device`; answers the function's handle."""
    import torch

    with torch.cuda.device(device.index):
        torch.cuda.current_stream(device.index).query()  # makes torch's context current
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(_library().cuModuleLoadData(ctypes.byref(module), binary), f"loading {entry}")
        status = _library().cuModuleGetFunction(ctypes.byref(function), module, entry.encode())
        _check(status, f"finding {entry}")
        allow_shared(function.value or 0, shared, entry)
    return function.value or 0


def allow_shared(function: int, shared: int, entry: str) -> None:
    """Let a kernel have more than 48 KB of dynamic shared memory."""
    if shared > 48 * 1024:
        status = _library().cuFuncSetAttribute(ctypes.c_void_p(function), _MAX_DYNAMIC_SHARED, shared)
        _check(status, f"asking for {shared} bytes of shared memory for {entry}")


def launcher(
    function: int, entry: str, threads: int, shared: int, offsets: tuple[int, ...]
) -> Callable[..., None]:
    """A callable `(grid, stream, kernarg)`.

    The driver gets a pointer to each argument rather than the packed buffer: it knows where the kernel
    wants them, which is not where C would put them (measured 2026-11-21: a kernel whose first argument
    is a tensor map, aligned to 64, reads it at byte 48, for the constant bank's sake).
    """
    launch = _library().cuLaunchKernel
    handle = ctypes.c_void_p(function)
    local = threading.local()

    def start(grid: tuple[int, int, int], stream: int, kernarg: bytearray) -> None:
        try:
            owner, pointers, _ = local.state
        except AttributeError:
            owner = pointers = None
        if owner is not kernarg:
            view = (ctypes.c_char * len(kernarg)).from_buffer(kernarg)
            base = ctypes.addressof(view)
            pointers = (ctypes.c_void_p * len(offsets))(*(base + offset for offset in offsets))
            local.state = (kernarg, pointers, view)
        status = launch(handle, *grid, threads, 1, 1, shared, stream, pointers, None)
        if status:
            _check(status, f"launching {entry} on a grid of {grid}")

    return start
