"""Attention as a GPU computes it: blocks of keys, a running maximum, weights rounded to the input's type.

`Flash` and `FlashBackward` are right; a mutant is one with a step replaced. The roundings are a kernel's:
float32 inside, exp2 with an error of two units, the weights and ds in the input's type before the products.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

LOG2E = math.log2(math.e)


def wide_of(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class Flash:
    """The forward pass; an instance is called as the op's torch implementation is."""

    block = 32

    def keys(self, x: Tensor, heads: int) -> Tensor:
        """Keys or values once per query head."""
        return x.repeat_interleave(heads // x.shape[-3], -3)

    def hidden(self, i: Tensor, j: Tensor, M: int, N: int, params: dict[str, Any]) -> Tensor:
        """Which keys j the queries i do not see."""
        at, hidden = i + N - M, torch.zeros(len(i), j.shape[-1], dtype=torch.bool)
        if params["causal"]:
            hidden = hidden | (j > at)
        if params["window_left"] is not None:
            hidden = hidden | (j < at - params["window_left"])
        if params["window_right"] is not None:
            hidden = hidden | (j > at + params["window_right"])
        return hidden

    def scale(self, q: Tensor, params: dict[str, Any]) -> float:
        return q.shape[-1] ** -0.5 if params["scale"] is None else params["scale"]

    def capped(self, scores: Tensor, cap: float) -> Tensor:
        """1 - 2 / (exp(2x) + 1), which is what a GPU has cheaply."""
        return cap * (1 - 2 / (torch.exp2(scores / cap * (2 * LOG2E)) + 1))

    def scored(self, q: Tensor, k: Tensor, bias: Tensor | None, params: dict[str, Any]) -> Tensor:
        scores = q @ k.mT * self.scale(q, params)
        if params["softcap"] is not None:
            scores = self.capped(scores, params["softcap"])
        return scores if bias is None else scores + bias

    def exp(self, x: Tensor) -> Tensor:
        """With an error of up to two units, by the bits of the argument."""
        noise = (torch.sin(x * 1e4).nan_to_num() * 2) * torch.finfo(x.dtype).eps
        return torch.exp2(x * LOG2E) * (1 + noise)

    def rounded(self, p: Tensor, dtype: torch.dtype) -> Tensor:
        return p.to(dtype).to(p.dtype)

    def step(self, o: Tensor, total: Tensor, factor: Tensor, p: Tensor, v: Tensor, dtype: torch.dtype):
        """The next block's part of o and of the sum of weights."""
        return o * factor + self.rounded(p, dtype) @ v, total * factor + p.sum(-1, keepdim=True)

    def finish(self, o: Tensor, total: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
        nothing = total == 0
        lse = torch.where(nothing, -torch.inf, top + torch.log(total))
        return o / torch.where(nothing, 1.0, total), lse.squeeze(-1)

    def sink(self, o: Tensor, total: Tensor, top: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sinks = sinks.to(total.dtype)[:, None, None].expand(total.shape)
        most = torch.maximum(top, sinks)
        factor = self.exp(top - most).where(~torch.isneginf(top), 0.0)
        return o * factor, total * factor + self.exp(sinks - most), most

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None = None,
        sinks: Tensor | None = None,
        **params,
    ) -> tuple[Tensor, Tensor]:
        params = {
            "causal": False,
            "scale": None,
            "window_left": None,
            "window_right": None,
            "softcap": None,
        } | params
        M, N, wide = q.shape[-2], k.shape[-2], wide_of(q.dtype)
        q, dtype = q.to(wide), q.dtype
        k, v = (self.keys(x.to(wide), q.shape[-3]) for x in (k, v))
        bias = None if bias is None else bias.to(wide)
        o = q.new_zeros(*q.shape[:-1], v.shape[-1])
        total, top = q.new_zeros(*q.shape[:-1], 1), q.new_full((*q.shape[:-1], 1), -torch.inf)
        i = torch.arange(M)[:, None]
        for start in range(0, N, self.block):
            some = slice(start, min(start + self.block, N))
            part = None if bias is None else bias[..., some]
            scores = self.scored(q, k[..., some, :], part, params)
            j = torch.arange(some.start, some.stop)
            scores = scores.masked_fill(self.hidden(i, j, M, N, params), -torch.inf)
            most = torch.maximum(top, scores.amax(-1, keepdim=True))
            base = most.where(~torch.isneginf(most), 0.0)
            p = self.exp(scores - base)
            factor = self.exp(top - base)
            o, total = self.step(o, total, factor, p, v[..., some, :], dtype)
            top = most
        top = top.where(~torch.isneginf(top), 0.0) if sinks is None else top
        if sinks is not None:
            o, total, top = self.sink(o, total, top, sinks)
        o, lse = self.finish(o, total, top)
        return o.to(dtype), lse.to(wide)


class FlashBackward(Flash):
    """The backward pass, all keys at once: p from lse, then three products."""

    def shared(self, x: Tensor, heads: int) -> Tensor:
        """The sum over the query heads of a key head, in float32."""
        return x.unflatten(-3, (heads, -1)).sum(-3)

    def weights(self, scores: Tensor, lse: Tensor) -> Tensor:
        return self.exp(scores - lse.where(~torch.isneginf(lse), 0.0))

    def delta(self, do: Tensor, o: Tensor, dlse: Tensor | None) -> Tensor:
        delta = (do * o).sum(-1, keepdim=True)
        return delta if dlse is None else delta - dlse[..., None].to(delta.dtype)

    def slope(self, q: Tensor, k: Tensor, params: dict[str, Any]) -> Tensor | float:
        if params["softcap"] is None:
            return 1.0
        return (
            1
            - (self.capped(q @ k.mT * self.scale(q, params), params["softcap"]) / params["softcap"]).square()
        )

    def __call__(self, do, q, k, v, o, lse, bias=None, dlse=None, **params):
        params = {
            "causal": False,
            "scale": None,
            "window_left": None,
            "window_right": None,
            "softcap": None,
        } | params
        M, N, dtype, wide, heads = q.shape[-2], k.shape[-2], q.dtype, wide_of(q.dtype), k.shape[-3]
        do, q, k, v, o, lse = (x.to(wide) for x in (do, q, k, v, o, lse))
        k, v = self.keys(k, q.shape[-3]), self.keys(v, q.shape[-3])
        scores = self.scored(q, k, None if bias is None else bias.to(wide), params)
        hidden = self.hidden(torch.arange(M)[:, None], torch.arange(N), M, N, params)
        p = self.weights(scores.masked_fill(hidden, -torch.inf), lse[..., None])
        above = p * (do @ v.mT - self.delta(do, o, dlse))
        ds = self.rounded(above * self.slope(q, k, params), dtype)
        scale = self.scale(q, params)
        return self.gradients(q, k, do, self.rounded(p, dtype), ds, scale, heads, dtype)

    def gradients(self, q, k, do, p, ds, scale, heads, dtype):
        dq, dk = ds @ k * scale, self.shared(ds.mT @ q, heads) * scale
        return dq.to(dtype), dk.to(dtype), self.shared(p.mT @ do, heads).to(dtype)
