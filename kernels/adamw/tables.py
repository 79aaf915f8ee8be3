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

_made: OrderedDict[tuple[Any, ...], Tensor] = OrderedDict()
_spare: dict[tuple[torch.dtype, int], Tensor] = {}
_read_by_graphs: list[Tensor] = []


def clear() -> None:
    """Forget all, also what graphs read."""
    for each in (_made, _spare, _read_by_graphs):
        each.clear()


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _remembered(key: tuple[Any, ...], device: torch.device, make: Callable[[bool], Tensor]) -> Tensor:
    """What `make` makes, once for each key and stream. What is made while a graph is captured is the graph's
    alone: it holds nothing before the graph runs. What a graph reads is kept: nobody says when it is gone."""
    capturing = _is_capturing(device)
    key = (*key, device, _stream(device))
    found = _made.get(key)
    if found is None:
        found = make(capturing)
        if not capturing:
            _made[key] = found
            if len(_made) > MOST:
                _made.popitem(last=False)
    else:
        _made.move_to_end(key)
    if capturing:
        _read_by_graphs.append(found)
    return found


def number(value: float, device: torch.device) -> Tensor:
    """A number as a float32 tensor of one element on the device."""
    return _remembered(("number", value), device, lambda _: torch.full((1,), value, device=device))


def on_device(values: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Integers as a tensor on the device, without waiting for it."""

    def make(capturing: bool) -> Tensor:
        if device.type != "cuda":
            return torch.tensor(values, dtype=dtype, device=device)
        size = dtype, len(values)
        if not capturing:
            if size not in _spare:
                _spare[size] = torch.empty(len(values), dtype=dtype, pin_memory=True)
            return torch.tensor(values, dtype=dtype).pin_memory().to(device, non_blocking=True)
        # A graph copies the table each time that it runs, from memory that stays and was allocated before: an
        # allocation of pinned memory may not be captured.
        host = _spare.pop(size, None)
        if host is None:
            what, reason = (
                "adamw",
                "the tensors have a table of addresses, which no call before the capture has made",
            )
            raise LaunchError(
                what, reason, "Call it once, with as many tensors, before each capture of a graph"
            )
        host.copy_(torch.tensor(values, dtype=dtype))
        _read_by_graphs.append(host)
        return torch.empty(len(values), dtype=dtype, device=device).copy_(host, non_blocking=True)

    return _remembered((dtype, values), device, make)


def chunks_of(sizes: Sequence[int]) -> tuple[int, ...]:
    """Of tensors of these sizes, each chunk's tensor and first element, one after the other."""
    found: list[int] = []
    for row, size in enumerate(sizes):
        for start in range(0, size, CHUNK):
            found += (row, start)
    return tuple(found)
