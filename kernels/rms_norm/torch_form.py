"""The arguments of torch.nn.functional.rms_norm as this op's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from portable.kernels._lib.normalized_shape import check_normalized_shape


def rms_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> dict[str, Any]:
    """An `eps` of None is torch's: the spacing at 1 of the type that it computes in."""
    check_normalized_shape("rms_norm", input, normalized_shape)
    if eps is None:
        eps = torch.finfo(torch.float64 if input.dtype is torch.float64 else torch.float32).eps
    return {"x": input, "weight": weight, "eps": eps}
