"""From a planned launch to a function on a device: compile once, load once, launch often."""

from __future__ import annotations

import ctypes
import functools
import json
import math
import operator
import re
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from portable import dtypes
from portable.backend import Backend, CodeObject
from portable.errors import LaunchError
from portable.plan import (
    Argument,
    Device,
    KernelArgument,
    Launch,
    NativeKernel,
    Pointer,
    Scalar,
    Struct,
    TensorInfo,
    TritonKernel,
)
from portable.runtime import disk_cache, triton_build
from portable.runtime.fork_lock import fork_lock
from portable.spec import registry

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_BINARY = {"cubin", "hsaco"}

_lock = fork_lock()
_code: dict[tuple[Any, ...], CodeObject] = {}
_loaded: dict[tuple[Any, ...], Any] = {}
compiled: list[str] = []
"""Names of the kernels this process had to make machine code for (disk cache hits included)."""


def clear_caches() -> None:
    """Drop compiled and loaded kernels, for tests that change what a compiler answers."""
    _code.clear()
    _loaded.clear()
    compiled.clear()


def source_text(source: Path, includes: tuple[Path, ...]) -> bytes:
    """A source and all that it includes: what the machine code depends on."""
    seen: dict[Path, bytes] = {}
    queue = [source]
    while queue:
        file = queue.pop().resolve()
        if file in seen:
            continue
        seen[file] = file.read_bytes()
        for name in _INCLUDE.findall(seen[file].decode()):
            found = (folder / name for folder in (file.parent, *includes) if (folder / name).is_file())
            queue.extend(list(found)[:1])
    return b"\0".join(seen[file] for file in sorted(seen))


def include_folders(source: Path, backend: Backend) -> tuple[Path, ...]:
    """Where an include that is not beside the including file is looked for, in this order.

    The folders of ops are among them: `_lib/rows/rows.h` is found from any op, one from elsewhere too.
    """
    return (backend.folder, source.parent, *registry.kernel_roots())


def code_object(launch: Launch, types: dict[str, str], backend: Backend, device: Device) -> CodeObject:
    """Machine code for one launch on `device`, from memory, the disk cache or the compiler."""
    kernel = launch.kernel
    signature = triton_build.signature(launch, types) if isinstance(kernel, TritonKernel) else ()
    identity = (backend.name, device.arch, kernel, signature)
    with _lock:
        code = _code.get(identity)
        if code is None:
            if isinstance(kernel, TritonKernel):
                code = _build_triton(kernel, signature, backend, device)
            else:
                code = _build_native(kernel, backend, device)
            _code[identity] = code
            compiled.append(kernel.name)
    if code.parameters is not None:
        from portable.runtime import kernel_abi  # 3 of 53 ms of `import portable`

        kernel_abi.check(launch, code.parameters, types)
    return code


def _build_triton(
    kernel: TritonKernel, types: tuple[tuple[str, str, bool], ...], backend: Backend, device: Device
) -> CodeObject:
    target = backend.triton_target(device)
    name = disk_cache.key(backend.name, *triton_build.identity(kernel, types, target))
    head, _, binary = disk_cache.get(name, lambda: _triton_code(kernel, types, target)).partition(b"\n")
    entry, threads, shared = json.loads(head)
    return CodeObject(binary, entry, threads, shared, "triton", 2, kernel.pdl)


def _triton_code(kernel: TritonKernel, types: Any, target: tuple[str, int | str, int]) -> bytes:
    """A line of what a launch must know, then the machine code."""
    built = triton_build.compile_triton(kernel, types, target)
    meta = built.metadata
    if getattr(meta, "global_scratch_size", 0) or getattr(meta, "num_ctas", 1) != 1:
        raise LaunchError(kernel.name, "it needs global scratch or a cluster, which this launcher has not")
    head = json.dumps([meta.name, meta.num_warps * target[2], meta.shared])
    return head.encode() + b"\n" + next(code for stage, code in built.asm.items() if stage in _BINARY)


def _build_native(kernel: NativeKernel, backend: Backend, device: Device) -> CodeObject:
    from portable.runtime import kernel_abi

    includes = include_folders(kernel.source, backend)
    name = disk_cache.key(
        source_text(kernel.source, includes),
        repr(kernel.defines),
        kernel.entry,
        f"{backend.name} {device.arch} with parameters",
        backend.compiler_version(kernel.source.suffix),
    )
    stored = disk_cache.get(name, lambda: _native_code(kernel, backend, device, includes))
    head, _, binary = stored.partition(b"\n")
    declared = json.loads(head)
    found = None if declared is None else tuple(map(kernel_abi.Parameter.of, declared))
    language = kernel.source.suffix[1:]
    return CodeObject(
        binary, kernel.entry, kernel.threads, kernel.shared, language, 0, kernel.pdl, parameters=found
    )


def _native_code(kernel: NativeKernel, backend: Backend, device: Device, includes: tuple[Path, ...]) -> bytes:
    """A line of the entry's parameters, null where the sources are not C++, then the machine code."""
    from portable.runtime import kernel_abi

    binary = backend.compile_native(kernel, device, includes)
    macros = backend.predefined_macros(device)
    found = None if macros is None else kernel_abi.parameters(kernel, includes, macros)
    return json.dumps(found).encode() + b"\n" + binary


def load(code: CodeObject, backend: Backend, device: Device) -> Any:
    """The loaded function; modules are loaded once per device and stay."""
    identity = (backend.name, device, code)
    with _lock:
        function = _loaded.get(identity)
        if function is None:
            function = _loaded[identity] = backend.load(code, device)
        return function


class BoundLaunch:
    """One launch of a plan with everything but the addresses and the stream settled.

    Calling it writes the addresses between the scalars and launches. The packed arguments belong to the
    calling thread (`local.thread_state`), so that two threads can share a plan.
    """

    def __init__(
        self,
        launch: Launch,
        slots: dict[str, int],
        code: CodeObject,
        tensors: Mapping[str, TensorInfo] | None = None,
        written: frozenset[str] = frozenset(),
        encoder: Callable[[Any], Callable[[int], bytes]] = operator.attrgetter("encode"),
    ):
        self.name = launch.kernel.name
        self.launcher: Callable[[tuple[int, int, int], bytearray], Callable[[int], None]] = _not_bound
        self._grid = launch.grid
        self.local = threading.local()
        self.pointers: list[tuple[int, int]] = []  # (index in 8-byte slots, slot of its address)
        self.encoded: list[tuple[int, int, int, Any]] = []
        arguments: list[KernelArgument] = []
        layout, values, offset = "<", [], 0

        def align(to: int) -> None:
            nonlocal layout, offset
            layout += f"{-offset % to}x"
            offset += -offset % to

        def place(name: str, arg: Argument) -> KernelArgument:
            nonlocal layout, offset
            if isinstance(arg, Struct):
                align(8)
                first = offset
                fields = tuple(place(*field) for field in arg.fields)
                align(8)
                return KernelArgument(name, first, offset - first, fields=fields)
            size, alignment, kind = _shape(arg)
            align(alignment)
            layout += kind
            if isinstance(arg, Scalar):
                values.append(_representable(kind, arg.value))
            elif isinstance(arg, Pointer):
                self.pointers.append((offset // 8, slots[arg.tensor]))
            else:
                self.encoded.append((offset, offset + size, slots[arg.tensor], encoder(arg)))
            offset += size
            return _argument(name, arg, offset - size, size, tensors or {}, written)

        for name, arg in launch.args:
            arguments.append(place(name, arg))
        for number in range(code.scratch_pointers):
            align(8)
            layout += "8x"
            arguments.append(KernelArgument(f"scratch {number}", offset, 8))
            offset += 8
        self.arguments = tuple(arguments)
        self._blank = struct.pack(layout, *values)

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Launch with the tensors' addresses, by slot."""
        try:
            kernarg, slots, launch = self.local.thread_state
        except AttributeError:
            kernarg, slots, launch = self.thread_state()
        for index, slot in self.pointers:
            slots[index] = addresses[slot]
        for first, end, slot, encode in self.encoded:
            kernarg[first:end] = encode(addresses[slot])
        launch(stream)

    def thread_state(self) -> Any:
        """This thread's packed arguments, the same as 8-byte slots, and what launches with them."""
        kernarg = bytearray(self._blank)
        slots = (ctypes.c_uint64 * (len(kernarg) // 8)).from_buffer(kernarg)
        self.local.thread_state = kernarg, slots, self.launcher(self._grid, kernarg)
        return self.local.thread_state


def _not_bound(grid: Any, kernarg: bytearray) -> Any:
    """A BoundLaunch gets its launcher in bind()."""
    return None


def _shape(arg: Any) -> tuple[int, int, str]:
    if isinstance(arg, Pointer):
        return 8, 8, "8x"
    if isinstance(arg, Scalar):
        kind = dtypes.scalar(arg.kind)
        return kind.itemsize, kind.itemsize, str(kind.struct)
    return arg.size, arg.alignment, f"{arg.size}x"


def _representable(kind: str, value: Any) -> Any:
    """A float32 beyond the type's range is infinite, as rounding to the type says; struct refuses it."""
    try:
        struct.pack(f"<{kind}", value)
    except OverflowError:
        return math.copysign(math.inf, value)
    return value


def _argument(
    name: str,
    arg: Any,
    offset: int,
    size: int,
    tensors: Mapping[str, TensorInfo],
    written: frozenset[str],
) -> KernelArgument:
    if not isinstance(arg, Pointer):
        return KernelArgument(name, offset, size)
    info = tensors.get(arg.tensor)
    extent = 0 if info is None else info.span * dtypes.itemsize(info.dtype)
    return KernelArgument(name, offset, size, True, extent, arg.tensor in written)


def bind(
    launch: Launch,
    slots: dict[str, int],
    tensors: Mapping[str, TensorInfo],
    written: frozenset[str],
    backend: Backend,
    device: Device,
) -> BoundLaunch:
    """Compile and load what `launch` needs and answer its BoundLaunch; `tensors` are all that it may point
    to, `written` the names of those that it may write."""
    if not all(0 < size < 2**31 for size in launch.grid) or max(launch.grid[1:]) > 65535:
        raise LaunchError(launch.kernel.name, f"its grid {launch.grid} exceeds (2^31 - 1, 65535, 65535)")
    types = {name: info.dtype for name, info in tensors.items()}
    code = code_object(launch, types, backend, device)
    bound = BoundLaunch(launch, slots, code, tensors, written, backend.encoder)
    function = load(code, backend, device)
    bound.launcher = functools.partial(backend.launcher, function, code, device, bound.arguments)
    return bound
