"""What a user of torch alone would write: a weight in x's dtype from the codes, and its product. `dense` is
that product alone, of a weight that was made beforehand.

torch._weight_int4pack_mm takes bfloat16, packed for one device and with an offset for each group, alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from portable.kernels.int4_mm.reference import ZERO_POINT


def int4_mm(
    x: Tensor, weight: Tensor, scale: Tensor, zero_point: Tensor | None = None, offset: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return F.linear(x, weight_of(x, weight, scale, zero_point, offset), bias)


def dense(given: Mapping[str, Any], facts: Mapping[str, Any]) -> Callable[[], object]:
    """torch's linear of the weight in x's dtype: as many flops, four times the weight's bytes in 16 bits."""
    x, bias = given["x"], given["bias"]
    w = weight_of(x, *(given[name] for name in ("weight", "scale", "zero_point", "offset")))
    return lambda: F.linear(x, w, bias)


def weight_of(
    x: Tensor, weight: Tensor, scale: Tensor, zero_point: Tensor | None, offset: Tensor | None
) -> Tensor:
    """[N, K] in x's dtype."""
    codes = torch.stack([weight & 15, weight >> 4], -1).flatten(-2).to(x.dtype)
    zero = ZERO_POINT if zero_point is None else zero_point.to(x.dtype).unsqueeze(-1)
    w = (codes - zero) * scale.to(x.dtype).unsqueeze(-1)
    w = w if offset is None else w + offset.to(x.dtype).unsqueeze(-1)
    return w.flatten(1)
