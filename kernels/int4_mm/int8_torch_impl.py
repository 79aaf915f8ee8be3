"""int8_int4_mm through torch: any device, exact sums of groups in int32, float32 then."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable import dtypes
from portable.kernels.int4_mm.reference import numbers
from portable.kernels.int_mm.torch_impl import int_mm


def int8_int4_mm(
    mat_a: Tensor, weight: Tensor, scale_a: Tensor, scale: Tensor, zero_point: Tensor | None = None,
    bias: Tensor | None = None, *, output_dtype: Any,
) -> Tensor:  # fmt: skip
    w, scale = numbers(weight, zero_point).to(torch.int8), scale.float()
    c = scale.new_zeros(len(mat_a), len(weight))
    for group, part in enumerate(mat_a.unflatten(-1, (weight.shape[1], -1)).unbind(-2)):
        c = c + int_mm(part, w[:, group].T).float() * scale[:, group]
    c = c * scale_a
    return (c if bias is None else c + bias.float()).to(dtypes.of(output_dtype).storage)
