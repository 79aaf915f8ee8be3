"""Guarded memory: detects elements that a kernel leaves unwritten, and writes outside its tensors.

Inside `guarded_memory` every tensor that is allocated from Python (an op's outputs and workspaces) is in
a separate buffer with a guard band on each side, and every byte of it is poisoned unless the call gives a
value (`torch.zeros`). Inside `guarded_memory(poisoned=False)` the tensor holds what memory happened to hold.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from portable.conformance.cases.inputs import FENCE_BYTES, fence_bytes

POISON = 0xFF
"""Every byte: a NaN in the floating types, and none that arithmetic gives; -1 in the integers."""
POISON_FNUZ = 0x80
"""The same in the 8-bit types whose only NaN is what others call -0."""
EMPTY = (
    (torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"), (torch, "empty_permuted"),
    (torch.Tensor, "new_empty"), (torch.Tensor, "new_empty_strided"),
)  # fmt: skip
FILLED = (
    (torch, "zeros"), (torch, "zeros_like"), (torch.Tensor, "new_zeros"),
    (torch, "full"), (torch, "full_like"), (torch.Tensor, "new_full"),
)  # fmt: skip
"""These keep their values."""


@dataclass
class Guards:
    """The buffers handed out so far."""

    poisoned: bool = True
    _buffers: list[tuple[torch.Tensor, int, int, int]] = field(default_factory=list)

    def allocate(self, shape: Any, strides: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A tensor between two bands; it is no view, which autograd would treat differently."""
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
        size = extent * dtype.itemsize
        band, padded = fence_bytes(shape, strides, dtype.itemsize), -(-size // FENCE_BYTES) * FENCE_BYTES
        poison = POISON_FNUZ if str(dtype).endswith("fnuz") else POISON
        buffer = _EMPTY(padded + 2 * band, dtype=torch.uint8, device=device)
        for part in (buffer,) if self.poisoned else (buffer[:band], buffer[band + size :]):
            part.fill_(poison)
        self._buffers.append((buffer, band, band + size, poison))
        inside = _EMPTY(0, dtype=dtype, device=device)
        return inside.set_(buffer.untyped_storage(), band // dtype.itemsize, shape, strides)

    def fault(self) -> str:
        """A description of where a band was written; "" where none was."""
        for buffer, band, end, poison in self._buffers:
            before = (buffer[:band] != poison).nonzero()
            behind = (buffer[end:] != poison).nonzero()
            for found, where in ((before - band, "before"), (behind, "behind")):
                if len(found):
                    place = int(found[0 if where == "behind" else -1])
                    edge = "end" if place >= 0 else "start"
                    return (
                        f"{len(found)} bytes {where} a tensor of {end - band} bytes that the op allocated"
                        f" were written, the nearest at byte {place:+d} from its {edge}"
                    )
        return ""


_EMPTY = torch.empty
_LOCK = threading.RLock()


@contextlib.contextmanager
def guarded_memory(poisoned: bool = True) -> Iterator[Guards]:
    """`torch.empty` and its kin give tensors between bands, poisoned or not, in every thread, until the block
    ends.

    What torch's own C++ and compiled graphs allocate stays plain, and so do tensors of no device's memory
    ("meta", fake ones) and those without elements, which `out=` may give new memory. Blocks may be
    nested; those of several threads wait for each other.
    """
    guards = Guards(poisoned)

    def guarded(original: Callable[..., Any], filled: bool) -> Callable[..., Any]:
        def allocate(*args: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **options)
            plain = original(*args, **options)
            own = options.get("out") is not None or options.get("pin_memory") or options.get("names")
            if own or not _guardable(plain):
                return plain
            like = plain.shape, plain.stride(), plain.dtype, plain.device
            if filled:
                return guards.allocate(*like).copy_(plain)
            del plain  # a large output need not be there twice
            return guards.allocate(*like)

        return allocate

    with _LOCK, contextlib.ExitStack() as stack:
        for functions, filled in ((EMPTY, False), (FILLED, True)):
            for owner, name in functions:
                wrapped = guarded(getattr(owner, name), filled)
                stack.enter_context(mock.patch.object(owner, name, wrapped))
        yield guards


def _guardable(plain: Any) -> bool:
    return (
        type(plain) is torch.Tensor
        and plain.numel() > 0
        and plain.device.type != "meta"
        and plain.layout is torch.strided
        and not plain.requires_grad
        and not plain.is_quantized
    )
