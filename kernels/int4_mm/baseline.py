"""What a user of torch alone would write: a weight in x's dtype from the codes, and its product.

torch._weight_int4pack_mm takes bfloat16, packed for one device and with an offset for each group, alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from portable.kernels.int4_mm.reference import ZERO_POINT


def int4_mm(
    x: Tensor, weight: Tensor, scale: Tensor, zero_point: Tensor | None = None, offset: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    codes = torch.stack([weight & 15, weight >> 4], -1).flatten(-2).to(x.dtype)
    zero = ZERO_POINT if zero_point is None else zero_point.to(x.dtype).unsqueeze(-1)
    w = (codes - zero) * scale.to(x.dtype).unsqueeze(-1)
    w = w if offset is None else w + offset.to(x.dtype).unsqueeze(-1)
    return F.linear(x, w.flatten(1), bias)
