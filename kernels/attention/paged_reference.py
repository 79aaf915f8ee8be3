"""attention_paged in float64: the reference of attention, for each sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import magnitude as magnitudes
from . import reference
from .paged_torch import sequences


def attention_paged(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
    sinks: Tensor | None = None, **params: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse."""
    return _each(reference.attention, q, k_cache, v_cache, block_table, seq_lens, sinks, params)


def magnitude(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
    sinks: Tensor | None = None, *, types: dict[str, str], **params: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """The error scales of o and lse."""

    kind = magnitudes.Precision(types)

    def both(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, Tensor]:
        found = magnitudes.magnitude(q, k, v, *rest, types=types, **named)
        wider = _of_repeated(q, k, v, rest[-1], **named) if kind.is_narrow else 0.0
        return found["o"] + kind.narrow * wider, found["lse"]

    found = _each(both, q, k_cache, v_cache, block_table, seq_lens, sinks, params)
    return dict(zip(("o", "lse"), found, strict=True))


def _of_repeated(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, **params: Any) -> Tensor:
    """By how much more o may be off for keys that stand in a sequence several times, in units of eps(T).

    A page may stand in a table many times. Equal keys have equal weights, which round alike: c terms of p * v
    are off by c times what one is, not by sqrt(c) times. So equal keys with equal values count as one term of
    their sum; and no rounding of weights moves o by more than half a unit of sum(p * |v|).
    """
    both = torch.cat([k, v], -1).movedim(0, 1).flatten(1)
    distinct, place = torch.unique(both, dim=0, return_inverse=True)
    if len(distinct) == len(both):
        return torch.zeros((), dtype=q.dtype)
    p, _, _ = reference.softmax(reference.scores_of(q, k, None, **params).scores, sinks, k)
    sums = p.new_zeros((*p.shape[:-1], len(distinct))).index_add_(-1, place, p)
    values = torch.zeros(len(distinct), *v.movedim(0, 1).shape[1:], dtype=v.dtype)
    values[place] = v.movedim(0, 1)

    def rss(weights: Tensor, values: Tensor, how: str) -> Tensor:
        return torch.einsum(how, weights.square(), values.square()).sqrt()

    together, apart = rss(sums, values, "gsmn,nge->gsme"), rss(p, v, "gsmn,gne->gsme")
    sure = torch.einsum("gsmn,nge->gsme", sums, values.abs()) / 2
    wider = torch.minimum(magnitudes.ROUNDING * together, sure) - magnitudes.ROUNDING * apart
    return reference.flat(wider.clamp(min=0))


def _each(
    function: Callable[..., tuple[Tensor, Tensor]], q: Tensor, k_cache: Tensor, v_cache: Tensor,
    block_table: Tensor, seq_lens: Tensor, sinks: Tensor | None, params: dict[str, Any],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What a function of one sequence says of o and lse, for all."""
    Z, M, H, _ = q.shape
    o, lse = q.new_zeros((Z, M, H, v_cache.shape[-1])), q.new_zeros((Z, H, M))
    for z, (k, v) in enumerate(sequences(k_cache, v_cache, block_table, seq_lens)):
        named = {"causal": True, "window_right": None, **params}
        own, lse[z] = function(q[z].movedim(1, 0), k, v, None, sinks, **named)
        o[z] = own.movedim(0, 1)
    return o, lse


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
