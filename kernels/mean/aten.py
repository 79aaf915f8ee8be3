"""torch's operators of mean."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import portable


def forward(
    self: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor | str:
    return portable.mean(self, dim, keepdim, dtype=dtype)


OVERRIDES = {"mean.dim": forward}
