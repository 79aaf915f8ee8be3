"""The errors of the emulator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from portable.errors import LaunchError, PortableError


class EmulatorError(PortableError, RuntimeError):
    """The base of the emulator's errors."""


class CodeObjectError(EmulatorError, ValueError):
    """A code object that the emulator cannot run: damaged, for another GPU, or with an instruction that the
    emulator does not support (the message names it)."""


class KernelFault(LaunchError, EmulatorError):
    """A kernel did something undefined, which hardware might not have reported.

    Facts: kind (one of KINDS), kernel, detail, source ("file:line"), path (of that file, as the compiler was
    given it), inlined_at (source lines of the calls
    through which `source` was inlined, innermost first; empty if it was not inlined), instruction, pc,
    workgroup, wave, lane, address. A fact that does not apply is None."""

    KINDS = (
        "out-of-bounds",
        "misaligned",
        "uninitialised",
        "lds-race",
        "barrier",
        "budget",
        "inactive-lane",
        "unsupported",
        "trap",
        "unwaited",
        "rounding",  # `warned` raises it where nobody listens
        "global-race",
        "benign-race",  # never raised
    )
    kind: str
    kernel: str
    detail: str
    source: str | None
    path: str | None
    inlined_at: tuple[str, ...]
    instruction: str | None
    pc: int | None
    workgroup: tuple[int, int, int] | None
    wave: int | None
    lane: int | None
    address: int | None

    def __init__(self, kind: str, kernel: str, detail: str, **where: Any) -> None:
        assert kind in self.KINDS, kind
        names = ("source", "path", "instruction", "pc", "workgroup", "wave", "lane", "address")
        facts = {name: where.get(name) for name in names}
        facts["inlined_at"] = tuple(where.get("inlined_at") or ())
        place = []
        if facts["source"]:
            place.append(f"at {facts['source']}")
            place += [f"inlined at {line}" for line in facts["inlined_at"]]
        if facts["instruction"]:
            place.append(
                f"in `{facts['instruction']}`" + ("" if facts["pc"] is None else f" ({facts['pc']:#x})")
            )
        for name in ("workgroup", "wave", "lane"):
            if facts[name] is not None:
                place.append(f"{name} {facts[name]}")
        if facts["address"] is not None:
            place.append(f"address {facts['address']:#x}")
        message = f"{kernel}: {kind}: {detail}" + (f"\n  {', '.join(place)}" if place else "")
        PortableError.__init__(self, message, kind=kind, kernel=kernel, detail=detail, **facts)


_listener: ContextVar[Callable[[KernelFault], None] | None] = ContextVar("listener", default=None)


@contextmanager
def warnings_to(listener: Callable[[KernelFault], None]) -> Iterator[None]:
    """A context in which `listener` is called with what `warned` is."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def warned(fault: KernelFault) -> None:
    """Tell of something that a launch did that is no fault of every kernel. Where nobody listens, raises what
    is defined only up to rounding (of this package's own kernels it is a fault), and warns of a race of
    which nothing comes."""
    listener = _listener.get()
    if listener is not None:
        listener(fault)
    elif fault.kind == "benign-race":
        warnings.warn(str(fault), RuntimeWarning, stacklevel=2)
    else:
        raise fault
