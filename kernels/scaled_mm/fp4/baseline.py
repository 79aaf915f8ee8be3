"""What a user of torch alone would write: products in bfloat16, or in float32 for a result in it, of what the
codes and scales stand for. torch.nn.functional.scaled_mm takes these operands on Blackwell and gfx950."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable import dtypes
from portable.kernels.scaled_mm.fp4.reference import MX_BYTES, NV_BYTES

_NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def scaled_mm_mxfp4(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    *, output_dtype: Any,
) -> Tensor:  # fmt: skip
    result = dtypes.of(output_dtype).storage
    c = _product(mat_a, mat_b, scale_a, scale_b, MX_BYTES, result).to(result)
    return c if bias is None else c + bias


def scaled_mm_nvfp4(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, global_a: Tensor, global_b: Tensor,
    bias: Tensor | None = None, *, output_dtype: Any,
) -> Tensor:  # fmt: skip
    result = dtypes.of(output_dtype).storage
    c = _product(mat_a, mat_b, scale_a, scale_b, NV_BYTES, result) * (global_a * global_b)
    c = c.to(result)
    return c if bias is None else c + bias


def _product(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, size: int, result: torch.dtype
) -> Tensor:
    wide = torch.float32 if result == torch.float32 else torch.bfloat16
    return _wide(mat_a, scale_a, size).to(wide) @ _wide(mat_b.T, scale_b, size).T.to(wide)


def _wide(rows: Tensor, scale: Tensor, size: int) -> Tensor:
    table = torch.tensor([*_NUMBERS, *(-each for each in _NUMBERS)], device=rows.device, dtype=torch.bfloat16)
    codes = torch.stack([rows & 15, rows >> 4], -1).flatten(-2).int()
    return table[codes] * scale.to(torch.bfloat16).repeat_interleave(2 * size, 1)[:, : codes.shape[1]]
