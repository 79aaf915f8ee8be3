"""qk_norm_rope_kv_write in torch's operations: in float32 (float64 for float64), rounded once."""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels.kv_cache_write.torch_impl import kv_cache_write
from portable.kernels.qk_norm_rope_kv_write import reference


def qk_norm_rope_kv_write(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, k_cache: Tensor, v_cache: Tensor,
    slots: Tensor, positions: Tensor | None = None, q_weight: Tensor | None = None,
    k_weight: Tensor | None = None, *, eps: float = 1e-6, interleaved: bool = False,
) -> Tensor:  # fmt: skip
    """q rotated; k rotated and v are written."""
    wide = torch.promote_types(q.dtype, torch.float32)
    own, other = (None if each is None else each.to(wide) for each in (q_weight, k_weight))
    at = None if positions is None else positions.long()
    tables = cos.to(wide), sin.to(wide)
    rotated, keys = reference.rotated(
        q.to(wide), k.to(wide), own, other, *tables, at, eps=eps, interleaved=interleaved
    )
    keys = keys.to(k.dtype).flatten(0, 1)
    kv_cache_write(keys, v.flatten(0, 1), k_cache, v_cache, slots.flatten())
    return rotated.to(q.dtype)
