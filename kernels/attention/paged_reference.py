"""attention_paged in float64: the reference of attention, for each sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import magnitude as magnitudes
from . import reference
from .paged_torch import batches, gather

BATCH_ELEMENTS = 1 << 22
"""Elements of a batch's largest temporaries: 32 MB each in float64, and there are several."""


def attention_paged(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
    sinks: Tensor | None = None, **params: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse."""
    Z, M, H, D = q.shape
    E = v_cache.shape[-1]
    o, lse = q.new_zeros((Z, M, H, E)), q.new_zeros((Z, H, M))
    per_key = H * (D + E + M)
    for sequences, pages, length in batches(k_cache, block_table, seq_lens, per_key, BATCH_ELEMENTS):
        k, v = (gather(cache, pages, length) for cache in (k_cache, v_cache))
        own, lse[sequences] = reference.attention(
            q[sequences].movedim(1, 2), k, v, None, sinks, **_named(params)
        )
        o[sequences] = own.movedim(1, 2)
    return o, lse


def magnitude(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
    sinks: Tensor | None = None, *, types: dict[str, str], **params: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """The error scales of o and lse."""
    Z, M, H, D = q.shape
    E = v_cache.shape[-1]
    kind = magnitudes.Precision(types)
    o, lse = q.new_zeros((Z, M, H, E)), q.new_zeros((Z, H, M))
    alike = _equal_keys(k_cache, v_cache) if kind.is_narrow and len(k_cache) else None
    per_key = H * (D + E + M)
    for sequences, pages, length in batches(k_cache, block_table, seq_lens, per_key, BATCH_ELEMENTS):
        k, v = (gather(cache, pages, length) for cache in (k_cache, v_cache))
        given, named = q[sequences].movedim(1, 2), _named(params)
        found = magnitudes.magnitude(given, k, v, None, sinks, types=types, **named)
        own, lse[sequences] = found["o"], found["lse"]
        if alike is not None and length:
            keys = alike[pages].flatten(1)[:, :length]
            own = own + kind.narrow * _of_repeated(given, k, v, keys, sinks, **named)
        o[sequences] = own.movedim(1, 2)
    return {"o": o, "lse": lse}


def _named(params: dict[str, Any]) -> dict[str, Any]:
    return {"causal": True, "window_right": None, **params}


def _equal_keys(k_cache: Tensor, v_cache: Tensor) -> Tensor:
    """(P, S): a number for each key of the cache, shared by keys that are equal in all heads and values."""
    both = torch.cat([k_cache, v_cache], -1).flatten(0, 1).flatten(1)
    return torch.unique(both, dim=0, return_inverse=True)[1].view(k_cache.shape[:2])


def _of_repeated(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, sinks: Tensor | None, **params: Any
) -> Tensor:
    """By how much more o may be off for keys that stand in a sequence several times, in units of eps(T).

    A page may stand in a table many times. Equal keys have equal weights, which round alike: c terms of p * v
    are off by c times what one is, not by sqrt(c) times. So equal keys with equal values count as one term of
    their sum; and no rounding of weights moves o by more than half a unit of sum(p * |v|).

    `keys`: (C, N), equal where keys are equal.
    """
    ordered, order = keys.sort(-1)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    term = torch.empty_like(order).scatter_(-1, order, first.cumsum(-1) - 1)  # which term a key belongs to
    p, _, _ = reference.softmax(reference.scores_of(q, k, None, **params).scores, sinks, k)
    sums = torch.zeros_like(p).scatter_add_(-1, term[:, None, None, None].expand(p.shape), p)
    values = torch.zeros_like(v).scatter_(-2, term[:, None, :, None].expand(v.shape), v)

    def rss(weights: Tensor, values: Tensor) -> Tensor:
        return torch.einsum("zgsmn,zgne->zgsme", weights.square(), values.square()).sqrt()

    sure = torch.einsum("zgsmn,zgne->zgsme", p, v.abs()) / 2
    wider = torch.minimum(magnitudes.ROUNDING * rss(sums, values), sure) - magnitudes.ROUNDING * rss(p, v)
    repeats = ~first.all(-1)
    return reference.flat(torch.where(repeats[:, None, None, None, None], wider.clamp(min=0), 0.0))


def tables(axes: dict[str, int], bits: Any) -> dict[str, Tensor]:
    """Lengths and pages of a case: empty, full and ragged sequences, pages that are shared, and now and then
    a length or a page that is out of range; what lies behind a sequence's pages is garbage."""
    Z, P, S, W = (axes[name] for name in ("Z", "P", "S", "W"))

    def below(bound: int, count: int) -> Tensor:
        return torch.from_numpy(bits.below(bound, count))

    lengths, kind = below(W * S + 1, Z), below(12, Z)
    lengths = torch.where(kind == 0, 0, torch.where(kind == 1, W * S, lengths))
    lengths = torch.where(kind == 2, lengths // S * S, lengths)
    lengths = torch.where(kind == 3, W * S + 5, torch.where(kind == 4, -lengths, lengths))
    table, kind = below(max(P, 1), Z * W), below(40, Z * W)
    table = torch.where(kind == 0, P, torch.where(kind == 1, -1, table)).reshape(Z, W)
    garbage = torch.where(below(2, Z * W) == 0, -(2**31), 2**31 - 1).reshape(Z, W)
    behind = torch.arange(W) * S >= lengths.clamp(0, W * S)[:, None]
    return {"block_table": torch.where(behind, garbage, table), "seq_lens": lengths}
