"""The meaning of attention and of its gradients, in float64 on the CPU; error_scale.py has the error scales.

Query heads that share a key head stand in a dimension of their own here: (..., G, H // G, M, D).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scores:
    """(..., G, H // G, M, N): `products` q @ k.T, the final `scores`, -inf at hidden keys, the cap's
    tanh or None, and which keys the mask shows."""

    products: Tensor
    scores: Tensor
    curve: Tensor | None
    seen: Tensor
    scale: float

    @property
    def slope(self) -> Tensor | float:
        """The derivative of the cap."""
        return 1.0 if self.curve is None else 1 - self.curve.square()


def grouped(x: Tensor, k: Tensor) -> Tensor:
    """A tensor of query heads (..., H, M, columns), by key head."""
    return x.unflatten(-3, (k.shape[-3], x.shape[-3] // k.shape[-3]))


def flat(x: Tensor) -> Tensor:
    """`grouped` undone for (..., G, H // G, M, columns)."""
    return x.flatten(-4, -3)


def seen_keys(M: int, N: int, causal: bool, left: int | None, right: int | None) -> Tensor:
    """(M, N): whether query i sees key j. Its place among the keys is i + N - M: the last two meet."""
    place, key = torch.arange(M).unsqueeze(1) + (N - M), torch.arange(N)
    seen = torch.ones(M, N, dtype=torch.bool)
    if causal:
        seen &= key <= place
    if left is not None:
        seen &= key >= place - left
    if right is not None:
        seen &= key <= place + right
    return seen


def scores_of(
    q: Tensor, k: Tensor, bias: Tensor | None, *, causal: bool = False, scale: float | None = None,
    window_left: int | None = None, window_right: int | None = None, softcap: float | None = None,
) -> Scores:  # fmt: skip
    """scores = cap(scale * q @ k.T) + bias where a key is seen."""
    factor: float = q.shape[-1] ** -0.5 if scale is None else scale
    products = torch.einsum("...gsmd,...gnd->...gsmn", grouped(q, k), k)
    scores, curve = products * factor, None
    if softcap is not None:
        curve = torch.tanh(scores / softcap)
        scores = softcap * curve
    if bias is not None:
        scores = scores + grouped(bias, k)
    seen = seen_keys(q.shape[-2], k.shape[-2], causal, window_left, window_right)
    return Scores(products, torch.where(seen, scores, -torch.inf), curve, seen, factor)


def softmax(scores: Tensor, sinks: Tensor | None, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The weights p, lse and the largest score (0 where there is none), a sink's among them.

    A score of NaN or +inf makes the whole row NaN; a row of -inf alone has weights 0 and lse -inf.
    """
    extra = torch.full_like(scores[..., :1], -torch.inf) if scores.shape[-1] else scores.new_full(
        (*scores.shape[:-1], 1), -torch.inf)  # fmt: skip
    if sinks is not None:
        extra = sinks.unflatten(0, (k.shape[-3], -1))[..., None, None].expand(extra.shape)
    both = torch.cat([scores, extra], -1)
    top = both.amax(-1, keepdim=True).detach()
    top = torch.where(torch.isneginf(top), 0.0, top)
    weights = torch.exp(both - top)
    total = weights.sum(-1, keepdim=True)
    nothing = total == 0
    safe = torch.where(nothing, 1.0, total)
    lse = torch.where(nothing, -torch.inf, top + torch.log(safe))
    return weights[..., :-1] / safe, lse.squeeze(-1), top.squeeze(-1)


def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, sinks: Tensor | None = None, **params
) -> tuple[Tensor, Tensor]:
    """o = p @ v and lse = log(sum(exp(scores)))."""
    p, lse, _ = softmax(scores_of(q, k, bias, **params).scores, sinks, k)
    o = torch.einsum("...gsmn,...gne->...gsme", p, v)
    return flat(o), lse.flatten(-3, -2)


def derived(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float | None,
    window_left: int | None, window_right: int | None, softcap: float | None,
) -> dict[str, Tensor]:  # fmt: skip
    """What the forward pass gives the backward pass."""
    o, lse = attention(q, k, v, bias, causal=causal, scale=scale, window_left=window_left,
                       window_right=window_right, softcap=softcap)  # fmt: skip
    return {"o": o, "lse": lse}


@dataclass(frozen=True)
class Backward:
    """What the gradients are sums of: the weights `p` and `ds`, the derivative of the loss with respect to
    the scores before the bias and the cap; `above` is the same after them."""

    scored: Scores
    p: Tensor
    dp: Tensor
    delta: Tensor
    above: Tensor
    ds: Tensor


def backward_of(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, bias: Tensor | None,
    dlse: Tensor | None, **params,
) -> Backward:  # fmt: skip
    """p = exp(scores - lse), above = p * (do @ v.T - sum(do * o) + dlse)."""
    scored = scores_of(q, k, bias, **params)
    by_head = lse.unflatten(-2, (k.shape[-3], -1)).unsqueeze(-1)
    p = torch.exp(scored.scores - torch.where(torch.isneginf(by_head), 0.0, by_head))
    dp = torch.einsum("...gsme,...gne->...gsmn", grouped(do, k), v)
    delta = (do * o).sum(-1)
    if dlse is not None:
        delta = delta - dlse
    delta = delta.unflatten(-2, (k.shape[-3], -1)).unsqueeze(-1)
    above = p * (dp - delta)
    return Backward(scored, p, dp, delta, above, above * scored.slope)


def attention_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, bias: Tensor | None = None,
    dlse: Tensor | None = None, **params,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq = scale * ds @ k, dk = scale * ds.T @ q, dv = p.T @ do, the last two over all heads that share."""
    found = backward_of(do, q, k, v, o, lse, bias, dlse, **params)
    scale = found.scored.scale
    dq = flat(torch.einsum("...gsmn,...gnd->...gsmd", found.ds, k)) * scale
    dk = torch.einsum("...gsmn,...gsmd->...gnd", found.ds, grouped(q, k)) * scale
    dv = torch.einsum("...gsmn,...gsme->...gne", found.p, grouped(do, k))
    return dq, dk, dv


def attention_dbias(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, bias: Tensor,
    dlse: Tensor | None = None, **params,
) -> Tensor:  # fmt: skip
    """The derivative with respect to the scores behind the cap."""
    return flat(backward_of(do, q, k, v, o, lse, bias, dlse, **params).above)
