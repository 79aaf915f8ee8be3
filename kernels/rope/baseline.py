"""What a user of torch alone would call: the baselines of rope's throughput."""

from __future__ import annotations

import torch
from torch import Tensor


def _rotated(x: Tensor, interleaved: bool) -> Tensor:
    """(-b, a) of every pair (a, b)."""
    if interleaved:
        return torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None,
    *, interleaved: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """x * cos + rotated(x) * sin, with tables that hold every column twice."""
    places = slice(q.shape[1]) if positions is None else positions

    def wide(table: Tensor) -> Tensor:
        rows = table[places].to(q.dtype)
        rows = rows.repeat_interleave(2, -1) if interleaved else torch.cat([rows, rows], -1)
        return rows.unsqueeze(-2)

    cosine, sine, columns = wide(cos), wide(sin), 2 * cos.shape[1]

    def own(x: Tensor) -> Tensor:
        part = x[..., :columns]
        part = part * cosine + _rotated(part, interleaved) * sine
        return part if columns == x.shape[-1] else torch.cat([part, x[..., columns:]], -1)

    return own(q), own(k)


def rope_backward(
    dq_rotated: Tensor, dk_rotated: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None,
    *, interleaved: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same with the opposite angles."""
    return rope(dq_rotated, dk_rotated, cos, -sin, positions, interleaved=interleaved)
