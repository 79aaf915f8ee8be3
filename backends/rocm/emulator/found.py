"""What the launches of a program are entered into: `portable.backend.Programs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from portable.backend import Finding, Programs
from portable.backends.rocm.emulator import fidelity
from portable.backends.rocm.emulator.faults import KernelFault, warnings_to

Listener = Callable[[Any, "str | None"], AbstractContextManager[Any]]
"""Called with the kernel (`code_object.Kernel`) of a launch and the file of its source; the launch runs
within its result."""


def listener(found: Programs, shown: Callable[[str], str] = str) -> Listener:
    """Enters every launch, its kernel's instructions, its warning and its fault into `found`; the fault is
    raised on. `shown` is how a kernel's name is shown."""
    known: set[Any] = set()

    @contextmanager
    def listen(kernel: Any, file: str | None) -> Iterator[None]:
        found.launches[shown(kernel.name)] += 1
        if kernel.code not in known:
            known.add(kernel.code)
            for how, names in fidelity.instructions(kernel.code).items():
                found.instructions.setdefault(how, set()).update(names)
        try:
            with warnings_to(
                lambda told: found.warnings.append(_finding(told, file, shown(told.kernel), "warning"))
            ):
                yield
        except KernelFault as fault:
            found.findings.append(_finding(fault, file, shown(fault.kernel), "error"))
            raise

    return listen


def _finding(fault: KernelFault, file: str | None, kernel: str, level: str) -> Finding:
    """`file` is the kernel's own. Triton's cache knows a kernel by its text, so the path in its machine code
    may be that of a copy; lines of other files, which were inlined, are where the machine code says."""
    message = kernel + str(fault).removeprefix(fault.kernel)
    lines = [each.rpartition(":") for each in (fault.source, *fault.inlined_at) if each]
    if not lines:
        return Finding(fault.kind, kernel, message, None, None, level)
    (name, _, line), (own, _, _) = lines[0], lines[-1]
    path = file if file is not None and name == own else fault.path
    return Finding(fault.kind, kernel, message, path, int(line), level)
