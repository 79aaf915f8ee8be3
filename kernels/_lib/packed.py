"""Gate and up in one tensor's last dimension, as ops over pairs of them take it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from portable.dispatch.arguments import check_tensor
from portable.errors import RankError, ShapeError


def pairs(function: str, x: Any, dim: int) -> Tensor:
    """A view of x, (..., 2 N), as (..., 2, N) for `dim` -2, [gate | up], or as (..., N, 2) for -1,
    interleaved.

    Raises NotATensorError, RankError or ShapeError of `function`, naming x.
    """
    check_tensor(function, "x", x)
    if x.dim() == 0:
        raise RankError(function, "x", 0, "at least 1: (..., 2 N)")
    half, odd = divmod(x.shape[-1], 2)
    if odd:
        raise ShapeError(function, "x", tuple(x.shape), "an even last dimension: gate and up")
    return x.unflatten(-1, (2, half) if dim == -2 else (half, 2))
