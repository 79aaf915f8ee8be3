"""The meaning of rope and of its gradient, in float64 on the CPU.

Magnitudes are the error scales of the accuracy bound: the terms of each result before they cancel.
"""

from __future__ import annotations

import torch
from torch import Tensor


def tables(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
    """cos and sin of every token of x (Z, M, heads, D), as (Z or 1, M, 1, C)."""
    if positions is None:
        return tuple(each[None, : x.shape[1], None] for each in (cos, sin))  # type: ignore[return-value]
    return cos[positions][:, :, None], sin[positions][:, :, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """The pairs of x (..., D) rotated by angles with cosine `cos` and sine `sin` (..., C); the rest as is."""
    pairs = cos.shape[-1]
    rotated, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if interleaved:
        a, b = rotated[..., 0::2], rotated[..., 1::2]
    else:
        a, b = rotated.chunk(2, -1)
    first, second = a * cos - b * sin, b * cos + a * sin
    if interleaved:
        return torch.cat([torch.stack([first, second], -1).flatten(-2), rest], -1)
    return torch.cat([first, second, rest], -1)


def rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None,
    *, interleaved: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(a * cos - b * sin, b * cos + a * sin) of every pair (a, b) of q and of k."""
    cos, sin = tables(q, cos, sin, positions)
    return rotate(q, cos, sin, interleaved), rotate(k, cos, sin, interleaved)


def _terms(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, interleaved: bool
) -> list[Tensor]:
    """The sums of the magnitudes of both products: |a * cos| + |b * sin|, |b * cos| + |a * sin|."""
    cos, sin = (each.abs() for each in tables(q, cos, sin, positions))
    scales = []
    for x in (q.abs(), k.abs()):
        first, second = rotate(x, cos, -sin, interleaved), rotate(x, cos, sin, interleaved)
        columns = torch.arange(x.shape[-1], device=x.device)
        is_first = columns % 2 == 0 if interleaved else columns < cos.shape[-1]
        scales.append(torch.where(is_first, first, second))
    return scales


def error_scale(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None,
    *, interleaved: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    """The scale of rope's error beyond |ref|: the two products, each rounded, of which one is subtracted."""
    return dict(zip(("q_rotated", "k_rotated"), _terms(q, k, cos, sin, positions, interleaved), strict=True))


def rope_backward(
    dq_rotated: Tensor, dk_rotated: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None,
    *, interleaved: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The transpose of a rotation is that by the opposite angle."""
    return rope(dq_rotated, dk_rotated, cos, -sin, positions, interleaved=interleaved)


def error_scale_backward(
    dq_rotated: Tensor, dk_rotated: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None,
    *, interleaved: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    """As of rope."""
    given = dq_rotated, dk_rotated, cos, sin, positions, interleaved
    return dict(zip(("dq", "dk"), _terms(*given), strict=True))
