"""attention and its gradients through torch, all scores at once: any device, float32 inside or wider."""

from __future__ import annotations

import torch
from torch import Tensor


def _shared(x: Tensor, q: Tensor, wide: torch.dtype) -> Tensor:
    """Keys or values once per query head."""
    return x.to(wide).repeat_interleave(q.shape[-3] // x.shape[-3], dim=-3)


def scores_of(
    q: Tensor, k: Tensor, bias: Tensor | None, *, causal: bool, scale: float | None, window_left: int | None,
    window_right: int | None, softcap: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(..., H, M, N): the scores, -inf where a key is not seen, and the slope of the cap at each."""
    M, N = q.shape[-2], k.shape[-2]
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = q.to(wide) @ _shared(k, q, wide).mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    slope = torch.ones((), dtype=wide, device=q.device)
    if softcap is not None:
        curve = torch.tanh(scores / softcap)
        scores, slope = softcap * curve, 1 - curve.square()
    if bias is not None:
        scores = scores + bias.to(wide)
    offset = torch.arange(N, device=q.device) - torch.arange(M, device=q.device)[:, None] - (N - M)
    if causal:
        window_right = 0 if window_right is None else min(window_right, 0)
    hidden = torch.zeros((), dtype=torch.bool, device=q.device)
    if window_left is not None:
        hidden = hidden | (offset < -window_left)
    if window_right is not None:
        hidden = hidden | (offset > window_right)
    return scores.masked_fill(hidden, -torch.inf), slope


def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, sinks: Tensor | None = None, *,
    causal: bool = False, scale: float | None = None, window_left: int | None = None,
    window_right: int | None = None, softcap: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse."""
    scores, _ = scores_of(q, k, bias, causal=causal, scale=scale, window_left=window_left,
                          window_right=window_right, softcap=softcap)  # fmt: skip
    top = scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    if sinks is not None:
        top = sinks.to(top.dtype)[:, None, None].expand(top.shape)
    most = torch.cat([scores, top], -1).amax(-1, keepdim=True).detach()
    most = torch.where(torch.isneginf(most), 0, most)
    p = torch.exp(scores - most)
    total = p.sum(-1, keepdim=True) + torch.exp(top - most)
    safe = torch.where(total == 0, 1, total)  # in the logarithm too, whose derivative is else NaN
    lse = torch.where(total == 0, -torch.inf, most + torch.log(safe))
    o = p @ _shared(v, q, p.dtype) / safe
    return o.to(q.dtype), lse.squeeze(-1)


def _backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, bias: Tensor | None,
    dlse: Tensor | None, **params,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(..., H, M, N): the weights, and the derivatives behind and before the cap."""
    scores, slope = scores_of(q, k, bias, **params)
    wide, lse = scores.dtype, lse.to(scores.dtype)
    p = torch.exp(scores - torch.where(torch.isneginf(lse), 0, lse)[..., None])
    delta = (do.to(wide) * o.to(wide)).sum(-1)
    if dlse is not None:
        delta = delta - dlse.to(wide)
    above = p * (do.to(wide) @ _shared(v, q, wide).mT - delta[..., None])
    return p, above, above * slope


def attention_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, bias: Tensor | None = None,
    dlse: Tensor | None = None, *, scale: float | None = None, **params,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk and dv."""
    p, _, ds = _backward(do, q, k, v, o, lse, bias, dlse, scale=scale, **params)
    ds = ds * (q.shape[-1] ** -0.5 if scale is None else scale)

    def summed(x: Tensor) -> Tensor:
        return x.unflatten(-3, (k.shape[-3], -1)).sum(-3)

    dq = ds @ _shared(k, q, p.dtype)
    dk, dv = summed(ds.mT @ q.to(p.dtype)), summed(p.mT @ do.to(p.dtype))
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def attention_dbias(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, bias: Tensor,
    dlse: Tensor | None = None, **params,
) -> Tensor:  # fmt: skip
    """The gradient of the bias."""
    return _backward(do, q, k, v, o, lse, bias, dlse, **params)[1].to(bias.dtype)
