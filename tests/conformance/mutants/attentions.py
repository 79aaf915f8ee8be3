"""Wrong attention and wrong gradients of it: right kernels (flash.py) with one step replaced."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from .flash import LOG2E, Flash, FlashBackward
from .registry import Mutant, adder, found
from .tools import right, walked


def _tf32(x):
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) if x.dtype == torch.float32 else x


@adder("attention")("causal off by one: its own key hidden")
class _(Flash):
    def hidden(self, i, j, M, N, params):
        return super().hidden(i, j, M, N, params) | (params["causal"] & (j > i + N - M - 1))


@adder("attention")("causal off by one: the next key seen")
class _(Flash):
    def hidden(self, i, j, M, N, params):
        rest = super().hidden(i, j, M, N, {**params, "causal": False})
        return rest | (params["causal"] & (j > i + N - M + 1))


@adder("attention")("causal aligned top left")
class _(Flash):
    def hidden(self, i, j, M, N, params):
        return super().hidden(i, j, M, M if params["causal"] else N, params)


@adder("attention")("query head h reads key head h % G")
class _(Flash):
    def keys(self, x, heads):
        return x[..., torch.arange(heads) % x.shape[-3], :, :]


@adder("attention")("all heads read key head 0")
class _(Flash):
    def keys(self, x, heads):
        return x[..., :1, :, :].expand(*x.shape[:-3], heads, *x.shape[-2:])


@adder("attention")("o not rescaled when the maximum grows")
class _(Flash):
    def step(self, o, total, factor, p, v, dtype):
        return o + self.rounded(p, dtype) @ v, total * factor + p.sum(-1, keepdim=True)


@adder("attention")("sum not rescaled when the maximum grows")
class _(Flash):
    def step(self, o, total, factor, p, v, dtype):
        return o * factor + self.rounded(p, dtype) @ v, total + p.sum(-1, keepdim=True)


@adder("attention")("left window one key too wide")
class _(Flash):
    def hidden(self, i, j, M, N, params):
        left = params["window_left"]
        return super().hidden(i, j, M, N, {**params, "window_left": left if left is None else left + 1})


@adder("attention")("left window one key too narrow")
class _(Flash):
    def hidden(self, i, j, M, N, params):
        left = params["window_left"]
        return super().hidden(i, j, M, N, {**params, "window_left": left if left is None else left - 1})


@adder("attention")("right window one key too wide")
class _(Flash):
    def hidden(self, i, j, M, N, params):
        side = params["window_right"]
        return super().hidden(i, j, M, N, {**params, "window_right": side if side is None else side + 1})


@adder("attention")("window of 0 taken for none")
class _(Flash):
    def hidden(self, i, j, M, N, params):
        return super().hidden(i, j, M, N, {**params, "window_left": params["window_left"] or None})


@adder("attention")("keys beyond a multiple of 64 dropped")
class _(Flash):
    def hidden(self, i, j, M, N, params):
        return super().hidden(i, j, M, N, params) | ((j >= N // 64 * 64) & (N > 64))


@adder("attention")("keys past the last count as scores of 0")
class _(Flash):
    def finish(self, o, total, top):
        return super().finish(o, total + torch.exp(-top), top)


@adder("attention")("lse in base 2")
class _(Flash):
    def finish(self, o, total, top):
        o, lse = super().finish(o, total, top)
        return o, lse * LOG2E


@adder("attention")("lse without the maximum")
class _(Flash):
    def finish(self, o, total, top):
        return super().finish(o, total, torch.zeros_like(top))


@adder("attention")("lse rounded to the input's type")
class _(Flash):
    def __call__(self, q, *args, **params):
        o, lse = super().__call__(q, *args, **params)
        return o, lse.to(q.dtype).to(lse.dtype)


@adder("attention")("NaN where no key is seen")
class _(Flash):
    def finish(self, o, total, top):
        return o / total, (top + torch.log(total)).squeeze(-1)


@adder("attention")("lse of 0 where no key is seen")
class _(Flash):
    def finish(self, o, total, top):
        o, lse = super().finish(o, total, top)
        return o, lse.where(~torch.isneginf(lse), 0.0)


@adder("attention")("rows without a key hold what was there")
class _(Flash):
    def finish(self, o, total, top):
        right, lse = super().finish(o, total, top)
        stale = torch.full_like(right, 3.0)
        return torch.where(total == 0, stale, right), lse


@adder("attention")("hidden scores -10000, not -inf")
class _(Flash):
    def hidden(self, i, j, M, N, params):
        self._mask = super().hidden(i, j, M, N, params)
        return torch.zeros_like(self._mask)

    def exp(self, x):
        if x.shape[-2:] == self._mask.shape:
            x = x.masked_fill(self._mask, -10000.0)
            x = x - x.amax(-1, keepdim=True).clamp(max=0)
        return super().exp(x)


@adder("attention")("softcap after the bias")
class _(Flash):
    def scored(self, q, k, bias, params):
        cap = params["softcap"]
        scores = super().scored(q, k, bias, {**params, "softcap": None})
        return scores if cap is None else self.capped(scores, cap)


@adder("attention")("softcap left out")
class _(Flash):
    def capped(self, scores, cap):
        return scores


@adder("attention")("tanh to 11 bits")
class _(Flash):
    def capped(self, scores, cap):
        return cap * torch.tanh(scores / cap) * (1 + 2.0**-11 * torch.sin(scores * 1e3))


@adder("attention")("scale twice")
class _(Flash):
    def scale(self, q, params):
        return super().scale(q, params) ** 2


@adder("attention")("scale given is ignored")
class _(Flash):
    def scale(self, q, params):
        return q.shape[-1] ** -0.5


@adder("attention")("scale of 0 taken for none")
class _(Flash):
    def scale(self, q, params):
        return params["scale"] or q.shape[-1] ** -0.5


@adder("attention")("scale from v's head size")
class _(Flash):
    def __call__(self, q, k, v, *args, scale=None, **params):
        return super().__call__(
            q, k, v, *args, scale=v.shape[-1] ** -0.5 if scale is None else scale, **params
        )


@adder("attention")("-inf times a scale of 0")
class _(Flash):
    def exp(self, x):
        return super().exp(x * self._scale / self._scale if self._scale == 0 else x)

    def scale(self, q, params):
        self._scale = super().scale(q, params)
        return self._scale


@adder("attention")("maximum of the scores before a negative scale")
class _(Flash):
    def __call__(self, q, k, v, *args, scale=None, **params):
        if scale is None or scale >= 0 or not k.shape[-2]:
            return right("attention")(q, k, v, *args, scale=scale, **params)
        least = -super().__call__(-q, k, v, scale=scale * 8, causal=params.get("causal", False))[1] / 8
        o, lse = super().__call__(q, k, v, *args, scale=scale, **params)
        grown = torch.exp(lse - least)[..., None] * 4096
        return torch.where(grown > 65504, torch.inf, o.float()).to(o.dtype), lse


@adder("attention")("bias of head 0 for all")
class _(Flash):
    def scored(self, q, k, bias, params):
        return super().scored(q, k, None if bias is None else bias[..., :1, :, :], params)


@adder("attention")("bias scaled")
class _(Flash):
    def scored(self, q, k, bias, params):
        return super().scored(q, k, None if bias is None else bias * self.scale(q, params), params)


@adder("attention")("bias in base 2")
class _(Flash):
    def scored(self, q, k, bias, params):
        return super().scored(q, k, None if bias is None else bias / LOG2E, params)


@adder("attention")("sinks ignored")
class _(Flash):
    def __call__(self, q, k, v, bias=None, sinks=None, **params):
        return super().__call__(q, k, v, bias, **params)


@adder("attention")("sinks left out of lse")
class _(Flash):
    def __call__(self, q, k, v, bias=None, sinks=None, **params):
        _, lse = super().__call__(q, k, v, bias, **params)
        return super().__call__(q, k, v, bias, sinks, **params)[0], lse


@adder("attention")("a sink once per block of keys")
class _(Flash):
    def sink(self, o, total, top, sinks):
        return super().sink(o, total, top, sinks + math.log(3))


@adder("attention")("weights rounded to bfloat16 whatever the type")
class _(Flash):
    def rounded(self, p, dtype):
        return super().rounded(p, torch.bfloat16)


@adder("attention")("o accumulated in the input's type")
class _(Flash):
    def step(self, o, total, factor, p, v, dtype):
        o, total = super().step(o, total, factor, p, v, dtype)
        return o.to(dtype).to(o.dtype), total


@adder("attention")("sum of weights in the input's type")
class _(Flash):
    def step(self, o, total, factor, p, v, dtype):
        o, total = super().step(o, total, factor, p, v, dtype)
        return o, total.to(dtype).to(total.dtype)


@adder("attention")("scores rounded to the input's type")
class _(Flash):
    def __call__(self, q, *args, **params):
        self._dtype = q.dtype
        return super().__call__(q, *args, **params)

    def scored(self, q, k, bias, params):
        scores = super().scored(q, k, bias, params)
        return scores.to(self._dtype).to(scores.dtype)


@adder("attention")("scores through TF32")
class _(Flash):
    def scored(self, q, k, bias, params):
        return super().scored(_tf32(q), _tf32(k), bias, params)


@adder("attention")("exp to 12 bits")
class _(Flash):
    def exp(self, x):
        return super().exp(x) * (1 + 2.0**-12 * torch.sin(x * 1e3).nan_to_num())


@adder("attention")("columns of q and k beyond a multiple of 16 dropped")
class _(Flash):
    def scored(self, q, k, bias, params):
        whole = max(q.shape[-1] // 16 * 16, 1)
        params = {**params, "scale": self.scale(q, params)}
        return super().scored(q[..., :whole], k[..., :whole], bias, params)


@adder("attention")("columns of v beyond 128 not written")
class _(Flash):
    def finish(self, o, total, top):
        o, lse = super().finish(o, total, top)
        o[..., 128:] = torch.nan
        return o, lse


@adder("attention")("queries beyond a multiple of 16 not written")
class _(Flash):
    def finish(self, o, total, top):
        o, lse = super().finish(o, total, top)
        o[..., o.shape[-2] // 16 * 16 :, :] = torch.nan
        return o, lse


@adder("attention")("one query alone read as causal from the first key")
class _(Flash):
    def hidden(self, i, j, M, N, params):
        hidden = super().hidden(i, j, M, N, params)
        return hidden | (j > 0) if M == 1 and N > 1 else hidden


@adder("attention")("NaN swallowed")
class _(Flash):
    def finish(self, o, total, top):
        o, lse = super().finish(o, total, top)
        return o.nan_to_num(nan=0.0), lse


@adder("attention")("a hidden NaN reaches the query")
class _(Flash):
    def scored(self, q, k, bias, params):
        scores = super().scored(q, k, bias, params)
        return scores + 0 * scores.sum(-1, keepdim=True)


@adder("attention")("k and v read as contiguous")
class _(Flash):
    def __call__(self, q, k, v, *args, **params):
        return super().__call__(q, walked(k), walked(v), *args, **params)


@adder("attention")("the first of a batch for all in k")
class _(Flash):
    def __call__(self, q, k, *args, **params):
        return super().__call__(q, k[:1].expand(k.shape) if k.dim() > 3 else k, *args, **params)


@adder("attention")("blocks of keys depend on the batch", claims_batch_invariance=True)
class _(Flash):
    def __call__(self, q, *args, **params):
        whole = right("attention")(q, *args, **params)
        return whole if q.shape[0] == 1 else super().__call__(q, *args, **params)


@adder("attention")("offsets in 32 bits")
class _(Flash):
    def __call__(self, q, *args, **params):
        last = sum((n - 1) * s for n, s in zip(q.shape, q.stride(), strict=True))
        return right("attention")(q if last < 2**31 else torch.zeros_like(q), *args, **params)


# The gradients.


@adder("attention_backward")("dk and dv of the first head of a group alone")
class _(FlashBackward):
    def shared(self, x, heads):
        return x.unflatten(-3, (heads, -1)).select(-3, 0)


@adder("attention_backward")("dk and dv of shared heads by h % G")
class _(FlashBackward):
    def shared(self, x, heads):
        return x.unflatten(-3, (-1, heads)).sum(-4)


@adder("attention_backward")("dk and dv of shared heads summed in the input's type")
class _(FlashBackward):
    def gradients(self, q, k, do, p, ds, scale, heads, dtype):
        dq, dk = ds @ k * scale, (ds.mT @ q * scale).to(dtype).unflatten(-3, (heads, -1))
        return dq.to(dtype), dk.sum(-3), (p.mT @ do).to(dtype).unflatten(-3, (heads, -1)).sum(-3)


@adder("attention_backward")("causal aligned top left")
class _(FlashBackward):
    def hidden(self, i, j, M, N, params):
        return super().hidden(i, j, M, M if params["causal"] else N, params)


@adder("attention_backward")("causal off by one")
class _(FlashBackward):
    def hidden(self, i, j, M, N, params):
        return super().hidden(i, j, M, N, params) | (params["causal"] & (j > i + N - M - 1))


@adder("attention_backward")("window off by one")
class _(FlashBackward):
    def hidden(self, i, j, M, N, params):
        left = params["window_left"]
        return super().hidden(i, j, M, N, {**params, "window_left": left if left is None else left - 1})


@adder("attention_backward")("lse taken in base 2")
class _(FlashBackward):
    def weights(self, scores, lse):
        return super().weights(scores, lse / LOG2E)


@adder("attention_backward")("NaN where no key is seen")
class _(FlashBackward):
    def weights(self, scores, lse):
        return self.exp(scores - lse)


@adder("attention_backward")("delta left out")
class _(FlashBackward):
    def delta(self, do, o, dlse):
        return 0 * super().delta(do, o, dlse)


@adder("attention_backward")("dlse ignored")
class _(FlashBackward):
    def delta(self, do, o, dlse):
        return super().delta(do, o, None)


@adder("attention_backward")("dlse with the wrong sign")
class _(FlashBackward):
    def delta(self, do, o, dlse):
        return super().delta(do, o, None if dlse is None else -dlse)


@adder("attention_backward")("delta rounded to the input's type")
class _(FlashBackward):
    def __call__(self, do, q, *args, **params):
        self._dtype = q.dtype
        return super().__call__(do, q, *args, **params)

    def delta(self, do, o, dlse):
        delta = super().delta(do, o, dlse)
        return delta.to(self._dtype).to(delta.dtype)


@adder("attention_backward")("slope of the softcap left out")
class _(FlashBackward):
    def slope(self, q, k, params):
        return 1.0


@adder("attention_backward")("scale left out of dk")
class _(FlashBackward):
    def gradients(self, q, k, do, p, ds, scale, heads, dtype):
        dq, _, dv = super().gradients(q, k, do, p, ds, scale, heads, dtype)
        return dq, self.shared(ds.mT @ q, heads).to(dtype), dv


@adder("attention_backward")("dv from ds")
class _(FlashBackward):
    def gradients(self, q, k, do, p, ds, scale, heads, dtype):
        return super().gradients(q, k, do, ds, ds, scale, heads, dtype)


@adder("attention_backward")("last query left out of dk and dv")
class _(FlashBackward):
    def gradients(self, q, k, do, p, ds, scale, heads, dtype):
        dq, _, _ = super().gradients(q, k, do, p, ds, scale, heads, dtype)
        some = tuple(x[..., :-1, :] for x in (q, do, p, ds))
        return dq, *super().gradients(some[0], k, some[1], some[2], some[3], scale, heads, dtype)[1:]


@adder("attention_backward")("bias left out of the weights")
class _(FlashBackward):
    def __call__(self, do, q, k, v, o, lse, bias=None, dlse=None, **params):
        return super().__call__(do, q, k, v, o, lse, None, dlse, **params)


@adder("attention_backward")("weights and ds rounded to bfloat16 whatever the type")
class _(FlashBackward):
    def rounded(self, p, dtype):
        return super().rounded(p, torch.bfloat16)


@adder("attention_backward")("dq of the last 32 keys alone")
class _(FlashBackward):
    def gradients(self, q, k, do, p, ds, scale, heads, dtype):
        dq = ds[..., -32:] @ k[..., -32:, :] * scale
        return dq.to(dtype), *super().gradients(q, k, do, p, ds, scale, heads, dtype)[1:]


@adder("attention_backward")("dq summed in the input's type")
class _(FlashBackward):
    def gradients(self, q, k, do, p, ds, scale, heads, dtype):
        dq = torch.zeros_like(q, dtype=dtype)
        for start in range(0, k.shape[-2], 16):
            dq = dq + (ds[..., start : start + 16] @ k[..., start : start + 16, :] * scale).to(dtype)
        return dq, *super().gradients(q, k, do, p, ds, scale, heads, dtype)[1:]


@adder("attention_backward")("rows of dk and dv beyond a multiple of 32 not written")
class _(FlashBackward):
    def gradients(self, q, k, do, p, ds, scale, heads, dtype):
        dq, dk, dv = super().gradients(q, k, do, p, ds, scale, heads, dtype)
        for each in (dk, dv):
            each[..., each.shape[-2] // 32 * 32 :, :] = torch.nan
        return dq, dk, dv


def _dbias(name: str, change: Callable[..., torch.Tensor]) -> None:
    def function(do, q, k, v, o, lse, bias, dlse=None, **params):
        return change(right("attention_dbias"), do, q, k, v, o, lse, bias, dlse, **params)

    found.append(Mutant("attention_dbias", name, "torch", function))


_dbias("scaled", lambda op, do, q, *rest, scale=None, **params: op(do, q, *rest, scale=scale, **params) * (
    q.shape[-1] ** -0.5 if scale is None else scale))  # fmt: skip
_dbias("dlse ignored", lambda op, *args, **params: op(*args[:-1], None, **params))
_dbias("transposed where square", lambda op, *args, **params: (
    lambda d: d.mT.contiguous() if d.shape[-1] == d.shape[-2] else d)(op(*args, **params)))  # fmt: skip
_dbias("mask forgotten", lambda op, *args, causal=False, **params: op(*args, causal=False, **params))
