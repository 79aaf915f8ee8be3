"""Wrong attention over a paged cache: the right kernel (varlen_paged.py) with one step replaced."""

from __future__ import annotations

import math

import torch

from .flash import LOG2E
from .registry import adder
from .tools import walked
from .varlen_paged import Paged

_mutant = adder("attention_paged")


@_mutant("last page read whole")
class _(Paged):
    def rows(self, cache, row, length):
        return super().rows(cache, row, -(-length // cache.shape[1]) * cache.shape[1])

    def one(self, z, q, k, v, sinks, params):
        self.whole = True
        return super().one(z, q, k, v, sinks, params)

    def length(self, given, capacity):
        self.real = super().length(given, capacity)
        return self.real

    def hidden(self, i, j, M, N, params):
        return super().hidden(i, j, M, self.real, params) & (j < self.real)


@_mutant("the page behind the last looked up")
class _(Paged):
    def held(self, row, count, pages):
        assert all(0 <= page < pages for page in row[count : count + 1].tolist()), "no such page"
        return super().held(row, count, pages)


@_mutant("pages from the last to the first")
class _(Paged):
    def held(self, row, count, pages):
        return super().held(row, count, pages).flip(0)


@_mutant("whole pages from the last to the first, the partial one in its place")
class _(Paged):
    def held(self, row, count, pages):
        held = super().held(row, count, pages)
        return torch.cat([held[:-1].flip(0), held[-1:]])


@_mutant("the table's row of the neighbour")
class _(Paged):
    def table(self, block_table, z):
        return block_table[(z + 1) % len(block_table)]


@_mutant("the table read as contiguous")
class _(Paged):
    def table(self, block_table, z):
        return walked(block_table)[z]


@_mutant("the caches read as contiguous")
class _(Paged):
    def rows(self, cache, row, length):
        return super().rows(walked(cache), row, length)


@_mutant("a page out of range taken for page 0")
class _(Paged):
    def held(self, row, count, pages):
        row = row[:count].long()
        return row.where((row >= 0) & (row < pages), 0)


@_mutant("a page below 0 counted from the end")
class _(Paged):
    def held(self, row, count, pages):
        row = row[:count].long().clamp(max=pages - 1)
        return row.where(row >= 0, (row + pages).clamp(0, max(pages - 1, 0)))


@_mutant("the page number taken modulo a power of two")
class _(Paged):
    def rows(self, cache, row, length):
        page = cache.shape[1]
        return super().rows(cache, row, length) if page & (page - 1) == 0 else super().rows(
            torch.nn.functional.pad(cache.movedim(1, -1), (0, 2 ** (page - 1).bit_length() - page)).movedim(
                -1, 1), row, length)  # fmt: skip


@_mutant("a negative length taken for a full table")
class _(Paged):
    def length(self, given, capacity):
        return super().length(capacity if given < 0 else given, capacity)


@_mutant("a length beyond the table taken for none")
class _(Paged):
    def length(self, given, capacity):
        return super().length(0 if given > capacity else given, capacity)


@_mutant("the queries' own keys not counted")
class _(Paged):
    def __call__(self, q, k_cache, v_cache, block_table, seq_lens, sinks=None, **params):
        return super().__call__(q, k_cache, v_cache, block_table, seq_lens - q.shape[1], sinks, **params)


@_mutant("left window one key too wide")
class _(Paged):
    def hidden(self, i, j, M, N, params):
        left = params["window_left"]
        return super().hidden(i, j, M, N, {**params, "window_left": left if left is None else left + 1})


@_mutant("left window one key too narrow")
class _(Paged):
    def hidden(self, i, j, M, N, params):
        left = params["window_left"]
        return super().hidden(i, j, M, N, {**params, "window_left": left if left is None else left - 1})


@_mutant("window counted from the last query for all")
class _(Paged):
    def hidden(self, i, j, M, N, params):
        plain = super().hidden(i, j, M, N, {**params, "window_left": None})
        left = params["window_left"]
        return plain if left is None else plain | (j < N - 1 - left)


@_mutant("causal aligned top left")
class _(Paged):
    def hidden(self, i, j, M, N, params):
        return super().hidden(i, j, M, M if M > 1 else N, params)


@_mutant("all queries see all keys")
class _(Paged):
    def hidden(self, i, j, M, N, params):
        return super().hidden(i, j, M, N, {**params, "causal": False})


@_mutant("query head h reads key head h % G")
class _(Paged):
    def keys(self, x, heads):
        return x[torch.arange(heads) % x.shape[-3]]


@_mutant("rows of a tile told apart as head first, not query first")
class _(Paged):
    def one(self, z, q, k, v, sinks, params):
        H, M, D = q.shape
        share = H // k.shape[0]
        turned = q.reshape(-1, share, M, D).movedim(1, 2).reshape(H, M, D) if M * share <= 64 else q
        return super().one(z, turned, k, v, sinks, params)


@_mutant("o not rescaled when chunks are merged")
class _(Paged):
    def merged(self, parts, start, sinks):
        found = super().merged(parts, start, sinks)
        return sum((each for each, _, _ in parts), start[0]), *found[1:]


@_mutant("sum not rescaled when chunks are merged")
class _(Paged):
    def merged(self, parts, start, sinks):
        o, *found = super().merged(parts, start, sinks)
        return o, sum((sums for _, sums, _ in parts), start[1]), found[1]


@_mutant("chunks merged as if equally heavy")
class _(Paged):
    def merged(self, parts, start, sinks):
        _, total, top = super().merged(parts, start, sinks)
        means = [each / sums.where(sums > 0, 1.0) for each, sums, _ in parts]
        return sum(means, start[0]) / max(len(parts), 1) * total, total, top


@_mutant("last of several chunks dropped")
class _(Paged):
    def merged(self, parts, start, sinks):
        return super().merged(parts[:-1] if len(parts) > 1 else parts, start, sinks)


@_mutant("a last chunk of one key dropped")
class _(Paged):
    chunk = 16

    def one(self, z, q, k, v, sinks, params):
        length = k.shape[-2]
        self.short = length > 1 and length % 16 == 1
        return super().one(z, q, k, v, sinks, params)

    def merged(self, parts, start, sinks):
        return super().merged(parts[:-1] if self.short else parts, start, sinks)


@_mutant("chunks' maxima kept in the input's type")
class _(Paged):
    def part(self, *args):
        o, total, top = super().part(*args)
        return o, total, top.to(self.dtype).to(top.dtype)


@_mutant("lse in base 2")
class _(Paged):
    def finish(self, o, total, top):
        o, lse = super().finish(o, total, top)
        return o, lse * LOG2E


@_mutant("lse without the maximum")
class _(Paged):
    def finish(self, o, total, top):
        return super().finish(o, total, torch.zeros_like(top))


@_mutant("lse as sequences, queries, heads")
class _(Paged):
    def __call__(self, q, *args, **params):
        o, lse = super().__call__(q, *args, **params)
        return o, lse.mT.reshape(lse.shape)


@_mutant("NaN where no key is seen")
class _(Paged):
    def finish(self, o, total, top):
        return o / total, (top + torch.log(total)).squeeze(-1)


@_mutant("a sequence without keys skipped")
class _(Paged):
    def one(self, z, q, k, v, sinks, params):
        o, lse = super().one(z, q, k, v, sinks, params)
        return (torch.full_like(o, 3.0), lse) if not k.shape[-2] else (o, lse)


@_mutant("a sequence without keys knows no sink")
class _(Paged):
    def one(self, z, q, k, v, sinks, params):
        return super().one(z, q, k, v, sinks if k.shape[-2] else None, params)


@_mutant("sinks added twice")
class _(Paged):
    def sink(self, o, total, top, sinks):
        return super().sink(*super().sink(o, total, top, sinks), sinks)


@_mutant("a sink once per chunk")
class _(Paged):
    chunk = 64

    def merged(self, parts, start, sinks):
        times = math.log(max(len(parts), 1))
        return super().merged(parts, start, None if sinks is None else sinks + times)


@_mutant("sinks by key head")
class _(Paged):
    def sink(self, o, total, top, sinks):
        return super().sink(o, total, top, sinks[torch.arange(len(sinks)) // 2])


@_mutant("softcap left out")
class _(Paged):
    def capped(self, scores, cap):
        return scores


@_mutant("scale given is ignored")
class _(Paged):
    def scale(self, q, params):
        return q.shape[-1] ** -0.5


@_mutant("weights rounded to bfloat16 whatever the type")
class _(Paged):
    def rounded(self, p, dtype):
        return super().rounded(p, torch.bfloat16)


@_mutant("queries beyond the 64th of a tile not written")
class _(Paged):
    def one(self, z, q, k, v, sinks, params):
        o, lse = super().one(z, q, k, v, sinks, params)
        o[:, 64:] = torch.nan
        return o, lse


@_mutant("sequences beyond the 32nd not written")
class _(Paged):
    def one(self, z, q, k, v, sinks, params):
        o, lse = super().one(z, q, k, v, sinks, params)
        return (o, lse) if z < 32 else (torch.zeros_like(o), lse)
