"""What a user of torch alone would call where all sequences have one length: torch's attention of a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    sinks: Tensor | None = None, *, causal: bool = False, scale: float | None = None,
    window_left: int | None = None, window_right: int | None = None, softcap: float | None = None,
) -> tuple[Tensor, None]:  # fmt: skip
    """Sequences of one length, as `derived` makes them; torch gives no lse."""
    count = len(cu_seqlens_q) - 1
    given = (sinks, window_left, window_right, softcap)
    if any(each is not None for each in given) or count < 1 or len(q) % count or len(k) % count:
        raise NotImplementedError("torch has no such call")
    if causal and len(q) != len(k):
        raise NotImplementedError("torch's causal mask starts top left")
    batch = (x.unflatten(0, (count, -1)).transpose(1, 2) for x in (q, k, v))
    attend = torch.nn.functional.scaled_dot_product_attention
    o = attend(*batch, is_causal=causal, scale=scale, enable_gqa=True)
    return o.transpose(1, 2).flatten(0, 1), None


def attention_varlen_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor, dlse: Tensor | None = None, **params: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """torch's gradient, with the forward pass that it needs."""
    if dlse is not None:
        raise NotImplementedError("torch has no such call")
    with torch.enable_grad():
        leaves = q, k, v = tuple(x.detach().requires_grad_() for x in (q, k, v))
        made, _ = attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, **params)
    return torch.autograd.grad(made, leaves, do)


def derived(given: dict[str, Tensor | None], facts: dict[str, Any]) -> dict[str, Tensor]:
    """Sequences of one length; for the gradient, o and lse of them."""
    q, k, v, do = (given.get(name) for name in ("q", "k", "v", "do"))
    assert q is not None and k is not None and v is not None
    steps, count = torch.arange(facts["C"], device=q.device), max(facts["C"] - 1, 1)
    offsets = {
        f"cu_seqlens_{name}": (steps * len(x) // count).to(torch.int32) for name, x in (("q", q), ("k", k))
    }
    if do is None:
        return offsets
    from portable import dispatch

    params = {name: facts[name] for name in ("causal", "scale", "window_left", "window_right", "softcap")}
    o, lse = dispatch.op("attention_varlen")(q, k, v, **offsets, **params)
    return {**offsets, "o": o, "lse": lse}
