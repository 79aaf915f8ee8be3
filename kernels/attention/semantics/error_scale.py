"""How far a correct kernel may be from attention's reference: error scales in units of eps(acc).

A kernel is taken to compute scores, exponentials and sums in `acc` (float32), to round the weights p, and in
the backward pass ds, to the input type T before the second products, and to round each result once.

- A dot product of K terms is off by at most steps(K) * (|sum| + rss) units, rss = sqrt(sum of squares of the
  products): the constants that were measured for matmul (docs/calibration.md).
- A score that is off by `a` units moves its weight by the factor 1 + a. So o moves by the sum of
  p * a * (v - o), at most sqrt(sum(p * a^2) * sum(p * (v - o)^2)) (Cauchy and Schwarz), lse by sum(p * a).
- Rounding n weights to T moves their sum by eps(T) / 2 times independent parts of each term: the rss of the
  terms, ROUNDING sigma of it, and where the roundings agree (equal scores) eps(T) / 2 of the sum itself.
  The sure bound, eps(T) / 2 * sum(p * |v|), is sqrt(n) times as wide and would let wrong kernels through.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .reference import Backward, Scores, backward_of, flat, grouped, scores_of, softmax

ROUNDING = 1.5
"""Of eps(T) per unit of rss: a rounding is uniform within half of it at most, 0.2 of it on average over
mantissas (root mean square); the largest of a million sums lies 5 sigma out, and half as much again."""
OWN = 8.0
"""Roundings in `acc` on the way of one term: exp, a rescaling, the division, a merge of partial results."""


class Precision:
    """What a row of types says of the roundings. `narrow` is eps(T) in units of eps(acc), 0 where nothing is
    rounded to T on the way; `least` is the smallest subnormal of such a T, `floor` twice the smallest normal
    number of acc, below which a weight may become 0."""

    def __init__(self, types: Mapping[str, str]) -> None:
        T, acc = (torch.finfo(getattr(torch, types[name])) for name in ("T", "acc"))
        self.is_narrow = T.eps > acc.eps
        self.narrow = T.eps / acc.eps if self.is_narrow else 0.0
        self.unit = acc.eps
        self.floor = 2 * acc.smallest_normal
        self.least = T.smallest_normal * T.eps if self.is_narrow else 0.0

    def steps(self, count: int) -> float:
        """The error of a sum of `count` products; matrix cores cut towards zero 16 terms at a time."""
        return 8 + 2 * math.sqrt(count) + (count / 16 if self.is_narrow else 0)

    def lost(self, weights: Tensor) -> Tensor:
        """What a weight so small that it is subnormal, or 0, may have lost."""
        return weights.abs().clamp(max=max(self.least, self.floor)) / self.unit

    def product(self, total: Tensor, rss: Tensor, count: int) -> Tensor:
        """The error of a sum of products, one factor of which was rounded to T: `total` is the sum."""
        size = total.abs()
        return (
            (ROUNDING * self.narrow + OWN) * rss
            + (0.5 * self.narrow + OWN) * size
            + self.steps(count) * (size + rss)
        )

    def weighted(self, o: Tensor, rss: Tensor, sizes: Tensor, count: int) -> Tensor:
        """The error of `o`, a sum of values by weights rounded to T; `sizes`: that of the terms' sizes."""
        return self.product(o, rss, count)

    def of_scores(
        self, q: Tensor, k: Tensor, bias: Tensor | None, found: Scores, cap: float | None
    ) -> Tensor:
        """The error of each score that is not -inf, 0 elsewhere."""
        D = q.shape[-1]
        rss = torch.einsum("...gsmd,...gnd->...gsmn", grouped(q.square(), k), k.square()).sqrt()
        size = found.products.abs()
        off = abs(found.scale) * (self.steps(D) * (size + rss) + 4 * size)
        off = torch.where(torch.isfinite(off), off, 0.0)  # a cap makes a finite score of an infinite product
        if cap is not None:
            off = off + OWN * abs(cap)
        if bias is not None:
            off = off + 2 * found.scores.abs() + 2 * grouped(bias, k).abs()
        off = off + 4 * found.scores.abs() + 4
        return torch.where(torch.isfinite(found.scores), off, 0.0)


def forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, sinks: Tensor | None = None, *,
    types: Mapping[str, str], kind: Precision | None = None, **params: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """The error scales of o and lse."""
    kind, N = Precision(types) if kind is None else kind, k.shape[-2]
    found = scores_of(q, k, bias, **params)
    p, lse, top = softmax(found.scores, sinks, k)
    top = top.unsqueeze(-1).abs()
    off = kind.of_scores(q, k, bias, found, params["softcap"]) + 4 * top * (p > 0)
    shift = (p * off).sum(-1, keepdim=True)

    def over_keys(weights: Tensor, values: Tensor) -> Tensor:
        return torch.einsum("...gsmn,...gne->...gsme", weights, values)

    o, squares = over_keys(p, v), over_keys(p, v.square())
    kept = p.sum(-1, keepdim=True)
    spread = (squares - (2 - kept) * o.square()).clamp(min=0).sqrt()
    rss = over_keys(p.square(), v.square()).sqrt()
    scale = kind.weighted(o, rss, over_keys(p, v.abs()), N)
    scale = scale + (p * off.square()).sum(-1, keepdim=True).sqrt() * spread
    scale = scale + over_keys(kind.lost(p), v.abs())
    if sinks is not None:
        sink = sinks.unflatten(0, (k.shape[-3], -1))[..., None, None].abs()
        scale = scale + o.abs() * (1 - kept) * 4 * (sink + top)
        shift = shift + (1 - kept) * 4 * (sink + top)
    own = kind.steps(N) + 4 * torch.where(torch.isfinite(lse), lse.abs(), 0.0) + 4 * top.squeeze(-1)
    return {"o": flat(scale), "lse": (shift.squeeze(-1) + own).flatten(-3, -2)}


def _of_ds(
    kind: Precision, found: Backward, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
    bias: Tensor | None, dlse: Tensor | None, cap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The relative error of p, and the errors of `above` and of `ds`."""
    E = v.shape[-1]
    raw = kind.of_scores(q, k, bias, found.scored, cap)
    by_head = lse.unflatten(-2, (k.shape[-3], -1)).unsqueeze(-1).abs()
    off = torch.where(found.p > 0, raw + 4 * by_head, 0.0)
    rss = torch.einsum("...gsme,...gne->...gsmn", grouped(do.square(), k), v.square()).sqrt()
    apart = (do * o).square().sum(-1).sqrt().unflatten(-2, (k.shape[-3], -1)).unsqueeze(-1)
    inner = found.dp - found.delta
    off_inner = kind.steps(E) * (found.dp.abs() + rss + found.delta.abs() + apart) + 4 * inner.abs()
    if dlse is not None:
        extra = dlse.unflatten(-2, (k.shape[-3], -1)).unsqueeze(-1).abs()
        off_inner = off_inner + kind.steps(E) * extra
    above = found.above.abs() * (off + 4) + found.p * off_inner
    above = above + found.p.clamp(max=kind.floor) / kind.unit * inner.abs()
    if cap is None or found.scored.curve is None:
        return off, above, above
    slope, curve = 1 - found.scored.curve.square(), found.scored.curve.abs()
    off_slope = 2 * curve * (OWN + raw * slope / abs(cap)) + 4
    return off, above, above * slope + found.above.abs() * off_slope


def backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, bias: Tensor | None = None,
    dlse: Tensor | None = None, *, types: Mapping[str, str], **params: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """The error scales of dq, dk and dv."""
    kind = Precision(types)
    found = backward_of(do, q, k, v, o, lse, bias, dlse, **params)
    off, _, off_ds = _of_ds(kind, found, do, q, k, v, o, lse, bias, dlse, params["softcap"])
    scale, rows = abs(found.scored.scale), q.shape[-3] // k.shape[-3] * q.shape[-2]

    def of_queries(weights: Tensor, off_weights: Tensor, values: Tensor) -> Tensor:
        how = "...gsmn,...gnd->...gsmd"
        rss = torch.einsum(how, weights.square(), values.square()).sqrt()
        own = kind.product(torch.einsum(how, weights, values), rss, k.shape[-2])
        return flat(own + torch.einsum(how, off_weights + kind.lost(weights), values.abs()))

    def of_keys(weights: Tensor, off_weights: Tensor, values: Tensor) -> Tensor:
        """Heads that share a key may be copies, whose roundings agree: their rss are added."""
        values, how = grouped(values, k), "...gsmn,...gsmd->...gsnd"
        rss = torch.einsum(how, weights.square(), values.square()).sqrt().sum(-3)
        total = torch.einsum(how, weights, values).sum(-3)
        lost = torch.einsum(how, off_weights + kind.lost(weights), values.abs()).sum(-3)
        return kind.product(total, rss, rows) + lost

    return {
        "dq": scale * of_queries(found.ds, off_ds, k),
        "dk": scale * of_keys(found.ds, off_ds, q),
        "dv": of_keys(found.p, found.p * off, do),
    }


def dbias(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, bias: Tensor,
    dlse: Tensor | None = None, *, types: Mapping[str, str], **params: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """The error scale of dbias."""
    found = backward_of(do, q, k, v, o, lse, bias, dlse, **params)
    _, above, _ = _of_ds(Precision(types), found, do, q, k, v, o, lse, bias, dlse, params["softcap"])
    return {"dbias": flat(above)}
