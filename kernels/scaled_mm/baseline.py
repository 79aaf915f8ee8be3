"""What a user of torch alone would call: the baselines of scaled_mm's throughput."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from portable import dtypes
from portable.kernels.scaled_mm import torch_impl
from portable.kernels.scaled_mm.reference import MX_GROUP


def scaled_mm(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    *, output_dtype: Any, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """torch._scaled_mm, which on a GPU takes a row-major a, a column-major b, and K and N that are multiples
    of 16; it raises for others."""
    return torch.ops.aten._scaled_mm(
        mat_a, mat_b, scale_a, scale_b, bias,
        out_dtype=dtypes.of(output_dtype).storage, use_fast_accum=use_fast_accum,
    )  # fmt: skip


def scaled_mm_block(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    *, output_dtype: Any, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """torch.nn.functional.scaled_mm of torch 2.10 on, which takes these scales on Hopper alone: scale_a with
    stride 1 along M; scale_b with stride 1 along K, of a multiple of 4 blocks along K."""
    if mat_a.device.type == "cpu":  # where torch has none
        return torch_impl.scaled_mm_block(mat_a, mat_b, scale_a, scale_b, bias, output_dtype=output_dtype)
    kinds = F.ScalingType
    return F.scaled_mm(
        mat_a, mat_b, scale_a, kinds.BlockWise1x128, scale_b, kinds.BlockWise128x128,
        bias=bias, output_dtype=dtypes.of(output_dtype).storage, use_fast_accum=use_fast_accum,
    )  # fmt: skip


def scaled_mm_mx(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    *, output_dtype: Any, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """A product in bfloat16 of the numbers times their scales: torch.nn.functional.scaled_mm takes these on
    Blackwell and gfx950 alone."""
    length, low = mat_a.shape[1], torch.bfloat16
    a = mat_a.to(low) * scale_a.to(low).repeat_interleave(MX_GROUP, 1)[:, :length]
    b = mat_b.to(low) * scale_b.to(low).repeat_interleave(MX_GROUP, 1)[:, :length].T
    c = (a @ b).to(dtypes.of(output_dtype).storage)
    return c if bias is None else c + bias
