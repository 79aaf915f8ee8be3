"""The functions of modelling files that rotate queries and keys, by `portable.rope`.

A function is told from what it computes: it is run once on small tensors and compared with the two rotations
that `portable.rope` has. One that computes anything else is left alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import portable

_PARAMETERS = (
    ("q", "k", "cos", "sin", "unsqueeze_dim"),
    ("q", "k", "cos", "sin", "position_ids", "unsqueeze_dim"),
)


def replacement(original: Callable[..., Any]) -> tuple[Callable[..., Any] | None, str]:
    """A function to take the place of `original` and by what it computes, or None and why there is none."""
    names = tuple(inspect.signature(original).parameters)
    if names not in _PARAMETERS:
        return None, f"its parameters are {', '.join(names)}"
    if _agree(original, _half_split, 8):
        interleaved, partial = False, _agree(original, _half_split, 6)
    elif _agree(original, _interleaved, 8):
        interleaved, partial = True, False
    else:
        return None, "it computes another rotation than portable.rope of tables that hold every column twice"

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        if not _taken(q, k, cos, sin, unsqueeze_dim, partial):
            return original(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
        heads_first = unsqueeze_dim == 1
        if heads_first:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        columns = cos.shape[-1] // 2
        both = portable.rope(q, k, cos[..., :columns], sin[..., :columns], interleaved=interleaved)
        if interleaved:  # the function answers all first elements of the pairs, then all second ones
            both = tuple(each.unflatten(-1, (columns, 2)).transpose(-1, -2).flatten(-2) for each in both)
        return tuple(each.transpose(1, 2) for each in both) if heads_first else tuple(both)

    if len(names) == 5:
        return rotate, "portable.rope"

    def rotate_at(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Any = None, unsqueeze_dim: int = 1
    ) -> Any:
        return rotate(q, k, cos, sin, unsqueeze_dim)

    return rotate_at, f"portable.rope{', interleaved' if interleaved else ''}"


def _taken(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int, partial: bool) -> bool:
    """Whether `portable.rope` computes this call, in the dtype that torch's promotion gives."""
    if unsqueeze_dim not in (1, 2) or not q.dim() == k.dim() == cos.dim() + 1 == sin.dim() + 1 == 4:
        return False
    width = cos.shape[-1]
    if q.shape[-1] != k.shape[-1] or not (width == q.shape[-1] or (partial and width < q.shape[-1])):
        return False
    if len(q) != len(k) or len(cos) not in (1, len(q)) or sin.shape != cos.shape:
        return False
    if cos.requires_grad or sin.requires_grad or q.stride(-1) != 1 or k.stride(-1) != 1:
        return False
    return q.dtype == k.dtype == cos.dtype == sin.dtype and q.is_floating_point()


def _agree(original: Callable[..., Any], formula: Callable[..., Tensor], width: int) -> bool:
    """Whether `original` computes `formula` on heads of 8 columns and tables of `width`."""
    made = torch.Generator().manual_seed(0)
    with torch.no_grad(), torch.device("cpu"):
        q, k = (torch.randn(2, heads, 5, 8, generator=made, dtype=torch.float64) for heads in (3, 1))
        angle = torch.randn(2, 5, width // 2, generator=made, dtype=torch.float64)
        cos, sin = (torch.cat((each, each), -1) for each in (angle.cos(), angle.sin()))
        try:
            both = original(q, k, cos, sin)
            return len(both) == 2 and all(
                found.shape == given.shape
                and torch.allclose(found.double(), formula(given, angle[:, None]), atol=1e-6)
                for found, given in zip(both, (q, k), strict=True)
            )
        except Exception:  # a function of anybody's, on tensors that it may not take
            return False


def _half_split(x: Tensor, angle: Tensor) -> Tensor:
    columns = angle.shape[-1]
    a, b, rest = x.split((columns, columns, x.shape[-1] - 2 * columns), -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), rest), -1)


def _interleaved(x: Tensor, angle: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)
