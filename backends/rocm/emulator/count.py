"""Counts one launch of any code object, whoever compiled it.

with open("kernel.hsaco", "rb") as file:
    trace = count(file.read(), "my_kernel", (64, 1, 1), (256, 1, 1), [x, y, 1024])
print(trace.figures["instructions"], trace.bound.share)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from portable.backend import Trace
from portable.backends.rocm.emulator.code_object import CodeObject, Kernel
from portable.backends.rocm.emulator.faults import EmulatorError
from portable.backends.rocm.emulator.launch import Buffer
from portable.backends.rocm.emulator.runtime import runtime

if TYPE_CHECKING:
    import torch

_FLOATS = {2: "<e", 4: "<f", 8: "<d"}


def count(
    image: bytes,
    kernel: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    arguments: Sequence[Any],
    *,
    shared: int = 0,
    pointed_to: Mapping[str, torch.Tensor] | None = None,
) -> Trace:
    """Run one launch on the emulated GPU that `image` is for, and return what it did.

    `grid` counts workgroups of `block` work-items; `shared` is bytes of dynamic LDS. `arguments` are the
    explicit ones in order: CPU tensors for pointers, numbers, and bytes for structs passed by value;
    `pointed_to` names the tensors whose addresses lie in such structs. The kernel may access these tensors
    and nothing else. Raises KernelFault, CodeObjectError, EmulatorError, LaunchError.
    """
    code = CodeObject(image)
    found = code.kernels.get(kernel)
    if found is None:
        raise EmulatorError(f"{kernel!r} is not in the code object, which has {', '.join(code.kernels)}")
    explicit = _explicit(found)
    if len(arguments) != len(explicit):
        raise EmulatorError(f"{kernel}: {len(arguments)} arguments; the kernel takes {len(explicit)}")
    segment = bytearray(found.explicit_size)
    tensors = dict(pointed_to or {})
    for index, (each, value) in enumerate(zip(explicit, arguments, strict=True)):
        name = str(each.get(".name") or f"argument {index}")
        offset, size = each[".offset"], each[".size"]
        packed = _packed(kernel, name, size, value)
        segment[offset : offset + size] = packed
        if hasattr(value, "data_ptr"):
            tensors[name] = value
    buffers = [Buffer.of(name, tensor) for name, tensor in tensors.items()]
    device = runtime(code.arch)
    module = device.load_module(image)
    try:
        with device.trace() as traces:
            function = device.get_function(module, kernel)
            device.launch(function, grid, block, shared, 0, segment, kernel, buffers=buffers)
    finally:
        device.unload_module(module)
    return traces[0]


def _explicit(kernel: Kernel) -> list[dict[str, Any]]:
    """The metadata of the explicit arguments, in order."""
    found = [each for each in kernel.arguments if not str(each.get(".value_kind", "")).startswith("hidden_")]
    return sorted(found, key=lambda each: each[".offset"])


def _packed(kernel: str, name: str, size: int, value: Any) -> bytes:
    if hasattr(value, "data_ptr"):
        data = struct.pack("<Q", value.data_ptr())
    elif isinstance(value, bytes):
        data = value
    elif isinstance(value, float):
        data = struct.pack(_FLOATS[size], value)
    else:
        data = (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    if len(data) != size:
        raise EmulatorError(f"{kernel}: {name} is {len(data)} bytes; the kernel takes {size}")
    return data
