"""attention, attention_varlen, attention_paged and their gradients through torch, all scores at once: any
device, float32 inside or wider. No tensor is written into, so that torch can transform them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from portable import dtypes

from . import fp8, paged, paged_fp8, varlen
from .varlen import heads, rows


def _shared(x: Tensor, q: Tensor, wide: torch.dtype) -> Tensor:
    """Keys or values once per query head."""
    return x.to(wide).repeat_interleave(q.shape[-3] // x.shape[-3], dim=-3)


def scores_of(
    q: Tensor, k: Tensor, bias: Tensor | None, *, causal: bool, scale: float | None, window_left: int | None,
    window_right: int | None, softcap: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(..., H, M, N): the scores, -inf where a key is not seen, and the slope of the cap at each."""
    M, N = q.shape[-2], k.shape[-2]
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = q.to(wide) @ _shared(k, q, wide).mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    slope = torch.ones((), dtype=wide, device=q.device)
    if softcap is not None:
        curve = torch.tanh(scores / softcap)
        scores, slope = softcap * curve, 1 - curve.square()
    if bias is not None:
        scores = scores + bias.to(wide)
    offset = torch.arange(N, device=q.device) - torch.arange(M, device=q.device)[:, None] - (N - M)
    if causal:
        window_right = 0 if window_right is None else min(window_right, 0)
    hidden = torch.zeros((), dtype=torch.bool, device=q.device)
    if window_left is not None:
        hidden = hidden | (offset < -window_left)
    if window_right is not None:
        hidden = hidden | (offset > window_right)
    return scores.masked_fill(hidden, -torch.inf), slope


def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, sinks: Tensor | None = None, *,
    causal: bool = False, scale: float | None = None, window_left: int | None = None,
    window_right: int | None = None, softcap: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse."""
    scores, _ = scores_of(q, k, bias, causal=causal, scale=scale, window_left=window_left,
                          window_right=window_right, softcap=softcap)  # fmt: skip
    top = scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    if sinks is not None:
        top = sinks.to(top.dtype)[:, None, None].expand(top.shape)
    most = torch.cat([scores, top], -1).amax(-1, keepdim=True).detach()
    most = torch.where(torch.isneginf(most), 0, most)
    p = torch.exp(scores - most)
    total = p.sum(-1, keepdim=True) + torch.exp(top - most)
    safe = torch.where(total == 0, 1, total)  # in the logarithm too, whose derivative is else NaN
    lse = torch.where(total == 0, -torch.inf, most + torch.log(safe))
    o = p @ _shared(v, q, p.dtype) / safe
    return o.to(q.dtype), lse.squeeze(-1)


def _backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, bias: Tensor | None,
    dlse: Tensor | None, **params,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(..., H, M, N): the weights, and the derivatives behind and before the cap."""
    scores, slope = scores_of(q, k, bias, **params)
    wide, lse = scores.dtype, lse.to(scores.dtype)
    p = torch.exp(scores - torch.where(torch.isneginf(lse), 0, lse)[..., None])
    delta = (do.to(wide) * o.to(wide)).sum(-1)
    if dlse is not None:
        delta = delta - dlse.to(wide)
    above = p * (do.to(wide) @ _shared(v, q, wide).mT - delta[..., None])
    return p, above, above * slope


def attention_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, bias: Tensor | None = None,
    dlse: Tensor | None = None, *, scale: float | None = None, **params,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk and dv."""
    p, _, ds = _backward(do, q, k, v, o, lse, bias, dlse, scale=scale, **params)
    ds = ds * (q.shape[-1] ** -0.5 if scale is None else scale)

    def summed(x: Tensor) -> Tensor:
        return x.unflatten(-3, (k.shape[-3], -1)).sum(-3)

    dq = ds @ _shared(k, q, p.dtype)
    dk, dv = summed(ds.mT @ q.to(p.dtype)), summed(p.mT @ do.to(p.dtype))
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def attention_dbias(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, bias: Tensor,
    dlse: Tensor | None = None, **params,
) -> Tensor:  # fmt: skip
    """The gradient of the bias."""
    return _backward(do, q, k, v, o, lse, bias, dlse, **params)[1].to(bias.dtype)


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None = None,
    **params: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse on any device, float32 inside or wider; zeros and -inf for tokens of no sequence."""
    tokens, o, lse = [], [], []
    for at, there in varlen.batches(q, k, cu_seqlens_q, cu_seqlens_k):
        found = attention(heads(q, at), heads(k, there), heads(v, there), None, sinks, **params)
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
    for at, there in varlen.batches(q, k, cu_seqlens_q, cu_seqlens_k):
        given = (
            heads(do, at),
            heads(q, at),
            heads(k, there),
            heads(v, there),
            heads(o, at),
            rows(lse, at),
        )
        own = None if dlse is None else rows(dlse, at)
        found = attention_backward(*given, None, own, **params)
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


def attention_paged(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
    sinks: Tensor | None = None, **params: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse on any device, float32 inside or wider."""

    def gathered(pages: Tensor, length: int) -> list[Tensor]:
        return [paged.gather(cache, pages, length) for cache in (k_cache, v_cache)]

    return _over_pages(gathered, q, k_cache, v_cache, block_table, seq_lens, sinks, **params)


def attention_paged_fp8(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, k_scale: Tensor,
    v_scale: Tensor, sinks: Tensor | None = None, **params: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same over a cache in 8 bits, whose pages become float32 as they are gathered."""
    caches = ((k_cache, k_scale), (v_cache, v_scale))

    def gathered(pages: Tensor, length: int) -> list[Tensor]:
        return [paged_fp8.gather(cache, scale, pages, length) for cache, scale in caches]

    return _over_pages(gathered, q, k_cache, v_cache, block_table, seq_lens, sinks, **params)


def attention_fp8(
    q: Tensor, k: Tensor, v: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor, *,
    output_dtype: Any, **params: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse of codes that become float32; P are not rounded."""
    wide = torch.float32
    numbers = fp8.of_numbers(q.to(wide), k.to(wide), v.to(wide), q_scale, k_scale, v_scale)
    o, lse = attention(*numbers, **params)
    return o.to(dtypes.of(output_dtype).storage), lse


def _over_pages(
    gathered: Callable[[Tensor, int], Sequence[Tensor]], q: Tensor, k_cache: Tensor, v_cache: Tensor,
    block_table: Tensor, seq_lens: Tensor, sinks: Tensor | None, *, window_left: int | None = None,
    **params: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse by batches of one length, whose keys and values `gathered` gives of their pages."""
    _, M, H, D = q.shape
    E = v_cache.shape[-1]
    per_key = 2 * H * (D + E + M) + 2 * M * H
    mask = {"causal": True, "window_left": window_left, "window_right": None}
    order = [torch.empty(0, dtype=torch.long, device=q.device)]
    o, lse = (
        [q.new_empty((0, M, H, E))],
        [q.new_empty((0, H, M), dtype=torch.promote_types(q.dtype, torch.float32))],
    )
    for sequences, pages, length in paged.batches(k_cache, block_table, seq_lens, per_key):
        k, v = gathered(pages, length)
        found = attention(q[sequences].movedim(1, 2), k, v, None, sinks, **mask, **params)
        order.append(sequences)
        o.append(found[0].movedim(1, 2))
        lse.append(found[1])
    place = torch.cat(order).argsort()
    return torch.cat(o)[place], torch.cat(lse)[place]
