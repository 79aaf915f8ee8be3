"""What a user of torch alone would call: the baselines of rope_qkv's throughput."""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels.rope import baseline as rope


def rope_qkv(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None,
    *, interleaved: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """rope of q and k, and a copy of v."""
    return *rope.rope(q, k, cos, sin, positions, interleaved=interleaved), v.clone()


def rope_qkv_backward(
    dq_rotated: Tensor, dk_rotated: Tensor, dv_copied: Tensor, cos: Tensor, sin: Tensor,
    positions: Tensor | None = None, *, interleaved: bool = False,
) -> Tensor:  # fmt: skip
    """rope's gradients and that of v, joined."""
    rotated = rope.rope_backward(dq_rotated, dk_rotated, cos, sin, positions, interleaved=interleaved)
    return torch.cat([*rotated, dv_copied], 2)
