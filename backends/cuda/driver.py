"""The calls of the CUDA driver API that loading and launching need, through ctypes.

Primary contexts are torch's; this file makes none.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from portable.errors import LaunchError
from portable.plan import Device

_MAX_DYNAMIC_SHARED = 8
_PROGRAMMATIC_STREAM_SERIALIZATION = 6


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute, whose value is a union of 64 bytes."""

    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16)]


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_uint64),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    ]


@functools.cache
def _library() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LaunchError("the CUDA driver", f"libcuda.so.1 cannot be loaded: {error}") from error


def _check(status: int, what: str) -> None:
    if status:
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        _library().cuGetErrorName(status, ctypes.byref(name))
        _library().cuGetErrorString(status, ctypes.byref(text))
        spelled = f"{(name.value or b'').decode()}: {(text.value or b'').decode()}"
        raise LaunchError(what, f"the driver answered {status} {spelled}")


def bind_context(index: int) -> None:
    """Make torch's context, the primary one of device `index`, current in this thread if it has none."""
    context, device = ctypes.c_void_p(), ctypes.c_int()
    _check(_library().cuCtxGetCurrent(ctypes.byref(context)), "asking for the current context")
    if not context.value:
        _check(_library().cuDeviceGet(ctypes.byref(device), index), f"getting device {index}")
        status = _library().cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        _check(status, f"retaining the primary context of device {index}")
        _check(_library().cuCtxSetCurrent(context), f"setting the context of device {index}")


def load(binary: bytes, entry: str, shared: int, device: Device) -> int:
    """Load a cubin on torch's context of `device`; returns the function's handle."""
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
    function: int,
    entry: str,
    threads: int,
    shared: int,
    index: int,
    offsets: tuple[int, ...],
    grid: tuple[int, int, int],
    kernarg: bytearray,
    pdl: bool = False,
) -> Callable[[int], None]:
    """A callable `(stream)` for the calling thread, which gets a context here if it has none. With `pdl`
    (programmatic dependent launch) the kernel may start before the previous one on the stream has ended.

    The driver gets a pointer to each argument rather than the buffer: it knows where the kernel
    wants them, which is not where C would put them (measured 2026-11-21: a kernel whose first argument
    is a tensor map, aligned to 64, reads it at byte 48, for the constant bank's sake). All that it gets
    lies in memory from here on: what ctypes converts per call costs more than the rest of it.
    """
    bind_context(index)
    base = ctypes.addressof((ctypes.c_char * len(kernarg)).from_buffer(kernarg)) if kernarg else 0
    pointers = (ctypes.c_void_p * len(offsets))(*(base + offset for offset in offsets))
    config = _LaunchConfig(grid, (threads, 1, 1), shared)
    attribute = _LaunchAttribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 0, (1,))
    if pdl:
        config.attributes, config.attribute_count = ctypes.addressof(attribute), 1
    given = (ctypes.byref(config), ctypes.c_void_p(function), ctypes.byref(pointers), None)
    launch = _library().cuLaunchKernelEx

    def start(stream: int, pointed_to: Any = (kernarg, attribute)) -> None:
        config.stream = stream
        status = launch(*given)
        if status:
            _check(status, f"launching {entry} on a grid of {grid}")

    return start
