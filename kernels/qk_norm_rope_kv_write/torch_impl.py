"""qk_norm_rope_kv_write in torch's operations: in float32 (float64 for float64), rounded once."""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels.kv_cache_write.torch_impl import kv_cache_write
from portable.kernels.qk_norm_rope import reference


def qk_norm_rope_kv_write(
    q: Tensor, k: Tensor, v: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor,
    k_cache: Tensor, v_cache: Tensor, slots: Tensor, positions: Tensor | None = None,
    *, eps: float = 1e-6, interleaved: bool = False,
) -> Tensor:  # fmt: skip
    """q rotated; k rotated and v are written."""
    wide = torch.promote_types(q.dtype, torch.float32)
    heads = q.to(wide), k.to(wide), q_weight.to(wide), k_weight.to(wide)
    at = None if positions is None else positions.long()
    rotated, keys = reference.qk_norm_rope(
        *heads, cos.to(wide), sin.to(wide), at, eps=eps, interleaved=interleaved
    )
    keys = keys.to(k.dtype).flatten(0, 1)
    kv_cache_write(keys, v.flatten(0, 1), k_cache, v_cache, slots.flatten())
    return rotated.to(q.dtype)
