"""What a user of torch alone would call where all sequences have one length: torch's attention of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher

PARAMS = ("causal", "scale", "window_left", "window_right", "softcap")


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
    query, key, value = (x.unflatten(0, (count, -1)).transpose(1, 2) for x in (q, k, v))
    attend = torch.nn.functional.scaled_dot_product_attention
    o = attend(query, key, value, is_causal=causal, scale=scale, enable_gqa=True)
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
    """Sequences of one length, or a long tail of lengths in the layout "tail"; for the gradient, o and lse
    of them."""
    q, k, v, do = (given.get(name) for name in ("q", "k", "v", "do"))
    assert q is not None and k is not None and v is not None
    count = facts["C"] - 1
    ends = _tail_ends(count) if facts["layout"].endswith("tail") else torch.arange(count + 1) / max(count, 1)
    offsets = {
        f"cu_seqlens_{name}": (ends.double() * len(x)).round().to(torch.int32).to(x.device)
        for name, x in (("q", q), ("k", k))
    }
    if do is None:
        return offsets
    params = {name: facts[name] for name in PARAMS}
    o, lse = dispatcher.op("attention_varlen")(q, k, v, **offsets, **params)
    return {**offsets, "o": o, "lse": lse}


def _tail_ends(count: int) -> Tensor:
    """Where `count` sequences end, as shares of the tokens, behind a 0: their lengths are the quantiles of a
    Pareto law of index 1.1, in no order."""
    lengths = ((torch.arange(count, dtype=torch.float64) + 0.5) / count) ** (-1 / 1.1)
    lengths = lengths[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return ends / ends[-1]


def _pairs(given: dict[str, Tensor]) -> int:
    """Queries times keys, over the sequences."""
    queries, keys = (given[f"cu_seqlens_{name}"].diff().long() for name in "qk")
    return int((queries * keys).sum())


def share_of_uniform(given: dict[str, Tensor], facts: dict[str, Any]) -> float:
    """The work over that of as many sequences of one length."""
    return _pairs(given) / (facts["M"] * facts["N"] / max(facts["C"] - 1, 1))


def dense(given: dict[str, Tensor], facts: dict[str, Any]) -> Callable[[], object]:
    """The dense op on a batch of sequences of about 4096 with as much work."""
    pairs = _pairs(given)
    batch = max(round(pairs / 4096**2), 1)
    length = 8 * max(round((pairs / batch) ** 0.5 / 8), 1)

    def random(heads: int, size: int) -> Tensor:
        q = given["q"]
        return torch.randn(batch, heads, length, size, device=q.device).to(q.dtype)

    H, G, D, E = (facts[name] for name in "HGDE")
    params = {name: facts[name] for name in PARAMS}
    q, k, v = random(H, D), random(G, D), random(G, E)
    attention = dispatcher.op("attention")
    if "do" not in given:
        return lambda: attention(q, k, v, **params)
    o, lse = attention(q, k, v, **params)
    do, backward = random(H, E), dispatcher.op("attention_backward")
    return lambda: backward(do, q, k, v, o, lse, **params)
