"""What a user of torch alone would write, silu in float32 as the op has it, then the quantiser's baseline.

With silu rounded too, as torch does in 16 bits, the scale would be another one. The float32 tensors between
cost torch's own kernels bandwidth, and torch.compile nothing: that is the fair one of the two.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from portable.kernels.quantize_fp8 import baseline as quantiser


def _gated(x: Tensor) -> Tensor:
    return (silu(x[..., 0, :].float()) * x[..., 1, :].float()).to(x.dtype)


def row(x: Tensor, *, dtype: torch.dtype, power_of_2: bool, eps: float) -> tuple[Tensor, Tensor]:
    return quantiser.row(_gated(x), dtype, power_of_2, eps)


def groups(x: Tensor, *, dtype: torch.dtype, power_of_2: bool, eps: float) -> tuple[Tensor, Tensor]:
    return quantiser.groups(_gated(x), dtype, power_of_2, eps)
