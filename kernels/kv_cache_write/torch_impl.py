"""kv_cache_write in torch's operations, without waiting for the slots: it can be captured into a graph."""

from __future__ import annotations

import torch
from torch import Tensor

from portable.dispatch.arguments import dtype_name
from portable.kernels._lib import minifloat


def kv_cache_write(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """A token that is skipped writes what the first that is not does: its rows, where they go. Where all are,
    they write what the cache has."""
    pages, page = k_cache.shape[:2]
    if not (pages and len(slots)):
        return
    last = pages * page - 1
    here = (slots >= 0) & (slots <= last)
    first = here.to(torch.uint8).argmax(0, keepdim=True)
    any_here, places = here[first], slots.long().clamp(0, last)
    places = torch.where(here, places, places[first])
    at, offset = places // page, places % page
    for rows, cache in ((k, k_cache), (v, v_cache)):
        spare = torch.where(any_here[:, None, None], rows[first], cache[at[first], offset[first]])
        cache[at, offset] = torch.where(here[:, None, None], rows, spare)


def kv_cache_write_fp8(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, k_scale: Tensor, v_scale: Tensor
) -> None:
    """The same of codes: rows over the scale of their head."""
    keys, values = (
        minifloat.encode(rows.float() * (1 / scale)[:, None], dtype_name(cache.dtype))
        for rows, scale, cache in ((k, k_scale, k_cache), (v, v_scale, v_cache))
    )
    kv_cache_write(keys, values, k_cache.view(torch.uint8), v_cache.view(torch.uint8), slots)
