"""Answers of attention_paged that need no bound: each probe says what every implementation gives bit for bit.

A probe is a function of a call of the op (its arguments by name, answering o and lse), a dtype and a device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .probes import Call, equal, normal

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
