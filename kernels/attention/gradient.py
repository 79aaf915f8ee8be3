"""The gradient formula of attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import portable


def save(
    inputs: dict[str, Tensor | None], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Any, ...]:
    """What the backward pass needs: the inputs and both outputs."""
    return *(inputs[name] for name in ("q", "k", "v", "bias", "sinks")), *outputs


def backward(
    saved: tuple[Any, ...], params: dict[str, Any], needs: dict[str, bool], do: Tensor | None,
    dlse: Tensor | None,
) -> dict[str, Tensor | None]:  # fmt: skip
    """The gradients of q, k and v, and of bias and sinks where they are asked for."""
    q, k, v, bias, sinks, o, lse = saved
    do = torch.zeros_like(o) if do is None else do
    grads: dict[str, Tensor | None] = dict.fromkeys(needs)
    if needs["q"] or needs["k"] or needs["v"]:
        found = portable.attention_backward(do, q, k, v, o, lse, bias, dlse, **params)
        grads |= {name: each for name, each in zip("qkv", found, strict=True) if needs[name]}
    if needs["bias"]:
        grads["bias"] = portable.attention_dbias(do, q, k, v, o, lse, bias, dlse, **params)
    if needs["sinks"]:
        grads["sinks"] = _dsinks(do, o, lse, dlse, sinks)
    return grads


def _dsinks(do: Tensor, o: Tensor, lse: Tensor, dlse: Tensor | None, sinks: Tensor) -> Tensor:
    """exp(sink - lse) * (dlse - sum(do * o)), summed over the queries and the leading dimensions.

    A sink's value is 0, so its score moves o by the share that the sink takes of it.
    """
    inner = -(do.to(lse.dtype) * o.to(lse.dtype)).sum(-1)
    if dlse is not None:
        inner = inner + dlse
    share = torch.exp(sinks[:, None] - torch.where(torch.isneginf(lse), 0, lse))
    return (share * inner).sum(-1).flatten(0, -2).sum(0) if lse.dim() > 2 else (share * inner).sum(-1)
