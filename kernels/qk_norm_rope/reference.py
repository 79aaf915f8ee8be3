"""The meaning of qk_norm_rope, in float64 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels.rope import reference as rope


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def qk_norm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor,
    positions: Tensor | None = None, *, eps: float = 1e-6, interleaved: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """rope of each head's x * rsqrt(mean(x^2) + eps) * weight."""
    q, k = _normed(q, q_weight, eps), _normed(k, k_weight, eps)
    return rope.rope(q, k, cos, sin, positions, interleaved=interleaved)


def error_scale(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor,
    positions: Tensor | None = None, *, eps: float = 1e-6, interleaved: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    """rope's, of the normalised heads: their errors are relative, as the mean sums squares."""
    q, k = _normed(q, q_weight, eps), _normed(k, k_weight, eps)
    return rope.error_scale(q, k, cos, sin, positions, interleaved=interleaved)
