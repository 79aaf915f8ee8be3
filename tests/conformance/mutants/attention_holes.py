"""Wrong attention that tier core once accepted: docs/notes/judge_holes.md."""

from __future__ import annotations

import torch

from .flash import Flash, FlashBackward
from .registry import adder
from .tools import right
from .varlen_paged import Paged, Varlen, VarlenBackward

_dense, _gradient = adder("attention"), adder("attention_backward")
_paged, _forward = adder("attention_paged"), adder("attention_varlen")
_backward = adder("attention_varlen_backward")


LOW_WORD = 2**32


def narrow(x):
    """What 32 bits with a sign keep of a number."""
    return (x + 2**31) % LOW_WORD - 2**31


# Sizes of which no case had more than one tile.


class ManyTiles:
    """Stages used again: from the fourth block of 128 keys on, those of 128 before."""

    def hidden(self, i, j, M, N, params):
        hidden = super().hidden(i, j, M, N, params)  # type: ignore[misc]
        return hidden | (j >= 384) if M > 7 else hidden


for add, kind in (
    (_dense, Flash),
    (_gradient, FlashBackward),
    (_forward, Varlen),
    (_backward, VarlenBackward),
):
    add("keys beyond the third block of 128 dropped, of more than 7 queries")(
        type("_", (ManyTiles, kind), {})
    )


@_dense("tiles of 128 queries beyond the 132nd not written")
class _(Flash):
    def __call__(self, q, *args, **params):
        o, lse = super().__call__(q, *args, **params)
        tiles = -(-q.shape[-2] // 128)
        heads = torch.arange(q.shape[:-2].numel()).reshape(q.shape[:-2])
        number = heads[..., None] * tiles + torch.arange(q.shape[-2]) // 128
        return o.masked_fill((number >= 132)[..., None], 0) if q.shape[-1] > 16 else o, lse


@_gradient("queries beyond the 256th left out of dk and dv")
class _(FlashBackward):
    def gradients(self, q, k, do, p, ds, scale, heads, dtype):
        dq, _, _ = super().gradients(q, k, do, p, ds, scale, heads, dtype)
        some = tuple(x[..., :256, :] for x in (q, do, p, ds))
        return dq, *super().gradients(some[0], k, some[1], some[2], some[3], scale, heads, dtype)[1:]


class Decode(Paged):
    """attention of few queries, in chunks of keys."""

    chunk = 1024

    def __call__(self, q, k, v, bias=None, sinks=None, **params):  # type: ignore[override]
        few = q.shape[-2] * (q.shape[-3] // k.shape[-3]) <= 64 and q.shape[-1] > 16
        if bias is not None or not few or k.shape[-2] <= self.chunk:
            return right("attention")(q, k, v, bias, sinks, **params)
        self.dtype = q.dtype
        wide = torch.promote_types(q.dtype, torch.float32)
        found = [
            self.one(0, each[0].to(wide), each[1].to(wide), each[2].to(wide), sinks, params)
            for each in zip(*(x.flatten(0, -4) if x.dim() > 3 else x[None] for x in (q, k, v)), strict=True)
        ]
        o, lse = (torch.stack(each) for each in zip(*found, strict=True))
        return o.reshape(*q.shape[:-1], v.shape[-1]).to(q.dtype), lse.reshape(q.shape[:-1])


@_dense("few queries, many keys: of several chunks the last dropped")
class _(Decode):
    def merged(self, parts, start, sinks):
        return super().merged(parts[:-1], start, sinks)


@_dense("few queries, many keys: causal from the first chunk's end")
class _(Decode):
    def hidden(self, i, j, M, N, params):
        return super().hidden(i, j, M, N, params) if int(j[0]) else torch.zeros(M, len(j), dtype=torch.bool)


# Windows.


class Narrow:
    """The window's length in 32 bits, and so its end."""

    def hidden(self, i, j, M, N, params):
        sides = {side: params[side] for side in ("window_left", "window_right")}
        at = i + N - M
        hidden = super().hidden(i, j, M, N, {**params, **dict.fromkeys(sides)})  # type: ignore[misc]
        if sides["window_left"] is not None:
            hidden = hidden | (j < narrow(at - sides["window_left"]))
        if sides["window_right"] is not None:
            hidden = hidden | (j > narrow(at + sides["window_right"]))
        return hidden


_paged("a window's end in 32 bits")(type("_", (Narrow, Paged), {}))
_forward("a window's end in 32 bits")(type("_", (Narrow, Varlen), {}))
_backward("a window's end in 32 bits")(type("_", (Narrow, VarlenBackward), {}))
_gradient("a window's end in 32 bits")(type("_", (Narrow, FlashBackward), {}))


@_paged("a window longer than a chunk ends with its last chunk")
class _(Paged):
    chunk = 1024

    def one(self, z, q, k, v, sinks, params):
        self.whole = params["window_left"] is None
        return super().one(z, q, k, v, sinks, params)

    def merged(self, parts, start, sinks):
        return super().merged(parts if self.whole else parts[-1:], start, sinks)


# Large scores and sinks.


@_paged("chunks weighed by exp of their maximum itself")
class _(Paged):
    def merged(self, parts, start, sinks):
        o, total, top = start
        for each, sums, peak in parts:
            weight = self.exp(peak)
            o, total = o + each * weight, total + sums * weight
        if sinks is not None:
            total = total + self.exp(sinks[:, None, None].to(total.dtype))
        return o, total, torch.zeros_like(top)


class NoTop:
    """exp(sink - m), m the largest score: overflows where the sink is far above it."""

    def sink(self, o, total, top, sinks):
        base = top.where(~torch.isneginf(top), 0.0)
        return o, total + torch.exp(sinks.to(total.dtype)[:, None, None] - base), base


_dense("a sink left out of the maximum")(type("_", (NoTop, Flash), {}))
_paged("a sink left out of the maximum")(type("_", (NoTop, Paged), {}))
_forward("a sink left out of the maximum")(type("_", (NoTop, Varlen), {}))


# What lies behind a sequence.


@_paged("what lies behind a sequence in its last page times a weight of 0")
class _(Paged):
    def one(self, z, q, k, v, sinks, params):
        o, lse = super().one(z, q, k, v, sinks, params)
        return o + 0 * self.behind.sum(-2).repeat_interleave(q.shape[0] // k.shape[0], 0)[:, None], lse

    def rows(self, cache, row, length):
        whole = super().rows(cache, row, -(-length // cache.shape[1]) * cache.shape[1])
        self.behind = whole[:, length:].to(torch.promote_types(cache.dtype, torch.float32))
        return whole[:, :length]


@_forward("the next sequence's values in the last tile times a weight of 0")
class _(Varlen):
    def one(self, q, k, v, at, there, sinks, params):
        o, lse = super().one(q, k, v, at, there, sinks, params)
        behind = v[there.stop : there.stop + -(there.stop - there.start) % 16].float().sum(0)
        return o + 0 * behind.repeat_interleave(q.shape[1] // v.shape[1], 0)[:, None].to(o.dtype), lse


@_paged("NaN swallowed")
class _(Paged):
    def finish(self, o, total, top):
        o, lse = super().finish(o, total, top)
        return o.nan_to_num(nan=0.0), lse


@_forward("NaN swallowed")
class _(Varlen):
    def finish(self, o, total, top):
        o, lse = super().finish(o, total, top)
        return o.nan_to_num(nan=0.0), lse


# The same bits whatever lies beside it; places beyond 2^31.


@_paged("chunks by the number of sequences")
class _(Paged):
    def __call__(self, q, *args, **params):
        self.chunk = 512 if q.shape[0] == 1 else 32
        return super().__call__(q, *args, **params)


@_paged("chunks' sums kept in the input's type")
class _(Paged):
    chunk = 1024

    def part(self, *args):
        o, total, top = super().part(*args)
        return o.to(self.dtype).to(o.dtype), total, top


def reach(x):
    return sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


@_paged("a page's place in 32 bits")
class _(Paged):
    def __call__(self, q, k_cache, *args, **params):
        o, lse = right("attention_paged")(q, k_cache, *args, **params)
        return (o, lse) if reach(k_cache) < 2**31 else (torch.zeros_like(o), lse)


@_forward("a token's place in 32 bits")
class _(Varlen):
    def __call__(self, q, k, *args, **params):
        o, lse = right("attention_varlen")(q, k, *args, **params)
        return (o, lse) if max(reach(q), reach(k)) < 2**31 else (torch.zeros_like(o), lse)


@_backward("a token's place in 32 bits")
class _(VarlenBackward):
    def __call__(self, do, q, k, *args, **params):
        dq, dk, dv = right("attention_varlen_backward")(do, q, k, *args, **params)
        return (dq, dk, dv) if max(reach(q), reach(k)) < 2**31 else (torch.zeros_like(dq), dk, dv)


@_dense("a row's place in 32 bits")
class _(Flash):
    def __call__(self, q, k, *args, **params):
        o, lse = right("attention")(q, k, *args, **params)
        far = (k.shape[-2] - 1) * k.stride(-2) >= 2**31
        return (torch.zeros_like(o) if far else o), lse
