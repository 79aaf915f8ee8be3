"""`portable.emulated`: anybody's GPU program on an emulated GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from portable.backend import Backend, Programs
from portable.errors import BackendError, listed, nearest
from portable.runtime import detect
from portable.spec import registry

EXTENTS = ("storage", "view")


def backend(arch: str) -> Backend:
    """The backend of the emulated GPU of architecture `arch`, whichever vendor's it is.

    Raises BackendError for an architecture that cannot be emulated, or not on this machine."""
    able: list[str] = []
    for vendor, folder in registry.vendors().items():
        cls = detect.backend_class(vendor)
        environ = {**os.environ, f"PORTABLE_{vendor.upper()}_ARCH": arch}
        machine = replace(detect.this_machine(), environ=environ)
        found = cls.emulation(machine)
        if found is None:
            continue
        known = [target.arch for target in cls(folder).targets()]
        able += known
        if arch in known:
            if not found.usable:
                raise BackendError(f"{arch} cannot be emulated here: {found.reason}")
            return cls(folder).emulated(machine)
    problem = f"{arch!r} names no GPU that can be emulated; expected one of {listed(able)}"
    raise BackendError(problem, nearest(str(arch), able).strip())


@contextmanager
def emulated(arch: str, *, extents: str = "storage", races: bool = False) -> Iterator[Programs]:
    """Run programs that were written for a GPU on an emulated one, with none there.

        with portable.emulated("gfx942") as run:
            x = torch.randn(1000, device="cuda")
            kernel[grid](x, ...)
        print(run.header, run.launches, run.fidelity())

    Every Triton kernel that this process launches within the block, `kernel[grid](...)` with autotuners,
    heuristics and hooks, is compiled for `arch` and executed by the emulator, on the CPU. device="cuda" is
    CPU memory and torch.cuda answers for the emulated GPU, for the thread that entered; torch's own operators
    run on the CPU. Nothing is timed: an autotuner takes the first configuration that fits, and the others are
    not compiled. CPU tensors may be passed to a kernel too. Calls of portable's own ops run on the emulated
    GPU as well; their launches are not in `run`. Everything is put back at the end.

    `arch` is an architecture as `portable check --target` lists them. A kernel may access all the storage of
    a tensor that it is given, or with `extents="view"` from its first element to its last. With `races` those
    of workgroups in global memory are looked for as well, which takes longer. What is undefined
    raises LaunchError with the kernel's source line, and is in `run.findings`. Raises BackendError for an
    architecture that cannot be emulated."""
    if extents not in EXTENTS:
        raise BackendError(f"extents={extents!r}: expected one of {listed(EXTENTS)}")
    emulating, former = backend(arch), detect.selection()
    kinds = (emulating.device_type, detect.backend_class(emulating.name).device_type)  # memory, and its name
    detect.reset(detect.Selection(dict.fromkeys(kinds, emulating), former.detections))
    try:
        with emulating.programs(extents, races) as run:
            yield run
    finally:
        detect.reset(former)
