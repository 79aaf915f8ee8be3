"""The gradient formulas of attention and attention_varlen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher

_FIRST = ("q", "k", "v", "sinks")


def save(
    inputs: dict[str, Tensor | None], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Any, ...]:
    """What the backward pass needs: the inputs and both outputs. The bias, or the offsets, come last."""
    others = (x for name, x in inputs.items() if name not in _FIRST)
    return *(inputs[name] for name in _FIRST), *outputs, *others


def backward(
    saved: tuple[Any, ...], params: dict[str, Any], needs: dict[str, bool], do: Tensor | None,
    dlse: Tensor | None,
) -> dict[str, Tensor | None]:  # fmt: skip
    """The gradients of q, k and v, and of bias and sinks where they are asked for."""
    q, k, v, sinks, o, lse, *others = saved
    do = torch.zeros_like(o) if do is None else do
    op = "attention_backward" if "bias" in needs else "attention_varlen_backward"
    grads: dict[str, Tensor | None] = dict.fromkeys(needs)
    if needs["q"] or needs["k"] or needs["v"]:
        found = dispatcher.op(op)(do, q, k, v, o, lse, *others, dlse, **params)
        grads |= {name: each for name, each in zip("qkv", found, strict=True) if needs[name]}
    if needs.get("bias"):
        grads["bias"] = dispatcher.op("attention_dbias")(do, q, k, v, o, lse, *others, dlse, **params)
    if needs["sinks"]:
        inner = -(do.to(lse.dtype) * o.to(lse.dtype)).sum(-1)
        grads["sinks"] = _dsinks(inner if "bias" in needs else inner.T, lse, dlse, sinks)
    return grads


def _dsinks(inner: Tensor, lse: Tensor, dlse: Tensor | None, sinks: Tensor) -> Tensor:
    """exp(sink - lse) * (dlse - sum(do * o)), summed over the queries and the leading dimensions; `inner` is
    -sum(do * o). A query with an lse of -inf is of no sequence.

    A sink's value is 0, so its score moves o by the share that the sink takes of it.
    """
    inner = inner if dlse is None else inner + dlse
    seen = torch.isneginf(lse).logical_not()
    share = torch.where(seen, torch.exp(sinks[:, None] - torch.where(seen, lse, 0)), 0)
    by_head = (share * inner).sum(-1)
    return by_head.sum(tuple(range(by_head.dim() - 1))) if by_head.dim() > 1 else by_head
