"""Wrong attention over varlen sequences, and wrong gradients: right kernels (varlen_paged.py), a step
replaced."""

from __future__ import annotations

import torch

from .flash import LOG2E, FlashBackward
from .registry import adder
from .varlen_paged import Varlen, VarlenBackward, bounds, heads

_forward, _backward = adder("attention_varlen"), adder("attention_varlen_backward")
TILE = 32


def longer(part: slice, count: int, total: int) -> slice:
    return slice(part.start, min(part.stop + count, total)) if part.stop > part.start else part


class LastKeyDropped:
    def spans(self, *given):
        for z, at, there in super().spans(*given):  # type: ignore[misc]
            yield z, at, slice(there.start, max(there.stop - 1, there.start))


class NextKeySeen:
    def spans(self, offsets_q, offsets_k, M, N):
        for z, at, there in super().spans(offsets_q, offsets_k, M, N):  # type: ignore[misc]
            yield z, at, longer(there, 1, N)


class LastQueryDropped:
    def spans(self, *given):
        for z, at, there in super().spans(*given):  # type: ignore[misc]
            yield z, slice(at.start, max(at.stop - 1, at.start)), there


class KeysByTheQueriesOffsets:
    def spans(self, offsets_q, offsets_k, M, N):
        return super().spans(offsets_q, offsets_q, M, N)  # type: ignore[misc]


class OffsetsInNoOrder:
    """Each offset within the tokens, a sequence that ends before it begins is empty."""

    def spans(self, offsets_q, offsets_k, M, N):
        queries, keys = (x.long().clamp(0, n).tolist() for x, n in ((offsets_q, M), (offsets_k, N)))
        for z in range(len(queries) - 1):
            yield (
                z,
                slice(queries[z], max(queries[z : z + 2])),
                slice(keys[z], max(keys[z : z + 2])),
            )


class FirstSequencesAlone:
    """Offsets looked at by the first 64 lanes of a block, of which there is one."""

    def spans(self, *given):
        return (each for each in super().spans(*given) if each[0] < 64)  # type: ignore[misc]


class FirstHalfWaveAlone:
    """The running maximum of the offsets over 32 lanes of 64."""

    def spans(self, offsets_q, offsets_k, M, N):
        queries, keys = bounds(offsets_q, M), bounds(offsets_k, N)
        loose = [x.long().clamp(0, n).tolist() for x, n in ((offsets_q, M), (offsets_k, N))]
        for z in range(len(queries) - 1):
            a, b = (queries, keys) if z < 32 else loose
            yield z, slice(a[z], max(a[z], a[z + 1])), slice(b[z], max(b[z], b[z + 1]))


class LongestByTheMean:
    """max_seqlen from the tokens and the number of sequences: longer ones are cut."""

    def spans(self, offsets_q, offsets_k, M, N):
        most = -(-M // max(len(offsets_q) - 1, 1) // TILE) * TILE + TILE
        for z, at, there in super().spans(offsets_q, offsets_k, M, N):  # type: ignore[misc]
            yield z, slice(at.start, min(at.stop, at.start + most)), there


class LongestOfTheKeysByTheQueries:
    """One max_seqlen, that of the queries, for both: longer sequences of keys are cut."""

    def spans(self, *given):
        found = list(super().spans(*given))  # type: ignore[misc]
        most = max((at.stop - at.start for _, at, _ in found), default=0)
        for z, at, there in found:
            yield z, at, slice(there.start, min(there.stop, there.start + most))


class LastSequenceLeftOut:
    def spans(self, *given):
        return list(super().spans(*given))[:-1]  # type: ignore[misc]


for name, fault in {
    "offsets of keys off by one: a sequence's last key dropped": LastKeyDropped,
    "offsets of keys off by one: the next sequence's first key seen": NextKeySeen,
    "offsets of queries off by one: a sequence's last query left out": LastQueryDropped,
    "the queries' offsets taken for the keys'": KeysByTheQueriesOffsets,
    "offsets not brought into order": OffsetsInNoOrder,
    "sequences beyond the 64th left out": FirstSequencesAlone,
    "offsets brought into order 32 lanes at a time": FirstHalfWaveAlone,
    "the longest sequence guessed from the mean": LongestByTheMean,
    "sequences of keys cut at the longest of the queries": LongestOfTheKeysByTheQueries,
    "last sequence left out": LastSequenceLeftOut,
}.items():
    _forward(name)(type(fault.__name__, (fault, Varlen), {}))
    _backward(name)(type(fault.__name__, (fault, VarlenBackward), {}))


class TopLeft:
    def hidden(self, i, j, M, N, params):
        return super().hidden(i, j, M, M if params["causal"] else N, params)  # type: ignore[misc]


class AlignedByAllTokens:
    """The diagonal of all tokens together, as if sequences had no queries fewer than keys of their own."""

    def spans(self, offsets_q, offsets_k, M, N):
        self.apart = N - M
        return super().spans(offsets_q, offsets_k, M, N)  # type: ignore[misc]

    def hidden(self, i, j, M, N, params):
        return super().hidden(i, j, M, M + self.apart, params)  # type: ignore[misc]


class Wider:
    def hidden(self, i, j, M, N, params):
        left = params["window_left"]
        left = left if left is None else left + 1
        return super().hidden(i, j, M, N, {**params, "window_left": left})  # type: ignore[misc]


class Narrower:
    def hidden(self, i, j, M, N, params):
        left = params["window_left"]
        left = left if left is None else left - 1
        return super().hidden(i, j, M, N, {**params, "window_left": left})  # type: ignore[misc]


class RightWider:
    def hidden(self, i, j, M, N, params):
        right = params["window_right"]
        right = right if right is None else right + 1
        return super().hidden(i, j, M, N, {**params, "window_right": right})  # type: ignore[misc]


class ByRemainder:
    def keys(self, x, heads):
        return x[torch.arange(heads) % x.shape[-3]]


for name, fault in {
    "causal aligned top left": TopLeft,
    "aligned by the lengths of all sequences together": AlignedByAllTokens,
    "left window one key too wide": Wider,
    "left window one key too narrow": Narrower,
    "right window one key too wide": RightWider,
    "query head h reads key head h % G": ByRemainder,
}.items():
    _forward(name)(type(fault.__name__, (fault, Varlen), {}))
    _backward(name)(type(fault.__name__, (fault, VarlenBackward), {}))


# The forward pass.


@_forward("a sequence's last tile of keys read to its end")
class _(Varlen):
    def one(self, q, k, v, at, there, sinks, params):
        """Where no causal mask hides them, keys of the next sequence fill the tile."""
        self.real = there.stop - there.start
        count = -(-self.real // 16) * 16 - self.real
        return super().one(q, k, v, at, longer(there, count, len(k)), sinks, params)

    def hidden(self, i, j, M, N, params):
        return super().hidden(i, j, M, self.real, params)


@_forward("keys past a sequence's last count as scores of 0")
class _(Varlen):
    def one(self, q, k, v, at, there, sinks, params):
        self.beyond = -(there.stop - there.start) % 16
        return super().one(q, k, v, at, there, sinks, params)

    def finish(self, o, total, top):
        return super().finish(o, total + self.beyond * torch.exp(-top), top)


@_forward("a tile of queries written whole, over the next sequence")
class _(Varlen):
    def spans(self, *given):
        return reversed(list(super().spans(*given)))

    def keep(self, o, lse, at, own_o, own_lse):
        super().keep(o, lse, at, own_o, own_lse)
        if at.stop > at.start:
            o[at.stop : -(-(at.stop - at.start) // 16) * 16 + at.start] = 0


@_forward("a sequence without queries writes its neighbour")
class _(Varlen):
    def spans(self, *given):
        return reversed(list(super().spans(*given)))

    def empty(self, o, at):
        o[at.start : at.start + 1] = 0


@_forward("a sequence without keys skipped")
class _(Varlen):
    def keep(self, o, lse, at, own_o, own_lse):
        super().keep(o, lse, at, torch.where(torch.isneginf(own_lse)[..., None], 3.0, own_o), own_lse)


@_forward("a sequence without keys knows no sink")
class _(Varlen):
    def one(self, q, k, v, at, there, sinks, params):
        return super().one(q, k, v, at, there, sinks if there.stop > there.start else None, params)


@_forward("tokens of no sequence left as they were")
class _(Varlen):
    def __call__(self, q, k, v, cu_seqlens_q, cu_seqlens_k, sinks=None, **params):
        o, lse = super().__call__(q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, **params)
        used = torch.zeros(len(q), dtype=torch.bool)
        for _, at, _ in self.spans(cu_seqlens_q, cu_seqlens_k, len(q), len(k)):
            used[at] = True
        o[~used] = torch.nan
        return o, lse


@_forward("tokens of no sequence have an lse of 0")
class _(Varlen):
    def __call__(self, q, *args, **params):
        o, lse = super().__call__(q, *args, **params)
        return o, lse.where(lse.isfinite(), 0.0)


@_forward("a sink for tokens of no sequence")
class _(Varlen):
    def __call__(self, q, k, v, cu_seqlens_q, cu_seqlens_k, sinks=None, **params):
        o, lse = super().__call__(q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, **params)
        if sinks is not None:
            used = torch.zeros(len(q), dtype=torch.bool)
            for _, at, _ in self.spans(cu_seqlens_q, cu_seqlens_k, len(q), len(k)):
                used[at] = True
            lse = torch.where(used, lse, sinks[:, None].to(lse.dtype))
        return o, lse


@_forward("sinks added twice")
class _(Varlen):
    def sink(self, o, total, top, sinks):
        return super().sink(*super().sink(o, total, top, sinks), sinks)


@_forward("sinks ignored")
class _(Varlen):
    def __call__(self, q, k, v, cu_seqlens_q, cu_seqlens_k, sinks=None, **params):
        return super().__call__(q, k, v, cu_seqlens_q, cu_seqlens_k, None, **params)


@_forward("lse in base 2")
class _(Varlen):
    def finish(self, o, total, top):
        o, lse = super().finish(o, total, top)
        return o, lse * LOG2E


@_forward("lse as tokens, heads")
class _(Varlen):
    def __call__(self, q, *args, **params):
        o, lse = super().__call__(q, *args, **params)
        return o, lse.mT.reshape(lse.shape)


@_forward("o not rescaled when the maximum grows")
class _(Varlen):
    block = 16

    def step(self, o, total, factor, p, v, dtype):
        return o + self.rounded(p, dtype) @ v, total * factor + p.sum(-1, keepdim=True)


@_forward("softcap left out")
class _(Varlen):
    def capped(self, scores, cap):
        return scores


@_forward("sums carried over into the next sequence")
class _(Varlen):
    def one(self, q, k, v, at, there, sinks, params):
        before = max(there.start - 1, 0) if at.start else there.start
        self.real = there.stop - there.start
        self.extra = there.start - before
        return super().one(q, k, v, at, slice(before, there.stop), sinks, params)

    def hidden(self, i, j, M, N, params):
        return super().hidden(i, j - self.extra, M, self.real, params)


# The gradients.


@_backward("dk and dv of shared heads by h % G")
class _(VarlenBackward):
    def shared(self, x, heads):
        return x.unflatten(-3, (-1, heads)).sum(-4)


@_backward("dk and dv of the first head of a group alone")
class _(VarlenBackward):
    def shared(self, x, heads):
        return x.unflatten(-3, (heads, -1)).select(-3, 0)


@_backward("dlse ignored")
class _(VarlenBackward):
    def delta(self, do, o, dlse):
        return super().delta(do, o, None)


@_backward("dlse with the wrong sign")
class _(VarlenBackward):
    def delta(self, do, o, dlse):
        return super().delta(do, o, None if dlse is None else -dlse)


@_backward("dlse as tokens, heads")
class _(VarlenBackward):
    def __call__(self, do, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, dlse=None, **params):
        turned = None if dlse is None else dlse.mT.reshape(dlse.shape)
        return super().__call__(do, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, turned, **params)


@_backward("delta left out")
class _(VarlenBackward):
    def delta(self, do, o, dlse):
        return 0 * super().delta(do, o, dlse)


@_backward("delta of the packed tokens, not of the sequence's")
class _(VarlenBackward):
    def one(self, do, q, k, v, o, lse, dlse, at, there, params):
        first = slice(0, at.stop - at.start)
        given = heads(do[at]), heads(q[at]), heads(k[there]), heads(v[there]), heads(o[first])
        own = None if dlse is None else dlse[:, at]
        return FlashBackward.__call__(self, *given, lse[:, at], None, own, **params)


@_backward("lse of the packed tokens, not of the sequence's")
class _(VarlenBackward):
    def one(self, do, q, k, v, o, lse, dlse, at, there, params):
        given = heads(do[at]), heads(q[at]), heads(k[there]), heads(v[there]), heads(o[at])
        own = None if dlse is None else dlse[:, at]
        return FlashBackward.__call__(self, *given, lse[:, : at.stop - at.start], None, own, **params)


@_backward("lse taken in base 2")
class _(VarlenBackward):
    def weights(self, scores, lse):
        return super().weights(scores, lse / LOG2E)


@_backward("NaN where no key is seen")
class _(VarlenBackward):
    def weights(self, scores, lse):
        return self.exp(scores - lse)


@_backward("scale left out of dk")
class _(VarlenBackward):
    def gradients(self, q, k, do, p, ds, scale, heads, dtype):
        dq, _, dv = super().gradients(q, k, do, p, ds, scale, heads, dtype)
        return dq, self.shared(ds.mT @ q, heads).to(dtype), dv


@_backward("slope of the softcap left out")
class _(VarlenBackward):
    def slope(self, q, k, params):
        return 1.0


@_backward("a sequence's last tile of queries read to its end")
class _(VarlenBackward):
    def one(self, do, q, k, v, o, lse, dlse, at, there, params):
        self.real = at.stop - at.start
        wide = longer(at, -self.real % 16, len(q))
        dq, dk, dv = super().one(do, q, k, v, o, lse, dlse, wide, there, params)
        return dq[:, : self.real], dk, dv

    def hidden(self, i, j, M, N, params):
        return super().hidden(i, j, self.real, N, params)


@_backward("a tile of dk and dv written whole, over the next sequence")
class _(VarlenBackward):
    def __call__(self, do, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, dlse=None, **params):
        grads = super().__call__(do, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, dlse, **params)
        for _, _, there in self.spans(cu_seqlens_q, cu_seqlens_k, len(q), len(k)):
            if there.stop > there.start:
                tile = -(-(there.stop - there.start) // 16) * 16
                for grad in grads[1:]:
                    grad[there.stop : there.start + tile] = 0
        return grads


@_backward("a sequence without keys or queries writes its neighbour")
class _(VarlenBackward):
    def __call__(self, do, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, dlse=None, **params):
        grads = super().__call__(do, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, dlse, **params)
        for _, at, there in self.spans(cu_seqlens_q, cu_seqlens_k, len(q), len(k)):
            for grad, part in zip(grads, (at, there, there), strict=True):
                if part.stop == part.start:
                    grad[part.start : part.start + 1] = 0
        return grads


@_backward("gradients of tokens of no sequence left as they were")
class _(VarlenBackward):
    def __call__(self, do, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, dlse=None, **params):
        grads = super().__call__(do, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, dlse, **params)
        for grad, part in zip(grads, ("at", "there", "there"), strict=True):
            used = torch.zeros(len(grad), dtype=torch.bool)
            for _, at, there in self.spans(cu_seqlens_q, cu_seqlens_k, len(q), len(k)):
                used[at if part == "at" else there] = True
            grad[~used] = torch.nan
        return grads


@_backward("weights and ds rounded to bfloat16 whatever the type")
class _(VarlenBackward):
    def rounded(self, p, dtype):
        return super().rounded(p, torch.bfloat16)
