"""Choices that a user pins: `PORTABLE_BACKEND`, `PORTABLE_IMPL` and `with portable.using(...)`, which also
says whether rows are to have the same bits in every batch (`batch_invariant`)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from portable.errors import ArgumentError, PinError, listed, nearest

BATCH_INVARIANT = "batch_invariant"


class Pins(dict[str, Any]):
    """Implementations by op, and under `BATCH_INVARIANT` a bool; never changed. Equal ones are one object
    (`_pins`), which a cache's key can hold."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__  # type: ignore[assignment]


_shared: dict[frozenset[tuple[str, Any]], Pins] = {}


def _pins(pins: Mapping[str, Any]) -> Pins:
    return _shared.setdefault(frozenset(pins.items()), Pins(pins))


_active: ContextVar[Pins] = ContextVar("portable_pins", default=_pins({}))  # noqa: B039
active_pins = _active.get
"""What `using` has pinned in this context: hashable, for `restored` and for a cache's key."""


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
    _within.clear()


def pin(op: str) -> str | None:
    """The implementation (or language) pinned for `op`, the innermost `using` first."""
    global _environment
    active = _active.get()
    if active and op in active:
        return active[op]
    if _environment is None:
        found = parse_pins(os.environ.get("PORTABLE_IMPL", ""))
        for name, implementation in found.items():
            _check_op(name, implementation, "PORTABLE_IMPL")
        _environment = MappingProxyType(found)
    return _environment.get(op)


def batch_invariant() -> bool:
    """Whether only implementations run that give a row the same bits whatever rows are beside it."""
    return _active.get().get(BATCH_INVARIANT, False)


def source(op: str) -> str:
    """What pins `op`, for messages."""
    return "portable.using" if op in _active.get() else "PORTABLE_IMPL"


@contextlib.contextmanager
def restored(pins: Pins) -> Iterator[None]:
    """Pins that held elsewhere (`active_pins`) hold within the block, in this thread."""
    token = _active.set(pins)
    try:
        yield
    finally:
        _active.reset(token)


class using(contextlib.ContextDecorator):
    """Pin implementations by name or language within a block: `with portable.using(softmax="triton"):`.

    Holds for this thread or task, and for the backward passes of its calls. An internal op
    (`softmax_backward`) follows its op's language unless pinned itself. With `batch_invariant=True` only
    implementations run whose specs promise that a row, or a sequence, has the same bits whatever is beside
    it and however many are; a block within may say False. A call that none of them computes raises
    NoImplementationError, or PinError where an implementation is pinned that promises nothing.

    Raises ArgumentError for a `batch_invariant` that is not True or False, and PinError for an op or
    implementation that is not there; a pinned one that cannot run a call raises PinError at that call.
    """

    def __init__(self, **pins: str | bool):
        asked = pins.get(BATCH_INVARIANT, False)
        if not isinstance(asked, bool):
            raise ArgumentError("using", BATCH_INVARIANT, asked, "True or False")
        self._given = pins

    def __enter__(self) -> None:
        outer = _active.get()
        inside = self._inside(outer)
        _entered.set((*_entered.get(), (self, outer)))
        _active.set(inside)

    def __exit__(self, *_: object) -> None:
        entered = _entered.get()
        if entered and entered[-1][0] is self:
            _active.set(entered[-1][1])
            _entered.set(entered[:-1])
            return
        # Another was entered since, and is left later: as a generator may do that pins around its `yield`.
        at = next((i for i in reversed(range(len(entered))) if entered[i][0] is self), None)
        if at is None:
            why = "its block was left in another thread or task than it was entered in"
            op, pinned = next(iter(self._given.items()), ("", ""))
            raise PinError(op, str(pinned), why, "portable.using")
        kept, inside = entered[:at], entered[at][1]
        for each in [block for block, outer in entered[at + 1 :]]:
            kept, inside = (*kept, (each, inside)), each._inside(inside)
        _entered.set(kept)
        _active.set(inside)

    def _inside(self, outer: Pins) -> Pins:
        """What holds within the block, where `outer` holds around it."""
        found = _within.get((outer, *self._given.items()))
        if found is None:
            _check_pins(self._given)
            found = _pins({**outer, **self._given})
            _within[(outer, *self._given.items())] = found
        return found


_entered: ContextVar[tuple[tuple[using, Pins], ...]] = ContextVar("portable_using", default=())
"""The blocks that this thread or task is in, each with what held around it: one object may be in several."""
_within: dict[tuple[Any, ...], Pins] = {}
"""Checked pins by what held outside them and what they add."""


def _check_op(op: str, implementation: str, source: str) -> None:
    from portable.spec import registry

    if op not in registry.op_folders():
        hint = nearest(op, registry.op_folders())
        raise PinError(op, implementation, f"there is no op of that name.{hint}", source)


def _check_pins(pins: Mapping[str, Any]) -> None:
    from portable.spec import registry

    for op, implementation in pins.items():
        if op == BATCH_INVARIANT:
            continue
        _check_op(op, implementation, "portable.using")
        spec = registry.spec(op)
        known = {impl.name for impl in spec.implementations}
        known |= {language for impl in spec.implementations for language in impl.languages}
        if implementation not in known:
            raise PinError(op, str(implementation), f"the op has {listed(sorted(known))}", "portable.using")
