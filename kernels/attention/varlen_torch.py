"""attention over packed sequences, and its gradients, through torch: any device, sequence by sequence."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from portable.kernels.attention import torch_impl


def bounds(offsets: Tensor, total: int) -> list[int]:
    """Where sequences begin and end: offsets brought within 0..total, none below the one before it."""
    return torch.cummax(offsets.to(torch.int64).clamp(0, total), 0).values.tolist()


def sequences(
    q: Tensor, k: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor
) -> Iterator[tuple[slice, slice]]:
    """The tokens of each sequence among the queries and among the keys."""
    queries, keys = bounds(cu_seqlens_q, len(q)), bounds(cu_seqlens_k, len(k))
    for z in range(len(queries) - 1):
        yield slice(queries[z], queries[z + 1]), slice(keys[z], keys[z + 1])


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None = None,
    **params,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse."""
    M, H, _ = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    o, lse = q.new_zeros((M, H, v.shape[-1])), torch.full((H, M), -torch.inf, dtype=wide, device=q.device)
    for at, there in sequences(q, k, cu_seqlens_q, cu_seqlens_k):
        given = _heads(q[at]), _heads(k[there]), _heads(v[there])
        own, lse[:, at] = torch_impl.attention(*given, None, sinks, **params)
        o[at] = _heads(own)
    return o, lse


def attention_varlen_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor, dlse: Tensor | None = None, **params,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk and dv."""
    grads = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for at, there in sequences(q, k, cu_seqlens_q, cu_seqlens_k):
        own_do, own_q, own_k, own_v, own_o = (_heads(x) for x in (do[at], q[at], k[there], v[there], o[at]))
        own = dlse if dlse is None else dlse[:, at]
        found = torch_impl.attention_backward(
            own_do, own_q, own_k, own_v, own_o, lse[:, at], None, own, **params
        )
        for grad, part, each in zip(grads, (at, there, there), found, strict=True):
            grad[part] = _heads(each)
    return grads


def _heads(x: Tensor) -> Tensor:
    """(tokens, heads, dim) as (heads, tokens, dim), or back."""
    return x.movedim(0, 1)
