"""Arguments that the public functions share: a window as the op takes it, and sinks in the op's dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.errors import ParameterError

Window = int | tuple[int | None, int | None] | None


def normalize_window(op: str, window: Any, causal: bool) -> tuple[int | None, int | None]:
    """How many keys a query sees to the left and to the right of its own; None is no limit."""
    if window is None:
        return None, None
    if isinstance(window, int) and not isinstance(window, bool) and window >= 0:
        return window, 0 if causal else window
    pair = window if isinstance(window, (tuple, list)) and len(window) == 2 else None
    if pair is None or not all(each is None or (type(each) is int and each >= -1) for each in pair):
        expected = "a number of keys, a pair of them (left, right) in which None is no limit, or None"
        raise ParameterError(op, "window", window, expected)
    left, right = (None if each == -1 else each for each in pair)
    return left, right


def cast_sinks(sinks: Any, q: Any) -> Any:
    """Sinks in the type of the statistics, float32 or for float64 its own."""
    if not isinstance(sinks, Tensor) or not isinstance(q, Tensor):
        return sinks  # the op's checks name what is wrong
    return sinks.to(torch.float64 if q.dtype == torch.float64 else torch.float32)
