"""Memory that shows what a kernel leaves unwritten and what it writes beside its own.

Inside `guarded_memory` every tensor that is allocated from Python (an op's outputs and workspaces) lies in
a buffer of its own, poisoned in every byte and with a band before and behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

BAND = 256
"""Bytes of a band; a tensor keeps its base on a boundary of as many."""
POISON = 0xFF
"""Every byte: a NaN in every floating type, and none that arithmetic gives; -1 in the integers."""


@dataclass
class Guards:
    """The buffers handed out so far."""

    _buffers: list[tuple[torch.Tensor, int]] = field(default_factory=list)

    def allocate(self, shape: Any, strides: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A poisoned tensor between two bands; it is no view, which autograd would treat differently."""
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
        size = extent * dtype.itemsize
        padded = -(-size // BAND) * BAND
        buffer = _EMPTY(padded + 2 * BAND, dtype=torch.uint8, device=device).fill_(POISON)
        self._buffers.append((buffer, BAND + size))
        inside = _EMPTY(0, dtype=dtype, device=device)
        return inside.set_(buffer.untyped_storage(), BAND // dtype.itemsize, shape, strides)

    def fault(self) -> str:
        """Where a band was written, in words; "" where none was."""
        for buffer, end in self._buffers:
            before = (buffer[:BAND] != POISON).nonzero()
            behind = (buffer[end:] != POISON).nonzero()
            for found, where in ((before - BAND, "before"), (behind, "behind")):
                if len(found):
                    place = int(found[0 if where == "behind" else -1])
                    edge = "end" if place >= 0 else "start"
                    return (
                        f"{len(found)} bytes {where} a tensor of {end - BAND} bytes that the op allocated"
                        f" were written, the nearest at byte {place:+d} from its {edge}"
                    )
        return ""


_EMPTY = torch.empty


@contextlib.contextmanager
def guarded_memory() -> Iterator[Guards]:
    """`torch.empty` and its kin give poisoned tensors between bands, in every thread, until the block ends.

    What torch's own C++ allocates, and tensors of no device's memory ("meta", fake ones), stay plain.
    """
    guards = Guards()

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
        def allocate(*args: Any, **options: Any) -> Any:
            plain = original(*args, **options)
            if (
                type(plain) is not torch.Tensor
                or plain.device.type == "meta"
                or plain.layout is not torch.strided
                or plain.requires_grad
                or options.get("out") is not None
                or options.get("pin_memory")
                or plain.dtype.is_complex
            ):
                return plain
            return guards.allocate(plain.shape, plain.stride(), plain.dtype, plain.device)

        return allocate

    with contextlib.ExitStack() as stack:
        for owner, name in (
            (torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"), (torch.Tensor, "new_empty")
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(owner, name, guarded(getattr(owner, name))))
        yield guards
