"""attention_paged through torch; no tensor is written into, so torch can transform it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import torch_impl
from .paged import batches, gather


def attention_paged(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
    sinks: Tensor | None = None, *, window_left: int | None = None, **params: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse on any device, float32 inside or wider."""
    _, M, H, D = q.shape
    E = v_cache.shape[-1]
    per_key = 2 * H * (D + E + M) + 2 * M * H
    mask = {"causal": True, "window_left": window_left, "window_right": None}
    order = [torch.empty(0, dtype=torch.long, device=q.device)]
    o, lse = (
        [q.new_empty((0, M, H, E))],
        [q.new_empty((0, H, M), dtype=torch.promote_types(q.dtype, torch.float32))],
    )
    for sequences, pages, length in batches(k_cache, block_table, seq_lens, per_key):
        k, v = (gather(cache, pages, length) for cache in (k_cache, v_cache))
        found = torch_impl.attention(q[sequences].movedim(1, 2), k, v, None, sinks, **mask, **params)
        order.append(sequences)
        o.append(found[0].movedim(1, 2))
        lse.append(found[1])
    place = torch.cat(order).argsort()
    return torch.cat(o)[place], torch.cat(lse)[place]
