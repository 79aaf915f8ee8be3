"""The public function `int8_int4_mm`: products of rows in int8 with a weight of 4 bits (W4A8)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_tensor, documented
from portable.errors import DtypeError, RankError, ShapeError
from portable.kernels.int4_mm.api import grouped
from portable.kernels.scaled_mm.scales import expanded

_NAME = "int8_int4_mm"
_op: Any = dispatcher.op(_NAME)
_HINTS = {
    "out_dtype": " It is output_dtype here, as in int8_scaled_mm.",
    "group_size": " It is K divided by the columns of scale.",
    "scale_b": " It is scale here, one for each group of each row of the weight.",
}


@partial(documented, hints=_HINTS)
def int8_int4_mm(
    mat_a: Tensor,
    weight: Tensor,
    scale_a: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    output_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """(mat_a @ w.T) * scale_a + bias, (M, N), of rows in int8 and a weight w (N, K) in 4 bits (W4A8).

    mat_a is (M, K), int8, as `quantize_int8` makes it of rows of activations, without zero points; scale_a is
    float32, (M, 1) or one number. weight, scale and zero_point are what int4_mm takes and `quantize_int4` and
    `unpack_int4` make: uint8 (N, K / 2), codes 0 to 15, that of the even k in the lower half of a byte; scale
    (N, K / group), float32 or of output_dtype, in any strides, of which any even group that divides K is
    legal; fastest are 32, 64 and 128, and one for the whole row, (N, 1). zero_point: uint8, like scale, from
    0 to 16 (not checked); None is 8. bias: (N,), of output_dtype: bfloat16, float16 or float32.

    The products of a group, of a code less its zero point, are summed exactly in int32 (groups of up to
    2^19); the sum over groups of that times scale is float32; then times scale_a, plus bias, with one
    rounding to output_dtype. There is no gradient.

    Raises RankError, ShapeError, DtypeError, NotATensorError, DeviceError or ParameterError that name the
    argument.
    Source: torchao's Int8DynamicActivationInt4WeightConfig; QServe (Lin et al., 2024), whose weights have two
    levels of scales instead.
    """
    if check_tensor(_NAME, "mat_a", mat_a).dim() != 2:
        raise RankError(_NAME, "mat_a", mat_a.dim(), "2: (M, K)")
    codes = grouped(_NAME, weight, scale)
    if mat_a.shape[1] != 2 * weight.shape[1]:
        expected = (
            f"(M, {2 * weight.shape[1]}), as weight has shape {tuple(weight.shape)}, two codes in a byte"
        )
        raise ShapeError(_NAME, "mat_a", tuple(mat_a.shape), expected)
    if bias is not None and check_tensor(_NAME, "bias", bias).dtype != output_dtype:
        raise DtypeError(_NAME, "bias", bias.dtype, f"{output_dtype}, as output_dtype says")
    left = expanded(_NAME, "scale_a", scale_a, (mat_a.shape[0], 1), torch.float32)
    return _op(mat_a, codes, left, scale, zero_point, bias, output_dtype=output_dtype)
