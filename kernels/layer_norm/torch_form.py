"""The arguments of torch.nn.functional.layer_norm as this op's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from portable.kernels._lib.normalized_shape import check_normalized_shape


def layer_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> dict[str, Any]:
    check_normalized_shape("layer_norm", input, normalized_shape)
    return {"x": input, "weight": weight, "bias": bias, "eps": eps}
