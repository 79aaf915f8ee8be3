"""The meaning of selected_logprob and of its gradient, in float64 on the CPU.

Error scales are what one unit of float32 rounding in the steps of a kernel can move each element by, before
anything cancels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels._lib.logits import UNDERFLOW, about_maximum, picked


def selected_logprob(
    logits: Tensor, index: Tensor, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """With s = logits / temperature, p = softmax(s): log(p[index]), -sum(p * log(p)), log(sum(exp(s)))."""
    scores = logits / temperature
    maximum, distance = about_maximum(scores)
    power = torch.exp(distance)
    total = power.sum(-1)
    log_sum = torch.log(total)
    moment = torch.where(power == 0, 0.0, power * torch.where(power == 0, 0.0, distance)).sum(-1)
    return (picked(scores, index) - maximum) - log_sum, log_sum - moment / total, maximum + log_sum


def error_scale(logits: Tensor, index: Tensor, *, temperature: float = 1.0) -> dict[str, Tensor]:
    """The scale of its error.

    A score is off by two of its units where it was scaled, its distance from the maximum by one more, and its
    exponential by as much relatively: the logarithm of the sum by the mean of that, weighted by p. In the
    entropy, an exponential that is off by e moves p * log(p) by p * e * (|log(p)| + H), and a distance, which
    is a factor there too, by p times its own error.
    """
    scores = logits / temperature
    maximum, distance = about_maximum(scores)
    power = torch.exp(distance)
    total = power.sum(-1)
    log_sum = torch.log(total)
    p = power / total[:, None]
    scaled = 0.0 if temperature == 1.0 else 2.0
    at = scaled * (torch.where(p > 0, scores.abs(), 0.0) + maximum.abs()[:, None])
    off = torch.where(p > 0, distance.abs(), 0.0) + at
    sums = 1.0 + log_sum.abs() + (p * off).sum(-1)
    surprise = torch.where(p > 0, (distance - log_sum[:, None]).abs(), 0.0)
    entropy = (p * surprise).sum(-1)
    weight = 1.0 + surprise + entropy[:, None]
    own = 1.0 + scaled
    return {
        "logprob": sums + own * (maximum.abs() + picked(scores, index).abs()),
        "entropy": 1.0 + log_sum.abs() + (p * (1.0 + off) * weight).sum(-1),
        "lse": sums + own * maximum.abs(),
    }


def derived(logits: Tensor, index: Tensor, *, temperature: float) -> dict[str, Tensor]:
    """What the forward pass gives the backward pass."""
    _, entropy, lse = selected_logprob(logits, index, temperature=temperature)
    return {"entropy": entropy, "lse": lse}


def selected_logprob_backward(
    dlogprob: Tensor, dentropy: Tensor, logits: Tensor, index: Tensor, entropy: Tensor, lse: Tensor,
    dlse: Tensor | None = None, *, temperature: float = 1.0,
) -> Tensor:  # fmt: skip
    """The gradient of the logits from those of the three outputs."""
    columns = logits.shape[-1]
    log_p = logits / temperature - lse[:, None]
    p = torch.exp(log_p)
    dlogprob = torch.where((index < 0) | (index >= columns), torch.nan, dlogprob)
    factor = -dlogprob if dlse is None else dlse - dlogprob
    surprise = torch.where(p == 0, 0.0, p * (torch.where(p == 0, 0.0, log_p) + entropy[:, None]))
    hot = torch.arange(columns, device=logits.device) == index[:, None]
    found = factor[:, None] * p - dentropy[:, None] * surprise
    return torch.where(hot, found + dlogprob[:, None], found) / temperature


def error_scale_backward(
    dlogprob: Tensor, dentropy: Tensor, logits: Tensor, index: Tensor, entropy: Tensor, lse: Tensor,
    dlse: Tensor | None = None, *, temperature: float = 1.0,
) -> dict[str, Tensor]:  # fmt: skip
    """The scale of its error: all terms before they cancel. log(p) is off by the units of the score and of
    lse, p relatively by as much and, below the smallest normal number, by a step."""
    scores = logits / temperature
    log_p = scores - lse[:, None]
    p = torch.exp(log_p)
    there = p > 0
    size = torch.where(there, log_p.abs(), 0.0)
    off = 1.0 + size + torch.where(there, 2.0 * scores.abs(), 0.0)
    power = p * off + UNDERFLOW
    terms = dlogprob.abs() if dlse is None else dlogprob.abs() + dlse.abs()
    spread = power * (size + entropy.abs()[:, None]) + p * (off + entropy.abs()[:, None])
    hot = torch.arange(logits.shape[-1], device=logits.device) == index[:, None]
    whole = terms[:, None] * power + dentropy.abs()[:, None] * (spread + 128.0 * UNDERFLOW)
    return {"dlogits": (whole + torch.where(hot, dlogprob.abs()[:, None], 0.0)) / temperature}
