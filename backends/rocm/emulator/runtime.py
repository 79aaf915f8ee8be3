"""The runtime of a card made of software: the methods of `portable.backends.rocm.runtime.Runtime`.

One card per architecture, without streams: a launch has ended when `launch` returns. What the real
runtime refuses is refused here with the same class of error; what a kernel does wrong while it runs is a
`KernelFault`. Only here does a launch also get its live buffers, outside which a kernel may not reach.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from portable.backend import Trace
from portable.backends.rocm.backend import TARGETS
from portable.errors import LaunchError, listed

_MOST_THREADS = 1024  # in one block, on every architecture
_MOST_BLOCKS = (2**31 - 1, 65535, 65535)


class EmulatedRuntime:
    """One emulated card of architecture `arch`. Methods may be called from any thread."""

    def __init__(self, arch: str):
        target = next((target for target in TARGETS if target.arch == arch), None)
        if target is None:
            known = listed(each.arch for each in TARGETS)
            raise LaunchError("an emulated card", f"{arch!r} cannot be emulated; {known} can")
        self.target = target
        self._handles = itertools.count(1)
        self._modules: dict[int, Any] = {}
        self._functions: dict[int, Any] = {}
        self._tracing = threading.local()

    def device_count(self) -> int:
        return 1

    def properties(self, index: int) -> dict[str, int]:
        """The figures that `runtime.ATTRIBUTES` names, of the card that is emulated; sizes in bytes."""
        self._check_index(index)
        return {
            "l2_bytes": self.target.l2_bytes,
            "max_threads": _MOST_THREADS,
            "multiprocessors": self.target.multiprocessors,
            "shared_memory": self.target.shared_memory,
            "warp_size": self.target.warp_size,
        }

    @contextmanager
    def on_device(self, index: int) -> Iterator[None]:
        """There is one card, and it is always the current one."""
        self._check_index(index)
        yield

    def load_module(self, image: bytes) -> int:
        """Read a code object of this architecture; answers the module's handle."""
        from portable.backends.rocm.emulator.code_object import CodeObject
        from portable.backends.rocm.emulator.faults import CodeObjectError

        doing = f"loading its {len(image)} bytes"
        try:
            code = CodeObject(bytes(image))
        except CodeObjectError as error:
            raise LaunchError("a code object", f"{doing}: {error}") from error
        if code.arch != self.target.arch:
            raise LaunchError("a code object", f"{doing}: it is for {code.arch}; this is {self.target}")
        handle = next(self._handles)
        self._modules[handle] = code
        return handle

    def unload_module(self, module: int) -> None:
        if self._modules.pop(module, None) is None:
            raise LaunchError("a code object", f"unloading it: there is no module {module}")
        for function, (owner, _) in list(self._functions.items()):
            if owner == module:
                del self._functions[function]

    def get_function(self, module: int, name: str) -> int:
        code = self._modules.get(module)
        if code is None:
            raise LaunchError(name, f"finding it in its code object: there is no module {module}")
        kernel = code.kernels.get(name)
        if kernel is None:
            reason = f"finding it in its code object, which has {listed(code.kernels)}"
            raise LaunchError(name, reason)
        handle = next(self._handles)
        self._functions[handle] = (module, kernel)
        return handle

    def kernel(self, function: int, name: str = "a kernel") -> Any:
        """The `code_object.Kernel` behind a handle."""
        try:
            return self._functions[function][1]
        except KeyError:
            raise LaunchError(name, f"there is no function {function}; was its module unloaded?") from None

    def set_dynamic_lds(self, index: int, nbytes: int, name: str) -> None:
        """Raise LaunchError if the card cannot give a block `nbytes` of dynamic LDS."""
        most = self.properties(index)["shared_memory"]
        if nbytes > most:
            raise LaunchError(name, f"it asks for {nbytes} bytes of LDS; a block has {most}")

    def launcher(
        self,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        kernarg: bytearray,
        name: str = "a kernel",
    ) -> Callable[[int], None]:
        """A callable `(stream)` that launches with what `kernarg` holds by then."""
        return lambda stream: self.launch(function, grid, block, shared, stream, kernarg, name)

    def launch(
        self,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        stream: int,
        kernarg: bytes | bytearray,
        name: str = "a kernel",
        *,
        buffers: Sequence[Any] = (),
    ) -> None:
        """Run `grid` blocks to their end; `buffers` are `emulator.launch.Buffer`s. `stream` is ignored."""
        from portable.backends.rocm.emulator.launch import launch

        kernel = self.kernel(function, name)
        self._check_sizes(kernel, grid, block, shared, name)
        needed = _explicit_bytes(kernel)
        if len(kernarg) < needed:
            raise LaunchError(name, f"it reads {needed} bytes of arguments; {len(kernarg)} came")
        traces = getattr(self._tracing, "traces", None)
        found = launch(kernel, grid, block, shared, bytes(kernarg), buffers, count=traces is not None)
        if traces is not None and found is not None:
            traces.append(Trace(name, grid, list(found.rows()), list(found.lines())))

    @contextmanager
    def trace(self) -> Iterator[list[Trace]]:
        """A block whose launches in this thread are counted."""
        former = getattr(self._tracing, "traces", None)
        self._tracing.traces = traces = []
        try:
            yield traces
        finally:
            self._tracing.traces = former

    def _check_index(self, index: int) -> None:
        if index != 0:
            raise LaunchError(f"device {index}", "choosing it: there is one emulated card, number 0")

    def _check_sizes(self, kernel: Any, grid: Any, block: Any, shared: int, name: str) -> None:
        what = f"grid {tuple(grid)}, block {tuple(block)}, {shared} bytes of LDS"
        if not all(0 < size <= most for size, most in zip(grid, _MOST_BLOCKS, strict=True)):
            raise LaunchError(name, f"{what}: no card takes such a grid")
        threads = block[0] * block[1] * block[2]
        if not 0 < threads <= min(_MOST_THREADS, kernel.max_threads or _MOST_THREADS):
            raise LaunchError(name, f"{what}: it is built for at most {kernel.max_threads} threads a block")
        if not 0 <= shared + kernel.lds <= self.target.shared_memory:
            most = self.target.shared_memory
            raise LaunchError(name, f"{what}: with {kernel.lds} static ones; a block has {most}")


def _explicit_bytes(kernel: Any) -> int:
    """Where the arguments end that a caller packs; the hidden ones after them are the launch's own."""
    explicit = [each for each in kernel.arguments if not each.get(".value_kind", "").startswith("hidden_")]
    return max((each.get(".offset", 0) + each.get(".size", 0) for each in explicit), default=0)


@functools.cache
def runtime(arch: str) -> EmulatedRuntime:
    """The process's emulated card of one architecture."""
    return EmulatedRuntime(arch)
