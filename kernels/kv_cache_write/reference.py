"""The meaning of kv_cache_write, in float64 on the CPU, and the slots of a case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from portable.kernels.quantize_fp8.reference import quantized


def kv_cache_write(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor
) -> tuple[Tensor, Tensor]:
    """New caches, with the rows of the tokens whose slots are within them."""
    pages, page = k_cache.shape[:2]
    here = (slots >= 0) & (slots < pages * page)
    where = slots[here].long()
    written = []
    for rows, cache in ((k, k_cache), (v, v_cache)):
        flat = cache.clone().flatten(0, 1)
        flat[where] = rows[here]
        written.append(flat.view(cache.shape))
    return written[0], written[1]


def kv_cache_write_fp8(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, k_scale: Tensor, v_scale: Tensor,
    types: Mapping[str, str],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same of rows quantised by the scale of their head, as `quantize_fp8` does by a given one."""
    keys, values = (quantized(x, scale[:, None], types["C"]) for x, scale in ((k, k_scale), (v, v_scale)))
    return kv_cache_write(keys, values, k_cache, v_cache, slots)


def slots(axes: dict[str, int], bits: Any) -> dict[str, Tensor]:
    """Distinct slots in any order; of six tokens one has -1 instead, of twelve one a slot beyond the cache or
    below -1, and tokens that are too many have -1."""
    tokens, count = axes["M"], axes["P"] * axes["S"]

    def below(bound: int) -> Tensor:
        return torch.from_numpy(bits.below(bound, tokens))

    order = torch.from_numpy(bits.below(1 << 62, count)).argsort(stable=True)[:tokens]
    found = torch.full((tokens,), -1)
    found[: len(order)] = order
    kind = below(24)
    found = torch.where(kind < 4, -1, found)
    found = torch.where(kind == 4, count, torch.where(kind == 5, -(2**31), found))
    return {"slots": found}
