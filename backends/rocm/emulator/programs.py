"""Programs written for a GPU on an emulated one: Triton's launches, its autotuners and `device="cuda"`."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch

from portable.backend import Programs
from portable.backends.rocm.emulator import torch_gpu, torch_library, triton_driver
from portable.backends.rocm.emulator.found import listener
from portable.plan import Device


@contextmanager
def programs(device: Device, extents: str, races: bool) -> Iterator[Programs]:
    """See `portable.emulated`. What is replaced in torch and Triton is put back at the end."""
    from triton.runtime import autotuner

    found = Programs(_header(device))
    patches = torch_gpu.Patches()
    with triton_driver.emulated(device.arch, extents, listener(found)) as driver:
        driver.torch_device = torch.device("cuda", 0)
        capability = driver.get_device_capability()
        with driver.runtime.global_races_if(races), torch_gpu.torch_gpu(device, capability, driver.runtime):
            driver.interface = torch.cuda
            _take_first_configs(patches, autotuner.Autotuner, found)
            library = torch.library.Library
            patches.set(library, "impl", torch_library.registered(library.impl))
            overload = torch._ops.OpOverload
            patches.set(overload, "redispatch", torch_library.redispatched(overload.redispatch))
            try:
                yield found
            finally:
                patches.undo()


def _header(device: Device) -> str:
    return (
        f"emulated {device.arch}: Triton's kernels run as its machine code on the CPU, not on a GPU; "
        f"device='cuda' is CPU memory, torch's own operators are the CPU's; no timings"
    )


def _take_first_configs(patches: torch_gpu.Patches, autotuner: Any, found: Programs) -> None:
    """Have Triton's autotuners take the first configuration that fits; the others are not compiled.

    What they choose is kept apart from what they measured on a GPU, in memory and on disk."""
    chosen: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
    run = autotuner.run
    fits: Counter[int] = Counter()

    @functools.wraps(run)
    def run_here(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        former, self.cache = self.cache, chosen.setdefault(self, {})
        fits[id(self)] = 0
        try:
            return run(self, *args, **kwargs)
        finally:
            self.cache = former

    def rank(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        """In place of times: 0 for the first configuration that fits, infinity for all others."""
        if fits[id(self)] or not _fits(self, config, args, meta):
            return [float("inf")] * 3
        fits[id(self)] = 1
        found.tuned[self.base_fn.__name__] += 1
        return [0.0] * 3

    def measure(self: Any, key: Any, configs: Any, bench: Any) -> bool:
        bench()
        return False

    patches.set(autotuner, "run", run_here)
    patches.set(autotuner, "_bench", rank)
    if hasattr(autotuner, "check_disk_cache"):
        patches.set(autotuner, "check_disk_cache", measure)


def _fits(tuner: Any, config: Any, args: Any, meta: Any) -> bool:
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime.errors import OutOfResources

    try:
        kernel = tuner.fn.run(*args, **{**meta, **config.all_kwargs(), "warmup": True})
        if hasattr(kernel, "_init_handles"):
            kernel._init_handles()
    except (OutOfResources, CompileTimeAssertionFailure):
        return False
    return True
