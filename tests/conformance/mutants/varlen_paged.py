"""Attention over pages and over varlen sequences as a GPU computes it.

`Paged`, `Varlen` and `VarlenBackward` are right; a mutant is one with a step replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .flash import Flash, FlashBackward, wide_of

DEFAULTS = {"causal": False, "scale": None, "window_left": None, "window_right": None, "softcap": None}

Part = tuple[Tensor, Tensor, Tensor]
"""Of a chunk of keys: the sum of weights times values, the sum of weights, the largest score."""


class Paged(Flash):
    """attention_paged: each sequence in chunks of keys, then a merge of the chunks in order."""

    chunk = 48

    def length(self, given: int, capacity: int) -> int:
        return min(max(given, 0), capacity)

    def table(self, block_table: Tensor, z: int) -> Tensor:
        return block_table[z]

    def held(self, row: Tensor, count: int, pages: int) -> Tensor:
        """The first `count` pages of a sequence."""
        return row[:count].long().clamp(0, max(pages - 1, 0))

    def rows(self, cache: Tensor, row: Tensor, length: int) -> Tensor:
        """The keys or values of a sequence (key heads, keys, columns)."""
        pages, page = cache.shape[:2]
        return cache[self.held(row, -(-length // page), pages)].flatten(0, 1)[:length].movedim(1, 0)

    def part(self, q: Tensor, k: Tensor, v: Tensor, start: int, length: int, params: dict[str, Any]) -> Part:
        scores = self.scored(q, self.keys(k, q.shape[0]), None, params)
        j = torch.arange(start, start + k.shape[-2])
        hidden = self.hidden(torch.arange(q.shape[-2])[:, None], j, q.shape[-2], length, params)
        scores = scores.masked_fill(hidden, -torch.inf)
        top = scores.amax(-1, keepdim=True)
        p = self.exp(scores - top.where(~torch.isneginf(top), 0.0))
        return self.weighed(p, v, q.shape[0]), p.sum(-1, keepdim=True), top

    def weighed(self, p: Tensor, v: Tensor, heads: int) -> Tensor:
        return self.rounded(p, self.dtype) @ self.keys(v, heads)

    def merged(self, parts: list[Part], start: Part, sinks: Tensor | None) -> Part:
        o, total, top = start
        for each, sums, peak in parts:
            most = torch.maximum(top, peak)
            base = most.where(~torch.isneginf(most), 0.0)
            old, new = self.exp(top - base), self.exp(peak - base)
            o, total, top = o * old + each * new, total * old + sums * new, most
        return (o, total, top) if sinks is None else self.sink(o, total, top, sinks)

    def one(self, z: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, params: dict[str, Any]):
        """o (heads, queries, columns) and lse (heads, queries) of a sequence."""
        length = k.shape[-2]
        parts = [
            self.part(q, k[:, at : at + self.chunk], v[:, at : at + self.chunk], at, length, params)
            for at in range(0, length, self.chunk)
        ]
        total = q.new_zeros(*q.shape[:2], 1)
        start = q.new_zeros(*q.shape[:2], v.shape[-1]), total, torch.full_like(total, -torch.inf)
        o, total, top = self.merged(parts, start, sinks)
        return self.finish(o, total, top.where(~torch.isneginf(top), 0.0))

    def __call__(self, q, k_cache, v_cache, block_table, seq_lens, sinks=None, **params):
        params = DEFAULTS | {"causal": True} | params
        self.dtype, wide = q.dtype, wide_of(q.dtype)
        Z, M, H, _ = q.shape
        o, lse = q.new_zeros(Z, M, H, v_cache.shape[-1]), q.new_zeros(Z, H, M, dtype=wide)
        pages, page = k_cache.shape[:2]
        capacity = block_table.shape[1] * page if pages else 0
        for z in range(Z):
            length = self.length(int(seq_lens[z]), capacity)
            row = self.table(block_table, z)
            k, v = (self.rows(cache, row, length).to(wide) for cache in (k_cache, v_cache))
            own, lse[z] = self.one(z, q[z].movedim(1, 0).to(wide), k, v, sinks, params)
            o[z] = own.movedim(0, 1).to(q.dtype)
        return o, lse


def bounds(offsets: Tensor, total: int) -> list[int]:
    """Where sequences begin and end: offsets brought within 0..total, none below the one before it."""
    return torch.cummax(offsets.long().clamp(0, total), 0).values.tolist()


class Spans:
    """Which tokens a sequence has: (number, queries, keys) of each."""

    def spans(
        self, offsets_q: Tensor, offsets_k: Tensor, M: int, N: int
    ) -> Iterator[tuple[int, slice, slice]]:
        queries, keys = bounds(offsets_q, M), bounds(offsets_k, N)
        for z in range(len(queries) - 1):
            yield z, slice(queries[z], queries[z + 1]), slice(keys[z], keys[z + 1])


def heads(x: Tensor) -> Tensor:
    """(tokens, heads, columns) as (heads, tokens, columns), or back."""
    return x.movedim(0, 1)


class Varlen(Spans, Flash):
    """attention_varlen: `Flash` for each sequence."""

    def one(self, q: Tensor, k: Tensor, v: Tensor, at: slice, there: slice, sinks: Tensor | None, params):
        """o and lse of a sequence, from the tensors of all tokens."""
        return Flash.__call__(self, heads(q[at]), heads(k[there]), heads(v[there]), None, sinks, **params)

    def keep(self, o: Tensor, lse: Tensor, at: slice, own_o: Tensor, own_lse: Tensor) -> None:
        o[at], lse[:, at] = heads(own_o), own_lse

    def empty(self, o: Tensor, at: slice) -> None:
        """What a sequence without queries writes: nothing."""

    def __call__(self, q, k, v, cu_seqlens_q, cu_seqlens_k, sinks=None, **params):
        o = q.new_zeros(*q.shape[:2], v.shape[-1])
        lse = torch.full((q.shape[1], len(q)), -torch.inf, dtype=wide_of(q.dtype))
        for _, at, there in self.spans(cu_seqlens_q, cu_seqlens_k, len(q), len(k)):
            if at.stop > at.start:
                self.keep(o, lse, at, *self.one(q, k, v, at, there, sinks, params))
            else:
                self.empty(o, at)
        return o, lse


class VarlenBackward(Spans, FlashBackward):
    """attention_varlen_backward: `FlashBackward` for each sequence."""

    def one(self, do, q, k, v, o, lse, dlse, at: slice, there: slice, params):
        given = heads(do[at]), heads(q[at]), heads(k[there]), heads(v[there]), heads(o[at])
        own = None if dlse is None else dlse[:, at]
        return FlashBackward.__call__(self, *given, lse[:, at], None, own, **params)

    def __call__(self, do, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, dlse=None, **params):
        grads = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for _, at, there in self.spans(cu_seqlens_q, cu_seqlens_k, len(q), len(k)):
            if at.stop == at.start or there.stop == there.start:
                continue
            found = self.one(do, q, k, v, o, lse, dlse, at, there, params)
            for grad, part, each in zip(grads, (at, there, there), found, strict=True):
                grad[part] = heads(each)
        return grads
