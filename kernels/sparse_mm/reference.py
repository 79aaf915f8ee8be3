"""The meaning of sparse_mm and sparse_scaled_mm, in float64 on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PLACES = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
"""Of the two values of a group of four: the first place, the second."""


def places(meta: Tensor) -> Tensor:
    """The columns of w that the values are of, int64: of meta [N, J] they are [N, 4 * J]."""
    bits = torch.stack([meta >> shift & 3 for shift in (0, 2, 4, 6)], -1).flatten(-2).long()
    first = 4 * torch.arange(2 * meta.shape[-1], device=meta.device)
    return bits + first.repeat_interleave(2)


def dense(values: Tensor, meta: Tensor) -> Tensor:
    """w [N, K] in values' dtype."""
    held = values.view(torch.uint8) if values.dtype.itemsize == 1 else values  # torch moves few of fp8
    w = held.new_zeros(len(held), 2 * held.shape[1])
    return w.scatter(1, places(meta), held).view(values.dtype)


def sparse_mm(x: Tensor, values: Tensor, meta: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x @ w.T + bias over the last dimension."""
    y = x @ dense(values, meta).T
    return y if bias is None else y + bias


def error_scale(x: Tensor, values: Tensor, meta: Tensor, bias: Tensor | None = None) -> dict[str, Tensor]:
    """The root of the sum of squares of the products, and |bias|."""
    spread = (x.square() @ dense(values, meta).square().T).sqrt()
    return {"y": spread if bias is None else spread + bias.abs()}


def sparse_scaled_mm(
    mat_a: Tensor, values: Tensor, meta: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None
) -> Tensor:
    """c = (mat_a @ w.T) * scale_a * scale_b + bias; scale_a is [M, 1], scale_b [1, N]."""
    c = mat_a @ dense(values, meta).T * scale_a * scale_b
    return c if bias is None else c + bias


def scaled_error_scale(
    mat_a: Tensor, values: Tensor, meta: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None
) -> dict[str, Tensor]:
    """The root of the sum of squares of the scaled products, and |bias|."""
    spread = error_scale(mat_a, values, meta)["y"] * (scale_a * scale_b).abs()
    return {"c": spread if bias is None else spread + bias.abs()}


def derived(axes: dict[str, int], bits: Any) -> dict[str, Tensor]:
    """Metadata of a case: any pair of places in each group of four."""
    nibbles = torch.tensor([first + 4 * second for first, second in PLACES])
    drawn = torch.from_numpy(bits.below(len(PLACES), axes["N"] * axes["J"] * 2))
    found = nibbles[drawn].reshape(axes["N"], axes["J"], 2)
    return {"meta": found[..., 0] + 16 * found[..., 1]}
