"""What a user of torch alone would call for a paged cache: gather the pages, then torch's attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher


def attention_paged(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
    sinks: Tensor | None = None, *, scale: float | None = None, window_left: int | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, None]:  # fmt: skip
    """Full sequences of one query; torch gives no lse."""
    if q.shape[1] != 1 or sinks is not None or window_left is not None or softcap is not None:
        raise NotImplementedError("torch has no such call")
    k, v = (cache[block_table].flatten(1, 2).transpose(1, 2) for cache in (k_cache, v_cache))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q.transpose(1, 2), k, v, scale=scale, enable_gqa=True).transpose(1, 2), None


def derived(given: dict[str, Tensor | None], facts: dict[str, Any]) -> dict[str, Tensor]:
    """Full sequences whose pages lie anywhere."""
    q = given["q"]
    assert q is not None
    Z, P, S, W = (facts[name] for name in ("Z", "P", "S", "W"))
    generator = torch.Generator(q.device).manual_seed(0)
    turns = range(-(-Z * W // max(P, 1)))
    order = [torch.randperm(max(P, 1), generator=generator, device=q.device) for _ in turns]
    table = torch.cat(order)[: Z * W].reshape(Z, W).to(torch.int32)
    return {"block_table": table, "seq_lens": torch.full((Z,), W * S, dtype=torch.int32, device=q.device)}


def dense(given: dict[str, Tensor], facts: dict[str, Any]) -> Callable[[], object]:
    """The dense op on sequences of the same lengths, whose keys lie head by head."""
    q = given["q"].transpose(1, 2)
    Z, G, D, E, keys = (*(facts[name] for name in "ZGDE"), facts["W"] * facts["S"])
    k, v = (torch.randn(Z, G, keys, size, device=q.device).to(q.dtype) for size in (D, E))
    attention = dispatcher.op("attention")
    params = {name: facts[name] for name in ("scale", "window_left", "softcap")}
    return lambda: attention(q, k, v, **params)
