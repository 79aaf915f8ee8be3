"""attention_paged through torch: any device, float32 inside or wider, batched by the length of sequences."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from portable.kernels.attention import torch_impl

BATCH_ELEMENTS = 1 << 24
"""Elements of the temporaries of one batch, about: 64 MB in float32."""


def batches(
    k_cache: Tensor, block_table: Tensor, seq_lens: Tensor, per_key: int, elements: int = BATCH_ELEMENTS
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """The sequences (C,) of each batch, their pages (C, pages) and the length that they share.

    `per_key`: elements that one key of a sequence needs, next to its gathered pages. A batch keeps within
    `elements` unless one sequence alone is larger.
    """
    pages, page = k_cache.shape[:2]
    capacity = block_table.shape[1] * page if pages else 0
    lengths = seq_lens.cpu().long().clamp(0, capacity)
    order = lengths.argsort(stable=True)
    found, counts = torch.unique_consecutive(lengths[order], return_counts=True)
    order = order.to(block_table.device)
    for length, members in zip(found.tolist(), order.split(counts.tolist()), strict=True):
        reach = -(-length // page)
        most = max(1, elements // max(reach * page * per_key, 1))
        for sequences in members.split(most):
            yield sequences, block_table[sequences, :reach].long().clamp(0, max(pages - 1, 0)), length


def gather(cache: Tensor, pages: Tensor, length: int) -> Tensor:
    """(C, key heads, length, dim): the keys or the values of a batch."""
    return cache[pages].flatten(1, 2)[:, :length].movedim(1, 2)


def attention_paged(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
    sinks: Tensor | None = None, *, scale: float | None = None, window_left: int | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse."""
    Z, M, H, D = q.shape
    E = v_cache.shape[-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    o, lse = q.new_zeros((Z, M, H, E)), q.new_zeros((Z, H, M), dtype=wide)
    for sequences, pages, length in batches(k_cache, block_table, seq_lens, 2 * H * (D + E) + 4 * H * M):
        k, v = (gather(cache, pages, length) for cache in (k_cache, v_cache))
        own, lse[sequences] = torch_impl.attention(
            q[sequences].movedim(1, 2), k, v, None, sinks, causal=True, scale=scale, window_left=window_left,
            window_right=None, softcap=softcap,
        )  # fmt: skip
        o[sequences] = own.movedim(1, 2)
    return o, lse
