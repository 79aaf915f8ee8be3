"""attention_paged, as attention of batches of sequences of one length: the reference in float64, its error
scale, the tables of a case, and probes. `torch_impl` runs the same batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from . import error_scale, reference
from .probes import Call, equal, normal

TORCH_ELEMENTS = 1 << 24
"""Elements of the temporaries of one batch through torch, about: 64 MB in float32."""
REFERENCE_ELEMENTS = 1 << 22
"""Elements of the largest temporaries of a batch of the reference: 32 MB each in float64, and there are
several."""


# --- batches of one length --------------------------------------------------------------------------------


def batches(
    k_cache: Tensor, block_table: Tensor, seq_lens: Tensor, per_key: int, elements: int = TORCH_ELEMENTS
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


def _forward(
    function: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]], per_key: int, elements: int,
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse, or their error scales, by a function of q, k, v and the pages of a batch."""
    Z, M, H, _ = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    o, lse = q.new_zeros((Z, M, H, v_cache.shape[-1])), q.new_zeros((Z, H, M), dtype=wide)
    for sequences, pages, length in batches(k_cache, block_table, seq_lens, per_key, elements):
        k, v = (gather(cache, pages, length) for cache in (k_cache, v_cache))
        own, lse[sequences] = function(q[sequences].movedim(1, 2), k, v, pages)
        o[sequences] = own.movedim(1, 2)
    return o, lse


def _per_key(q: Tensor, v_cache: Tensor) -> int:
    _, M, H, D = q.shape
    return H * (D + v_cache.shape[-1] + M)


# --- the reference and its error scale --------------------------------------------------------------------


def reference_forward(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
    sinks: Tensor | None = None, **params: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse."""

    def own(q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        return reference.attention(q, k, v, None, sinks, **_named(params))

    given = q, k_cache, v_cache, block_table, seq_lens
    return _forward(own, _per_key(q, v_cache), REFERENCE_ELEMENTS, *given)


def error_scale_forward(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
    sinks: Tensor | None = None, *, types: dict[str, str], **params: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """The error scales of o and lse."""
    kind = error_scale.Precision(types)
    alike = _equal_keys(k_cache, v_cache) if kind.is_narrow and len(k_cache) else None

    def own(q: Tensor, k: Tensor, v: Tensor, pages: Tensor) -> tuple[Tensor, Tensor]:
        found = error_scale.forward(q, k, v, None, sinks, types=types, **_named(params))
        o, length = found["o"], k.shape[-2]
        if alike is not None and length:
            keys = alike[pages].flatten(1)[:, :length]
            o = o + kind.narrow * _of_repeated(q, k, v, keys, sinks, **_named(params))
        return o, found["lse"]

    given = q, k_cache, v_cache, block_table, seq_lens
    o, lse = _forward(own, _per_key(q, v_cache), REFERENCE_ELEMENTS, *given)
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
    wider = torch.minimum(error_scale.ROUNDING * rss(sums, values), sure) - error_scale.ROUNDING * rss(p, v)
    repeats = ~first.all(-1)
    return reference.flat(torch.where(repeats[:, None, None, None, None], wider.clamp(min=0), 0.0))


# --- cases ------------------------------------------------------------------------------------------------


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


PAGE = 16


def _paged(keys: int, dtype: torch.dtype, device: torch.device, page: int = PAGE) -> dict[str, Any]:
    """Three sequences of up to `keys` keys: a short one, one of no key, a long one. No page is of two."""
    wide = -(-keys // page)
    table = torch.arange(3 * wide).reshape(wide, 3).T.flip(1).contiguous()
    lengths = torch.tensor([min(keys, 37), 0, keys])
    cache = (3 * wide, page, 2, 64)
    return {
        "q": normal((3, 2, 4, 64), dtype, device),
        "k_cache": normal(cache, dtype, device, 1),
        "v_cache": normal(cache, dtype, device, 2),
        "block_table": table.to(torch.int32).to(device),
        "seq_lens": lengths.to(torch.int32).to(device),
    }


def _behind(given: dict[str, Any]) -> Tensor:
    """(pages, keys of a page): where no sequence has a key."""
    cache = given["k_cache"]
    empty = torch.ones(cache.shape[:2], dtype=torch.bool)
    for row, length in zip(given["block_table"].tolist(), given["seq_lens"].tolist(), strict=True):
        for key in range(length):
            empty[row[key // cache.shape[1]], key % cache.shape[1]] = False
    return empty.to(cache.device)


def behind_the_last_key(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """what lies behind a sequence's last key, NaN among it, reaches no query"""
    given = _paged(75, dtype, device)
    clean = call(given)
    behind = _behind(given)
    for name in ("k_cache", "v_cache"):
        given[name][behind] = torch.nan
    return all(torch.equal(a, b) for a, b in zip(clean, call(given), strict=True))


def seen_nan(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a NaN in a key makes o and lse of the queries that see it NaN, and of no others"""
    given = _paged(75, dtype, device)
    o, lse = call(given)
    page = int(given["block_table"][2, 1])
    given["k_cache"][page, 3, 1] = torch.nan  # of the last sequence's second key head
    got, got_lse = call(given)
    hit = torch.zeros(3, 4, dtype=torch.bool, device=device)
    hit[2, 2:] = True
    o, got = o.movedim(2, 1), got.movedim(2, 1)
    same = torch.equal(got[~hit], o[~hit]) and torch.equal(got_lse[~hit], lse[~hit])
    return same and bool(got[hit].isnan().all()) and bool(got_lse[hit].isnan().all())


def sequence_alone(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a sequence gives the same bits alone and beside others"""
    given = _paged(1500, dtype, device, 64)
    o, lse = call(given)
    for z in (0, 2):
        own = {name: given[name][z : z + 1] for name in ("q", "block_table", "seq_lens")}
        alone, own_lse = call({**given, **own})
        if not torch.equal(alone[0], o[z]) or not torch.equal(own_lse[0], lse[z]):
            return False
    return True


def sums_of_chunks(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """equal scores give the mean of the values, however large the sums are on the way"""
    given = _paged(2048, dtype, device, 64)
    place = torch.arange(2048)[:, None]
    values = (place * 37 + torch.arange(64) * 5) % 17 - 8 + torch.where(place < 1024, 3, -3)
    held = given["block_table"][2].long()
    given["v_cache"][held] = values.to(dtype).to(device).view(32, 64, 1, 64).expand(32, 64, 2, 64)
    o, _ = call({**given, "scale": 0.0})
    mean = (values.sum(0).to(torch.float64) / 2048).to(dtype).to(device)
    return equal(o[2, -1], mean.expand(4, 64), dtype)


PROBES = (behind_the_last_key, seen_nan, sequence_alone, sums_of_chunks)
