"""The meaning of cross_entropy and of its gradient, in float64 on the CPU.

Error scales are what one unit of float32 rounding in the steps of a kernel can move each element by, before
anything cancels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels._lib.logits import UNDERFLOW, about_maximum, picked


def scores_of(logits: Tensor, softcap: float | None) -> Tensor:
    """softcap * tanh(logits / softcap)."""
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def log_sum_exp(scores: Tensor) -> tuple[Tensor, Tensor]:
    """(the maximum of each row, the logarithm of the sum of the exponentials about it); a row of -inf has a
    sum of 0, one with NaN or +inf a sum of NaN."""
    maximum, distance = about_maximum(scores)
    return maximum, torch.log(torch.exp(distance).sum(-1))


def of_target(weight: Tensor, target: Tensor) -> Tensor:
    """Each row's weight, its target's; 1 where that is outside the row."""
    outside = (target < 0) | (target >= len(weight))
    return torch.where(outside, 1.0, weight[torch.where(outside, 0, target)])


def cross_entropy(
    logits: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
    label_smoothing: float = 0.0, softcap: float | None = None, z_loss: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """With s the scores and w the weights: (1 - smoothing) * w[target] * (lse - s[target]) + smoothing *
    mean(w * (lse - s)) + z_loss * lse^2, and lse; zeros in rows whose target is ignore_index."""
    scores = scores_of(logits, softcap)
    maximum, log_sum = log_sum_exp(scores)
    lse = maximum + log_sum
    loss = maximum - picked(scores, target)
    if weight is None:
        if label_smoothing != 0.0:
            even = maximum - scores.mean(-1)
            loss = (1.0 - label_smoothing) * loss + label_smoothing * even
        loss = loss + log_sum
    else:
        loss = of_target(weight, target) * (loss + log_sum)
        if label_smoothing != 0.0:
            mean = weight.mean()
            even = mean * maximum - (weight * scores).mean(-1) + mean * log_sum
            loss = (1.0 - label_smoothing) * loss + label_smoothing * even
    if z_loss != 0.0:
        loss = loss + z_loss * lse.square()
    ignored = target == ignore_index
    return torch.where(ignored, 0.0, loss), torch.where(ignored, 0.0, lse)


def error_scale(
    logits: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
    label_smoothing: float = 0.0, softcap: float | None = None, z_loss: float = 0.0,
) -> dict[str, Tensor]:  # fmt: skip
    """The scale of its error.

    x - max is rounded, so that exp's argument is off by |x - max| units, and a capped score by a few of its
    own; the logarithm of the sum is off by the mean of that, weighted by the softmax, and by the sum's own
    relative error, 1. To the maximum, the target's score and the mean their own magnitudes are added.
    """
    scores = scores_of(logits, softcap)
    maximum, log_sum = log_sum_exp(scores)
    p = torch.softmax(scores, -1)
    distance = torch.where(p > 0, (scores - maximum[:, None]).abs(), 0.0)
    rounded = 4.0 * scores.abs() if softcap is not None else torch.zeros_like(scores)
    sums = 1.0 + log_sum.abs() + (p * (distance + torch.where(p > 0, rounded, 0.0))).sum(-1)
    own = 1.0 + (4.0 if softcap is not None else 0.0)
    lse = sums + own * maximum.abs()
    loss = sums + own * (maximum.abs() + picked(scores, target).abs())
    if weight is not None:
        loss = of_target(weight, target).abs() * loss
    if label_smoothing != 0.0:
        if weight is None:
            even = own * scores.abs().mean(-1)
        else:
            even = own * (weight * scores).abs().mean(-1) + weight.abs().mean() * (lse + log_sum.abs())
        loss = loss + label_smoothing * even
    if z_loss != 0.0:
        full = maximum + log_sum
        loss = loss + z_loss * (full.square() + 2.0 * full.abs() * lse)
    ignored = target == ignore_index
    return {"loss": torch.where(ignored, 0.0, loss), "lse": torch.where(ignored, 0.0, lse)}


def derived(
    logits: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int,
    label_smoothing: float, softcap: float | None, z_loss: float,
) -> dict[str, Tensor]:  # fmt: skip
    """What the forward pass gives the backward pass."""
    params = {"label_smoothing": label_smoothing, "softcap": softcap, "z_loss": z_loss}
    lse = cross_entropy(logits, target, weight, ignore_index=ignore_index, **params)[1]
    return {"lse": lse, "weight_mean": lse.new_ones(1) if weight is None else weight.mean().reshape(1)}


def _terms(
    dloss: Tensor, logits: Tensor, target: Tensor, lse: Tensor, dlse: Tensor | None,
    weight: Tensor | None, weight_mean: Tensor | None, ignore_index: int, label_smoothing: float,
    softcap: float | None, z_loss: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(scores, their derivative by the logits, softmax, what it is multiplied by, the magnitudes that this is
    made of, what is subtracted from the product, ignored rows)."""
    columns = logits.shape[-1]
    scores = scores_of(logits, softcap)
    slope = torch.ones_like(scores) if softcap is None else 1.0 - torch.tanh(logits / softcap).square()
    ignored = target == ignore_index
    outside = ((target < 0) | (target >= columns)) & ~ignored
    dloss = torch.where(outside, torch.nan, dloss)
    own = (1.0 - label_smoothing) * (torch.ones_like(lse) if weight is None else of_target(weight, target))
    mean = label_smoothing if weight_mean is None else label_smoothing * weight_mean
    factor = dloss * (own + mean + 2.0 * z_loss * lse)
    terms = dloss.abs() * (own.abs() + abs(mean) + 2.0 * z_loss * lse.abs())
    if dlse is not None:
        factor, terms = factor + dlse, terms + dlse.abs()
    hot = torch.arange(columns, device=logits.device) == target[:, None]
    # Not a product with zeros: the upstream gradient may be infinite.
    minus = torch.where(hot, (dloss * own)[:, None], 0.0)
    if label_smoothing != 0.0:
        minus = minus + (dloss * label_smoothing / columns)[:, None] * (1.0 if weight is None else weight)
    p = torch.exp(scores - lse[:, None])
    return scores, slope, p, factor[:, None], terms[:, None], minus, ignored[:, None]


def cross_entropy_backward(
    dloss: Tensor, logits: Tensor, target: Tensor, lse: Tensor, dlse: Tensor | None = None,
    weight: Tensor | None = None, weight_mean: Tensor | None = None, *, ignore_index: int = -100,
    label_smoothing: float = 0.0, softcap: float | None = None, z_loss: float = 0.0,
) -> Tensor:  # fmt: skip
    """The gradient of the logits from those of loss and lse; zeros in ignored rows. Without weight or
    weight_mean that is 1."""
    given = (dloss, logits, target, lse, dlse, weight, weight_mean)
    _, slope, p, factor, _, minus, ignored = _terms(*given, ignore_index, label_smoothing, softcap, z_loss)
    return torch.where(ignored, 0.0, (factor * p - minus) * slope)


def error_scale_backward(
    dloss: Tensor, logits: Tensor, target: Tensor, lse: Tensor, dlse: Tensor | None = None,
    weight: Tensor | None = None, weight_mean: Tensor | None = None, *, ignore_index: int = -100,
    label_smoothing: float = 0.0, softcap: float | None = None, z_loss: float = 0.0,
) -> dict[str, Tensor]:  # fmt: skip
    """The scale of its error: both terms before they cancel, p off by its rounded argument's units and, below
    the smallest normal number, by a step; the factor's own terms; and the cap's derivative, which is 1 less a
    square."""
    given = (dloss, logits, target, lse, dlse, weight, weight_mean)
    scores, slope, p, _, terms, minus, ignored = _terms(
        *given, ignore_index, label_smoothing, softcap, z_loss
    )
    distance = torch.where(p > 0, (scores - lse[:, None]).abs(), 0.0)
    rounded = 4.0 * scores.abs() if softcap is not None else 0.0
    power = terms * (p * (1.0 + distance + rounded) + UNDERFLOW)
    curved = 1.0 if softcap is not None else 0.0
    return {"dlogits": torch.where(ignored, 0.0, (power + minus.abs()) * (slope + curved))}
