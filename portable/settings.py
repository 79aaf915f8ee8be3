"""Choices that a user pins: `PORTABLE_BACKEND`, `PORTABLE_IMPL` and `with portable.using(...)`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType

from portable.errors import PinError, listed

_NONE: Mapping[str, str] = MappingProxyType({})
_scoped: ContextVar[Mapping[str, str]] = ContextVar("portable_pins", default=_NONE)


def scope() -> int:
    """What `using` has pinned here, as part of a memo's key: 0 outside any `using`, which is the
    common case and must cost little; equal pins answer equal numbers."""
    pins = _scoped.get()
    return 0 if pins is _NONE else hash(frozenset(pins.items()))


def parse_pins(text: str) -> dict[str, str]:
    """`"softmax:triton,swiglu:torch"` as a mapping. Raises PinError for anything else."""
    pins: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        op, colon, implementation = (piece.strip() for piece in part.partition(":"))
        if not (op and colon and implementation):
            raise PinError(op or part, part, "it is not of the form op:implementation")
        pins[op] = implementation
    return pins


_environment: Mapping[str, str] | None = None


def reload() -> None:
    """Read `PORTABLE_IMPL` again at the next call; it is otherwise read once."""
    global _environment
    _environment = None


def pin(op: str) -> str | None:
    """The implementation (or language) pinned for `op`, the innermost `using` first."""
    global _environment
    scoped = _scoped.get()
    if scoped and op in scoped:
        return scoped[op]
    if _environment is None:
        _environment = MappingProxyType(parse_pins(os.environ.get("PORTABLE_IMPL", "")))
    return _environment.get(op)


def source(op: str) -> str:
    """What pins `op`, for messages."""
    return "portable.using" if op in _scoped.get() else "PORTABLE_IMPL"


def scoped() -> Mapping[str, str]:
    """What `using` has pinned here, for `restored`."""
    return _scoped.get()


@contextlib.contextmanager
def restored(pins: Mapping[str, str]) -> Iterator[None]:
    """Pins that held elsewhere (`scoped`) hold within the block, in this thread."""
    token = _scoped.set(pins)
    try:
        yield
    finally:
        _scoped.reset(token)


@contextlib.contextmanager
def using(**pins: str) -> Iterator[None]:
    """Pin implementations by name or language within a block: `with portable.using(softmax="triton"):`.

    Holds for this thread or task. A companion op (`softmax_backward`) follows its op's language unless
    pinned itself. Raises PinError for an op or implementation that is not there; a pinned
    implementation that cannot run a call raises PinError at that call.
    """
    from portable import catalog

    for op, implementation in pins.items():
        if op not in catalog.op_folders():
            raise PinError(op, implementation, "there is no op of that name", "portable.using")
        spec = catalog.spec(op)
        known = {impl.name for impl in spec.implementations}
        known |= {language for impl in spec.implementations for language in impl.languages}
        if implementation not in known:
            raise PinError(op, implementation, f"the op has {listed(sorted(known))}", "portable.using")
    with restored(MappingProxyType({**_scoped.get(), **pins})):
        yield
