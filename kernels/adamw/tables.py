"""Tables of addresses on the device: made once for what they hold, and kept for graphs that read them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from portable.errors import LaunchError
from portable.kernels.adamw.chunks import CHUNK

MOST = 64
"""Tensors that are remembered; what changes most are the addresses of gradients."""
MOST_SPARE = 16

_made: OrderedDict[tuple[Any, ...], Tensor] = OrderedDict()
_spare: dict[int, list[Tensor]] = {}
"""Pinned memory of so many integers for what graphs copy, one for each table of that size."""
_read_by_graphs: list[Tensor] = []


def clear() -> None:
    """Forget all, also what graphs read."""
    for each in (_made, _spare, _read_by_graphs):
        each.clear()


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _pinned(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.int64, pin_memory=True)


def _remembered(key: tuple[Any, ...], device: torch.device, make: Callable[[], Tensor]) -> Tensor:
    """What `make` makes, once for each key and stream.

    A capture takes what any stream has made, as torch waits for all of them before. What is made in a capture
    is its graph's alone: it holds nothing before the graph runs. What a graph reads is kept, as nobody says
    when the graph is gone.
    """
    key = (*key, device)
    if _is_capturing(device):
        found = next((each for (_, *own), each in _made.items() if tuple(own) == key), None)
        found = make() if found is None else found
        _read_by_graphs.append(found)
        return found
    key = (_stream(device), *key)
    found = _made.get(key)
    if found is None:
        found = _made[key] = make()
        if len(_made) > MOST:
            _made.popitem(last=False)
    else:
        _made.move_to_end(key)
    return found


def number(value: float, device: torch.device) -> Tensor:
    """A number as a float32 tensor of one element on the device."""
    return _remembered(("number", value), device, lambda: torch.full((1,), value, device=device))


def chunks(values: tuple[int, ...], device: torch.device) -> Tensor:
    """The chunks of a table, int32. A capture finds those of the call before it: they follow from sizes."""
    return _remembered(("chunks", values), device, lambda: _copied(values, torch.int32, device))


def addresses(values: tuple[int, ...], device: torch.device) -> Tensor:
    """The tensors of a table, int64. Gradients of a graph are where those of the call before it were not."""
    size = len(values)
    found = _remembered(("addresses", size, values), device, lambda: _copied(values, torch.int64, device))
    if device.type == "cuda" and not _is_capturing(device):
        tables = sum(key[1:3] == ("addresses", size) for key in _made)
        if len(_spare.setdefault(size, [])) < min(tables, MOST_SPARE):
            _spare[size].append(_pinned(size))
    return found


def _copied(values: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Integers on the device, without waiting for it."""
    host = torch.tensor(values, dtype=dtype)
    if device.type != "cuda":
        return host
    if not _is_capturing(device):
        return host.pin_memory().to(device, non_blocking=True)
    # A graph copies the table each time that it runs, from memory that stays and was allocated before: an
    # allocation of pinned memory may not be captured.
    several = _spare.get(len(values)) if dtype == torch.int64 else None
    if not several:
        reason = "it has a table of addresses, and no call before the capture of this graph has made one"
        remedy = "Call it once with tensors of the same sizes before each capture"
        raise LaunchError("adamw", reason, remedy)
    pinned = several.pop()
    pinned.copy_(host)
    _read_by_graphs.append(pinned)
    return torch.empty(len(values), dtype=dtype, device=device).copy_(pinned, non_blocking=True)


def chunks_of(sizes: Sequence[int]) -> tuple[int, ...]:
    """Of tensors of these sizes, each chunk's tensor and first element, one after the other."""
    found: list[int] = []
    for row, size in enumerate(sizes):
        for start in range(0, size, CHUNK):
            found += (row, start)
    return tuple(found)
