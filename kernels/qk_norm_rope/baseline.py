"""What a user of torch alone would call: the baseline of qk_norm_rope's throughput."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from portable.kernels.rope import baseline as rope


def qk_norm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor,
    positions: Tensor | None = None, *, eps: float = 1e-6, interleaved: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Two norms, then the rotations."""
    q, k = F.rms_norm(q, q.shape[-1:], q_weight, eps), F.rms_norm(k, k.shape[-1:], k_weight, eps)
    return rope.rope(q, k, cos, sin, positions, interleaved=interleaved)
