"""What a user of torch alone would call: the baselines of cross_entropy's throughput."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(
    logits: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int,
    label_smoothing: float, softcap: float | None, z_loss: float,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """torch's losses of the rows, in float32 as the op's; lse only where z_loss needs it."""
    scores = _scores(logits, softcap)
    loss = F.cross_entropy(
        scores, target, weight, ignore_index=ignore_index, reduction="none", label_smoothing=label_smoothing
    )
    if z_loss == 0.0:
        return loss, None
    lse = torch.logsumexp(scores, -1).masked_fill(target == ignore_index, 0.0)
    return loss + z_loss * lse.square(), lse


def cross_entropy_backward(
    dloss: Tensor, logits: Tensor, target: Tensor, lse: Tensor, dlse: Tensor | None = None,
    weight: Tensor | None = None, weight_mean: Tensor | None = None, *, ignore_index: int,
    label_smoothing: float, softcap: float | None, z_loss: float,
) -> Tensor:  # fmt: skip
    """What autograd runs after torch's log_softmax, given its result; else the formula."""
    scores = _scores(logits, softcap)
    ignored = target == ignore_index
    index = target.masked_fill(ignored, 0)[:, None]
    dloss = dloss.masked_fill(ignored, 0.0)
    own = (1.0 - label_smoothing) * (torch.ones_like(dloss) if weight is None else weight[index[:, 0]])
    if softcap is None and z_loss == 0.0 and label_smoothing == 0.0 and dlse is None:
        upstream = torch.zeros_like(scores).scatter_(-1, index, -(own * dloss)[:, None])
        return torch.ops.aten._log_softmax_backward_data(upstream, scores - lse[:, None], -1, logits.dtype)
    mean = 1.0 if weight_mean is None else weight_mean
    factor = dloss * (own + label_smoothing * mean + 2.0 * z_loss * lse)
    if dlse is not None:
        factor = factor + dlse.masked_fill(ignored, 0.0)
    found = torch.exp(scores - lse[:, None]) * factor[:, None]
    if label_smoothing != 0.0:
        found -= (dloss * label_smoothing / logits.shape[-1])[:, None] * (1.0 if weight is None else weight)
    found.scatter_add_(-1, index, -(own * dloss)[:, None])
    if softcap is not None:
        found *= 1.0 - (scores / softcap).square()
    return found.to(logits.dtype)


def _scores(logits: Tensor, softcap: float | None) -> Tensor:
    """The capped logits, in float32 at least."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide if softcap is None else softcap * torch.tanh(wide / softcap)


def derived(given: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Tensor]:
    """The forward pass' lse, and the mean of the weights."""
    scores, weight = _scores(given["logits"], facts["softcap"]), given.get("weight")
    lse = torch.logsumexp(scores, -1).masked_fill(given["target"] == facts["ignore_index"], 0.0)
    return {"lse": lse} if weight is None else {"lse": lse, "weight_mean": weight.mean().reshape(1)}
