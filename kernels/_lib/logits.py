"""What references of ops over rows of logits share, in torch."""

from __future__ import annotations

import torch
from torch import Tensor

UNDERFLOW = 2.0**-103
"""exp of a very negative number is a subnormal float32, or 0 where these are flushed: good to 2^-126, here in
a bound's units of 2^-23."""


def about_maximum(scores: Tensor) -> tuple[Tensor, Tensor]:
    """(the maximum of each row, the elements' distances from it): a row of -inf is -inf from 0."""
    maximum = scores.amax(-1)
    return maximum, scores - torch.where(torch.isneginf(maximum), 0.0, maximum)[:, None]


def picked(scores: Tensor, index: Tensor) -> Tensor:
    """Each row's element at its index; NaN where that is outside the row."""
    outside = (index < 0) | (index >= scores.shape[-1])
    found = scores.gather(-1, torch.where(outside, 0, index)[:, None])[:, 0]
    return torch.where(outside, torch.nan, found)
