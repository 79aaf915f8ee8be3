"""What a user of torch alone would call: the baseline of kv_cache_write's throughput."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def kv_cache_write(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Assignment by slots, of which none is skipped."""
    page = k_cache.shape[1]
    at, offset = slots // page, slots % page
    k_cache[at, offset] = k
    v_cache[at, offset] = v


def kv_cache_write_fp8(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, k_scale: Tensor, v_scale: Tensor
) -> None:
    """The same after torch's conversion."""
    keys, values = (
        (rows.float() / scale[:, None]).to(cache.dtype)
        for rows, scale, cache in ((k, k_scale, k_cache), (v, v_scale, v_cache))
    )
    kv_cache_write(keys, values, k_cache, v_cache, slots)


def derived(given: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Tensor]:
    """Slots as in serving: a token in a page of its own, or where pages are fewer, pages in any order."""
    pages, page, tokens = facts["P"], facts["S"], facts["M"]
    device = given["k"].device
    order, token = torch.randperm(pages, device=device), torch.arange(tokens, device=device)
    if tokens <= pages:
        found = order[:tokens] * page + token % page
    else:
        found = order[token // page % max(pages, 1)] * page + token % page
        found = torch.where(token < pages * page, found, -1)
    return {"slots": found.to(getattr(torch, facts["I"]))}
