"""attention_paged through torch: any device, sequence by sequence, float32 inside or wider."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from portable.kernels.attention import torch_impl


def sequences(
    k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Iterator[tuple[Tensor, ...]]:
    """The keys and values of each sequence, (key heads, keys, dim)."""
    pages, page = k_cache.shape[:2]
    capacity = block_table.shape[1] * page if pages else 0
    for row, given in zip(block_table, seq_lens.tolist(), strict=True):
        length = min(max(int(given), 0), capacity)
        held = row[: -(-length // page)].long().clamp(0, max(pages - 1, 0))
        yield tuple(cache[held].flatten(0, 1)[:length].movedim(1, 0) for cache in (k_cache, v_cache))


def attention_paged(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
    sinks: Tensor | None = None, *, scale: float | None = None, window_left: int | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse."""
    Z, M, H, _ = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    o, lse = q.new_zeros((Z, M, H, v_cache.shape[-1])), q.new_zeros((Z, H, M), dtype=wide)
    for z, (k, v) in enumerate(sequences(k_cache, v_cache, block_table, seq_lens)):
        own, lse[z] = torch_impl.attention(
            q[z].movedim(1, 0), k, v, None, sinks, causal=True, scale=scale, window_left=window_left,
            window_right=None, softcap=softcap,
        )  # fmt: skip
        o[z] = own.movedim(0, 1)
    return o, lse
