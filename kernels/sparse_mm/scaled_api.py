"""The public function `sparse_scaled_mm`: products in fp8 with weights of 2:4 sparsity."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_tensor, documented
from portable.errors import DtypeError, RankError, ShapeError
from portable.kernels.scaled_mm.scales import expanded

_NAME = "sparse_scaled_mm"
_op: Any = dispatcher.op(_NAME)
_HINTS = {
    "out_dtype": " It is output_dtype here, as in scaled_mm.",
    "mat_b": " It is values and meta here, as pack_sparse_24 makes them of the weight (N, K).",
    "use_fast_accum": " There is none: sums are brought to float32 every 128 products.",
}


@partial(documented, hints=_HINTS)
def sparse_scaled_mm(
    mat_a: Tensor,
    values: Tensor,
    meta: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    *,
    output_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """(mat_a @ w.T) * scale_a * scale_b + bias in fp8, of a weight w (N, K) with 2:4 sparsity, (M, N).

    mat_a is (M, K), float8_e4m3fn, as quantize_fp8 makes it of rows of activations, K a multiple of 8.
    values (N, K / 2), float8_e4m3fn, and meta (N, K / 8), uint8, are what `pack_sparse_24` makes of w in
    float8_e4m3fn: prune_24 a weight, quantise it by rows, pack it. Scales are float32 and multiply: scale_a
    is (M, 1) or one number, scale_b (1, N) or one number. bias is (N,), of output_dtype: bfloat16 or float16.

    The products are summed in float32; then ((sum * scale_a) * scale_b) + bias, with one rounding to
    output_dtype. Hopper's sparse instructions keep 13 bits of a sum, which is therefore brought to float32
    every 128 products. Whether a NaN of mat_a reaches the result where w has no value is not defined. There
    is no gradient.

    Raises RankError, ShapeError, DtypeError, NotATensorError, DeviceError or ParameterError that name the
    argument.
    Source: torch's scaled_mm with row-wise scales; NVIDIA's PTX ISA on wgmma.sp.
    """
    for name, matrix, means in (
        ("mat_a", mat_a, "(M, K)"),
        ("values", values, "(N, K / 2)"),
        ("meta", meta, "(N, K / 8)"),
    ):
        if check_tensor(_NAME, name, matrix).dim() != 2:
            raise RankError(_NAME, name, matrix.dim(), f"2: {means}")
    if mat_a.shape[1] != 8 * meta.shape[1]:
        expected = f"(M, {8 * meta.shape[1]}), as meta is {tuple(meta.shape)}, 8 of K in a byte"
        raise ShapeError(_NAME, "mat_a", tuple(mat_a.shape), expected)
    if bias is not None and check_tensor(_NAME, "bias", bias).dtype != output_dtype:
        raise DtypeError(_NAME, "bias", bias.dtype, f"{output_dtype}, as output_dtype says")
    left = expanded(_NAME, "scale_a", scale_a, (mat_a.shape[0], 1), torch.float32)
    right = expanded(_NAME, "scale_b", scale_b, (1, meta.shape[0]), torch.float32)
    return _op(mat_a, values, meta, left, right, bias, output_dtype=output_dtype)
