"""attention_varlen and its gradient through torch; no tensor is written into, so torch can transform them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import torch_impl
from .varlen import batches, heads, rows


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None = None,
    **params: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse on any device, float32 inside or wider; zeros and -inf for tokens of no sequence."""
    tokens, o, lse = [], [], []
    for at, there in batches(q, k, cu_seqlens_q, cu_seqlens_k):
        found = torch_impl.attention(heads(q, at), heads(k, there), heads(v, there), None, sinks, **params)
        tokens.append(at)
        o.append(found[0].transpose(1, 2))
        lse.append(found[1].transpose(1, 2))
    wide = torch.promote_types(q.dtype, torch.float32)
    none_o = q.new_zeros((1, q.shape[1], v.shape[-1]))
    none_lse = q.new_full((1, q.shape[1]), -torch.inf, dtype=wide)
    return _placed(o, tokens, len(q), none_o), _placed(lse, tokens, len(q), none_lse).T


def attention_varlen_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor, dlse: Tensor | None = None, **params: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk and dv; zeros for tokens of no sequence."""
    queries, keys, dq, dk, dv = [], [], [], [], []
    for at, there in batches(q, k, cu_seqlens_q, cu_seqlens_k):
        given = heads(do, at), heads(q, at), heads(k, there), heads(v, there), heads(o, at), rows(lse, at)
        own = None if dlse is None else rows(dlse, at)
        found = torch_impl.attention_backward(*given, None, own, **params)
        queries.append(at)
        keys.append(there)
        for each, of_batch in zip((dq, dk, dv), found, strict=True):
            each.append(of_batch.transpose(1, 2))
    return (
        _placed(dq, queries, len(q), q.new_zeros((1, *q.shape[1:]))),
        _placed(dk, keys, len(k), k.new_zeros((1, *k.shape[1:]))),
        _placed(dv, keys, len(v), v.new_zeros((1, *v.shape[1:]))),
    )


def _placed(found: Sequence[Tensor], tokens: Sequence[Tensor], total: int, none: Tensor) -> Tensor:
    """(total, ...): what was found for the tokens (sequences, seqlen) of each batch, else `none`."""
    device = none.device
    at = torch.cat([torch.empty(0, dtype=torch.long, device=device), *(each.flatten() for each in tokens)])
    place = torch.full((total,), len(at), device=device)
    place[at] = torch.arange(len(at), device=device)
    return torch.cat([*(each.flatten(0, 1) for each in found), none])[place]
