"""The public function beside `int_mm`: `int8_scaled_mm`, of quantised matrices."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_tensor, documented
from portable.errors import DtypeError, RankError
from portable.kernels.scaled_mm.scales import expanded

_NAME = "int8_scaled_mm"
_op: Any = dispatcher.op("int8_scaled_mm")
_HINTS = {
    "out_dtype": " It is output_dtype here, as in torch.nn.functional.scaled_mm.",
    "azp": " It is a_zero_point here.",
    "azp_adj": " It is not needed: the sums over k of mat_b are taken from mat_b.",
}


@partial(documented, hints=_HINTS)
def int8_scaled_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    a_zero_point: Tensor | None = None,
    *,
    output_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """((mat_a - a_zero_point) @ mat_b) * scale_a * scale_b + bias, of matrices in int8, (M, N).

    mat_a is (M, K), as quantize_int8 makes it of rows of activations; mat_b (K, N), symmetric, as of a weight
    (N, K) quantised by rows and transposed. Any strides; instructions read a row-major mat_a and a
    column-major mat_b. Scales are float32 and multiply: scale_a is (M, 1) or one number, scale_b (1, N) or
    one number. a_zero_point: int32, (M, 1) or one number. bias is (N,), of output_dtype: bfloat16, float16 or
    float32.

    The sum, less a_zero_point times the sum over k of mat_b, is exact in int32: below 2^31 in magnitude for K
    up to 131071, with zero points of int8 up to 65793, and modulo 2^32 beyond. Then in float32, each one
    rounding to nearest and in this order, ((float32(sum) * scale_a) * scale_b) + bias, and one rounding to
    output_dtype: the bits are the same in every implementation, on every GPU and in every batch. There is no
    gradient.

    Raises RankError, ShapeError, DtypeError, NotATensorError, DeviceError or ParameterError that name the
    argument.
    Source: vLLM's cutlass_scaled_mm_azp, sgl_kernel's int8_scaled_mm.
    """
    for name, matrix in (("mat_a", mat_a), ("mat_b", mat_b)):
        if check_tensor(_NAME, name, matrix).dim() != 2:
            raise RankError(_NAME, name, matrix.dim(), "2: mat_a is (M, K), mat_b (K, N)")
    if bias is not None and check_tensor(_NAME, "bias", bias).dtype != output_dtype:
        raise DtypeError(_NAME, "bias", bias.dtype, f"{output_dtype}, as output_dtype says")
    rows, columns = (mat_a.shape[0], 1), (1, mat_b.shape[1])
    left = expanded(_NAME, "scale_a", scale_a, rows, torch.float32)
    right = expanded(_NAME, "scale_b", scale_b, columns, torch.float32)
    zero = None if a_zero_point is None else expanded(_NAME, "a_zero_point", a_zero_point, rows, torch.int32)
    return _op(mat_a, mat_b, left, right, bias, zero, output_dtype=output_dtype)
