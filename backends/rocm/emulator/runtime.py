"""The runtime of an emulated GPU: the methods of `portable.backends.rocm.runtime.Runtime`.

One device per architecture, no streams: a kernel has finished when `launch` returns. Errors of the HIP
runtime are raised with the same class; an error of the running kernel is a `KernelFault`. Unlike on
hardware, `launch` also takes the live buffers; the kernel may access nothing outside them.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from portable.backend import Modelled, Trace
from portable.backends.rocm.backend import TARGETS
from portable.errors import LaunchError, listed

_MOST_THREADS = 1024  # in one block, on every architecture
_MOST_BLOCKS = (2**31 - 1, 65535, 65535)


RACES_VARIABLE = "PORTABLE_EMULATOR_RACES"
"""An environment variable: 1 has races of workgroups in global memory looked for, also in this package's own
launches."""


class EmulatedRuntime:
    """One emulated GPU of architecture `arch`. Methods may be called from any thread. `global_races`: whether
    races of workgroups in global memory are looked for, in launches of more than one. `recorder` gets every
    launch, as a call that makes it, instead of its being made, while a graph is captured."""

    def __init__(self, arch: str):
        target = next((target for target in TARGETS if target.arch == arch), None)
        if target is None:
            known = listed(each.arch for each in TARGETS)
            raise LaunchError("an emulated GPU", f"{arch!r} cannot be emulated; {known} can")
        self.target = target
        self._handles = itertools.count(1)
        self._modules: dict[int, Any] = {}
        self._functions: dict[int, Any] = {}
        self._tracing = threading.local()
        self.recorder: Callable[[Callable[[], Any]], Any] | None = None
        self.global_races = os.environ.get(RACES_VARIABLE, "").strip() == "1"

    @contextmanager
    def global_races_if(self, wanted: bool) -> Iterator[None]:
        """A context in which races of workgroups in global memory are looked for, if `wanted`."""
        former = self.global_races
        self.global_races = former or wanted
        try:
            yield
        finally:
            self.global_races = former

    def device_count(self) -> int:
        return 1

    def properties(self, index: int) -> dict[str, int]:
        """The attributes that `runtime.ATTRIBUTES` names, of the emulated GPU; sizes in bytes."""
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
        """Does nothing: there is one device, which is always current."""
        self._check_index(index)
        yield

    def load_module(self, image: bytes) -> int:
        """Load a code object of this architecture; returns the module's handle."""
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

    def module(self, module: int, name: str = "a code object") -> Any:
        """The `code_object.CodeObject` behind a handle; `name` is what is looked for in it."""
        code = self._modules.get(module)
        if code is None:
            raise LaunchError(name, f"finding it in its code object: there is no module {module}")
        return code

    def get_function(self, module: int, name: str) -> int:
        code = self.module(module, name)
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
        """Raise LaunchError if the GPU has less than `nbytes` of LDS per workgroup."""
        most = self.properties(index)["shared_memory"]
        if nbytes > most:
            raise LaunchError(name, f"it needs {nbytes} bytes of LDS; a block has {most}")

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
        cooperative: bool = False,
    ) -> None:
        """Run a kernel over `grid` blocks; `buffers` are `emulator.launch.Buffer`s. `stream` is ignored. The
        blocks of a `cooperative` launch, which may wait for one another, are all held at once and run in
        turn: at most `most_at_once`."""
        from portable.backends.rocm.emulator.launch import KernelLaunch, launch

        __tracebackhide__ = True
        if self.recorder is not None:
            given = (grid, block, shared, stream, bytes(kernarg), name)
            options = {"buffers": buffers, "cooperative": cooperative}
            self.recorder(functools.partial(self.launch, function, *given, **options))
            return
        kernel = self.kernel(function, name)
        self._check_sizes(kernel, grid, block, shared, name)
        if cooperative:
            self._check_cooperative(kernel, grid, block, shared, name)
        needed = _explicit_bytes(kernel)
        if len(kernarg) < needed:
            raise LaunchError(name, f"it reads {needed} bytes of arguments; {len(kernarg)} were given")
        races = self.global_races and grid != (1, 1, 1)
        given = KernelLaunch(kernel, grid, block, shared, bytes(kernarg), buffers, cooperative, races)
        modelled = getattr(self._tracing, "modelled", None)
        if modelled is not None:
            from portable.backends.rocm.emulator import timing

            modelled.append(timing.model(given))
            return
        traces = getattr(self._tracing, "traces", None)
        counters = launch(given, count=traces is not None)
        if traces is not None and counters is not None:
            lines = counters.by_source_line()
            traces.append(Trace(name, grid, counters.rows(), lines, counters.figures(), counters.bound()))

    @contextmanager
    def trace(self) -> Iterator[list[Trace]]:
        """A context in which the launches of this thread are counted."""
        former = getattr(self._tracing, "traces", None)
        self._tracing.traces = traces = []
        try:
            yield traces
        finally:
            self._tracing.traces = former

    @contextmanager
    def model(self) -> Iterator[list[Modelled]]:
        """A context in which the launches of this thread are timed by the model; a few of their workgroups
        run."""
        former = getattr(self._tracing, "modelled", None)
        self._tracing.modelled = found = []
        try:
            yield found
        finally:
            self._tracing.modelled = former

    def most_at_once(self, kernel: Any, block: tuple[int, int, int], shared: int) -> int:
        """Blocks of a kernel that the whole GPU holds at once, by registers, LDS and places for waves."""
        return kernel.workgroups(shared, block[0] * block[1] * block[2]) * self.target.multiprocessors

    def _check_cooperative(self, kernel: Any, grid: Any, block: Any, shared: int, name: str) -> None:
        blocks, most = grid[0] * grid[1] * grid[2], self.most_at_once(kernel, block, shared)
        if blocks > most:
            raise LaunchError(name, f"a cooperative launch of {blocks} blocks; {most} can be held at once")
        if getattr(self._tracing, "modelled", None) is not None:
            raise LaunchError(name, "a cooperative launch, whose blocks wait for each other, is not modelled")

    def _check_index(self, index: int) -> None:
        if index != 0:
            raise LaunchError(f"device {index}", "there is one emulated GPU, device 0")

    def _check_sizes(self, kernel: Any, grid: Any, block: Any, shared: int, name: str) -> None:
        what = f"grid {tuple(grid)}, block {tuple(block)}, {shared} bytes of LDS"
        if not all(0 < size <= most for size, most in zip(grid, _MOST_BLOCKS, strict=True)):
            raise LaunchError(name, f"{what}: the grid is larger than any GPU supports")
        threads = block[0] * block[1] * block[2]
        if not 0 < threads <= min(_MOST_THREADS, kernel.max_threads or _MOST_THREADS):
            raise LaunchError(name, f"{what}: it is built for at most {kernel.max_threads} threads per block")
        if not 0 <= shared + kernel.lds <= self.target.shared_memory:
            most = self.target.shared_memory
            raise LaunchError(name, f"{what}, plus {kernel.lds} static bytes; a block has {most}")


def _explicit_bytes(kernel: Any) -> int:
    """Bytes of the explicit arguments; `launch` fills in the hidden ones after them."""
    explicit = [each for each in kernel.arguments if not each.get(".value_kind", "").startswith("hidden_")]
    return max((each.get(".offset", 0) + each.get(".size", 0) for each in explicit), default=0)


@functools.cache
def runtime(arch: str) -> EmulatedRuntime:
    """The process's emulated GPU of one architecture."""
    return EmulatedRuntime(arch)
