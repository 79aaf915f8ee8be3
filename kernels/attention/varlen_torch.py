"""attention over packed sequences, and its gradients, through torch: any device, float32 inside or wider,
batched by the lengths of sequences."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from portable.kernels.attention import torch_impl

BATCH_ELEMENTS = 1 << 24
"""Elements of the temporaries of one batch, about: 64 MB in float32."""


def bounds(offsets: Tensor, total: int) -> Tensor:
    """(C,) int64 on the CPU: offsets brought within 0..total, none below the one before it."""
    return torch.cummax(offsets.cpu().long().clamp(0, total), 0).values


def batches(
    q: Tensor, k: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, elements: int = BATCH_ELEMENTS
) -> Iterator[tuple[Tensor, Tensor]]:
    """The query tokens (sequences, seqlen_q) and key tokens (sequences, seqlen_k) of batches of sequences of
    equal lengths.

    A batch keeps within `elements` queries, keys and scores unless one sequence alone is larger.
    """
    queries, keys = bounds(cu_seqlens_q, len(q)), bounds(cu_seqlens_k, len(k))
    if len(queries) < 2:
        return
    lengths = torch.stack([queries.diff(), keys.diff()], 1)
    shapes, which, counts = torch.unique(lengths, dim=0, return_inverse=True, return_counts=True)
    members = which.argsort(stable=True).split(counts.tolist())
    for (seqlen_q, seqlen_k), same in zip(shapes.tolist(), members, strict=True):
        one = q.shape[1] * (seqlen_q + seqlen_k) * q.shape[2] + q.shape[1] * seqlen_q * seqlen_k
        for some in same.split(max(1, elements // max(one, 1))):
            tokens = queries[some, None] + torch.arange(seqlen_q), keys[some, None] + torch.arange(seqlen_k)
            yield tokens[0].to(q.device), tokens[1].to(q.device)


def heads(x: Tensor, tokens: Tensor) -> Tensor:
    """(sequences, heads, seqlen, dim): the tokens of a batch."""
    return x[tokens].transpose(1, 2)


def rows(x: Tensor, tokens: Tensor) -> Tensor:
    """(sequences, heads, seqlen): the tokens of a batch in a tensor (heads, tokens)."""
    return x[:, tokens].transpose(0, 1)


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None = None,
    **params,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse."""
    M, H, _ = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    o, lse = q.new_zeros((M, H, v.shape[-1])), torch.full((H, M), -torch.inf, dtype=wide, device=q.device)
    for at, there in batches(q, k, cu_seqlens_q, cu_seqlens_k):
        own, own_lse = torch_impl.attention(
            heads(q, at), heads(k, there), heads(v, there), None, sinks, **params
        )
        o[at], lse[:, at] = own.transpose(1, 2), own_lse.transpose(0, 1)
    return o, lse


def attention_varlen_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor, dlse: Tensor | None = None, **params,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk and dv."""
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for at, there in batches(q, k, cu_seqlens_q, cu_seqlens_k):
        own = torch_impl.attention_backward(
            heads(do, at), heads(q, at), heads(k, there), heads(v, there), heads(o, at), rows(lse, at), None,
            None if dlse is None else rows(dlse, at), **params,
        )  # fmt: skip
        dq[at], dk[there], dv[there] = (each.transpose(1, 2) for each in own)
    return dq, dk, dv
