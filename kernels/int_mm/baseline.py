"""What a user of torch alone would call: the baselines of the throughput of products in int8."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable import dtypes


def int_mm(a: Tensor, b: Tensor) -> Tensor:
    """torch._int_mm, cuBLASLt's on a GPU, which takes more than 16 rows, and K and N that are multiples of 8;
    it raises for others."""
    return torch._int_mm(a, b)  # pyright: ignore[reportPrivateImportUsage]


def int8_scaled_mm(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    a_zero_point: Tensor | None = None, *, output_dtype: Any,
) -> Tensor:  # fmt: skip
    acc = int_mm(mat_a, mat_b)
    if a_zero_point is not None:
        acc = acc - a_zero_point * mat_b.sum(0, dtype=torch.int32)
    c = acc * scale_a * scale_b
    return (c if bias is None else c + bias).to(dtypes.of(output_dtype).storage)
