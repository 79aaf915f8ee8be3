"""torch's operators of index_add."""

from __future__ import annotations

from torch import Tensor

import portable


def forward(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor | str:
    return portable.index_add(self, dim, index, source, alpha=alpha)


OVERRIDES = {"index_add": forward}
