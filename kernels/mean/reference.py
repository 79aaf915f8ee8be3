"""The meaning of mean, in float64 on the CPU."""

from __future__ import annotations

from torch import Tensor


def mean(x: Tensor) -> Tensor:
    """y = sum(x) / N over the last dimension; NaN where N is 0."""
    return x.mean(-1)


def error_scale(x: Tensor) -> dict[str, Tensor]:
    """The scale of its error: a sum's rounding error grows with the root of its sum of squares."""
    return {"y": x.square().sum(-1).sqrt() / max(x.shape[-1], 1)}
