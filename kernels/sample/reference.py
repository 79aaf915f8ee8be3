"""The meaning of sample: exact integers, so that every implementation takes the same token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.kernels._lib.philox import WORD, philox

FRACTION_BITS = 24
"""Distances from the row's maximum, in powers of two, have so many bits behind the point."""
SCALE = float(torch.tensor(2.0**FRACTION_BITS / 0.6931471805599453, dtype=torch.float32))
FARTHEST = 40
"""The weight of the maximum is 2^40; of a token 2^-40 as likely it would be below 1, and is 0."""
POWER = (1488514207, 515776670, 118729907, 19743523, 2017903)
"""2^-f = 1 - f * (c1 - f * (c2 - ...)) for 0 <= f < 1, each c in units of 2^-31: within 1e-7 of it, and
falling at each of the 2^24 steps, so that likelier tokens weigh more."""
SMALLEST = 2.0**-126
"""A temperature below the smallest normal number of float32 is greedy, as 0 is."""


def part(whole: Tensor, upper: Tensor, lower: Tensor) -> Tensor:
    """floor(whole * f), where f is upper * 2^-31 + lower * 2^-62, both below 2^31, and whole below 2^61."""
    high, low = whole >> 31, whole & 0x7FFFFFFF
    return high * upper + ((high * lower + low * upper + (low * lower >> 31)) >> 31)


def weights(ranked: Tensor, temperature: Tensor) -> Tensor:
    """2^40 * exp((x - max) / temperature) of float32 rows whose maximum is first, as integers. Of the float32
    operations (a quotient per row, a difference and a product per token) each is rounded by itself."""
    top = ranked[:, :1]
    scale = torch.full_like(temperature, SCALE).div(temperature)[:, None]
    distance = (top - ranked) * scale
    near = distance < float(FARTHEST << FRACTION_BITS)
    fixed = torch.where(near, distance, 0.0).long()
    fraction, whole = fixed & ((1 << FRACTION_BITS) - 1), fixed >> FRACTION_BITS
    power = torch.full_like(fraction, POWER[-1])
    for constant in (*POWER[-2::-1], 1 << 31):
        power = constant - (fraction * power >> FRACTION_BITS)
    found = torch.where(near, power << (FARTHEST - 31) >> whole, 0)
    return torch.where(ranked == top, 1 << FARTHEST, found)  # inf - inf is NaN


def kept(
    weight: Tensor, top_k: Tensor | None = None, top_p: Tensor | None = None, min_p: Tensor | None = None
) -> Tensor:
    """Ranked weights, those that a filter leaves out as 0."""
    if top_k is not None:
        rank = torch.arange(weight.shape[1], device=weight.device)
        some = (top_k > 0)[:, None]
        weight = torch.where(some & (rank >= top_k.long()[:, None]), 0, weight)
    if top_p is not None:
        share = (top_p.float().clamp(0.0, 1.0) * 2.0**31).nan_to_num().long()
        target = part(weight.sum(-1), share, torch.zeros_like(share)).clamp(min=1)
        before = weight.cumsum(-1) - weight
        some = (top_p < 1.0)[:, None]
        weight = torch.where(some & (before >= target[:, None]), 0, weight)
    if min_p is not None:
        least = (min_p.float().clamp(0.0, 1.0) * 2.0**FARTHEST).nan_to_num().long()
        weight = torch.where(weight < least[:, None], 0, weight)
    return weight


def _words(number: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and the upper word of 64 bits."""
    return number & WORD, (number >> 32) & WORD


def sample(
    logits: Tensor,
    seed: Tensor,
    offset: Tensor | None = None,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> Tensor:
    """The token of each row."""
    x = logits.float().reshape(-1, logits.shape[-1])
    top_k, top_p, min_p = (None if each is None else each.reshape(-1) for each in (top_k, top_p, min_p))
    start = torch.zeros_like(seed) if offset is None else offset
    heat = torch.ones_like(x[:, 0]) if temperature is None else temperature.float().reshape(-1)
    ranked, order = x.sort(dim=-1, descending=True, stable=True)
    weight = kept(weights(ranked, heat), top_k, top_p, min_p)
    here = torch.zeros_like(weight).scatter_(-1, order, weight)
    (begin, end), key = (_words(each.reshape(-1)) for each in (start, seed))
    upper, lower, *_ = philox([begin, end, torch.zeros_like(begin), torch.zeros_like(begin)], key)
    drawn = part(here.sum(-1), upper >> 1, lower >> 1)
    token = (here.cumsum(-1) <= drawn[:, None]).sum(-1)
    token = torch.where(heat >= SMALLEST, token, order[:, 0])
    nothing = x.isnan().any(-1) | (ranked[:, 0] == -torch.inf)
    return torch.where(nothing, -1, token).reshape(seed.shape)


def settings(logits: Tensor, bits: Any) -> dict[str, Tensor]:
    """Settings of every kind, by row, and seeds and offsets of 64 bits."""
    shape, length = logits.shape[:-1], logits.shape[-1]
    rows = shape.numel()

    def one_of(*values: float) -> Tensor:
        chosen = torch.from_numpy(bits.below(len(values), rows))
        return torch.tensor(values, dtype=torch.float64)[chosen].reshape(shape)

    def words() -> Tensor:
        return torch.from_numpy(bits.words(rows).view("int64").copy()).reshape(shape)

    return {
        "seed": words(),
        "offset": words(),
        "temperature": one_of(1.0, 0.7, 1.3, 0.3, 2.0, 1.0, 5.0, 0.0, 1e-30, 1e30),
        "top_k": one_of(0, -1, 1, 2, 5, 50, length // 2, length - 1, length, 2**31 - 1).long(),
        "top_p": one_of(1.0, 0.9, 0.95, 0.5, 0.1, 0.999, 0.0, 2.0),
        "min_p": one_of(0.0, 0.1, 0.05, 0.5, 0.01, 1.0, 0.9),
    }
