"""The meaning of rope_qkv and of its gradient, in float64 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels.rope import reference as rope


def rope_qkv(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None,
    *, interleaved: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """rope of q and k, and a copy of v."""
    return *rope.rope(q, k, cos, sin, positions, interleaved=interleaved), v.clone()


def error_scale(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None,
    *, interleaved: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    """rope's; v is exact."""
    found = rope.error_scale(q, k, cos, sin, positions, interleaved=interleaved)
    return found | {"v_copied": torch.zeros_like(v)}


def rope_qkv_backward(
    dq_rotated: Tensor, dk_rotated: Tensor, dv_copied: Tensor, cos: Tensor, sin: Tensor,
    positions: Tensor | None = None, *, interleaved: bool = False,
) -> Tensor:  # fmt: skip
    """The gradients of q, k and v, one behind the other in every token."""
    given = dq_rotated, dk_rotated, dv_copied, cos, -sin, positions
    return torch.cat(rope_qkv(*given, interleaved=interleaved), 2)


def error_scale_backward(
    dq_rotated: Tensor, dk_rotated: Tensor, dv_copied: Tensor, cos: Tensor, sin: Tensor,
    positions: Tensor | None = None, *, interleaved: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    """As of rope_qkv."""
    given = dq_rotated, dk_rotated, dv_copied, cos, sin, positions
    return {"dqkv": torch.cat(list(error_scale(*given, interleaved=interleaved).values()), 2)}
