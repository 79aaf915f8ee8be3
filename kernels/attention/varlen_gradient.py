"""The gradient formula of attention_varlen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher

_SAVED = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "sinks")


def save(
    inputs: dict[str, Tensor | None], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Any, ...]:
    """What the backward pass needs: the inputs and both outputs."""
    return *(inputs[name] for name in _SAVED), *outputs


def backward(
    saved: tuple[Any, ...], params: dict[str, Any], needs: dict[str, bool], do: Tensor | None,
    dlse: Tensor | None,
) -> dict[str, Tensor | None]:  # fmt: skip
    """The gradients of q, k and v, and of sinks where it is asked for."""
    q, k, v, offsets_q, offsets_k, sinks, o, lse = saved
    upstream = torch.zeros_like(o) if do is None else do
    grads: dict[str, Tensor | None] = dict.fromkeys(needs)
    if needs["q"] or needs["k"] or needs["v"]:
        op = dispatcher.op("attention_varlen_backward")
        found = op(upstream, q, k, v, o, lse, offsets_q, offsets_k, dlse, **params)
        grads |= {name: each for name, each in zip("qkv", found, strict=True) if needs[name]}
    if needs["sinks"]:
        inner = -(upstream.to(lse.dtype) * o.to(lse.dtype)).sum(-1).T
        inner = inner if dlse is None else inner + dlse
        seen = torch.isneginf(lse).logical_not()
        share = torch.where(seen, torch.exp(sinks[:, None] - torch.where(seen, lse, 0)), 0)
        grads["sinks"] = (share * inner).sum(-1)
    return grads
