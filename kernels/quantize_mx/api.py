"""The public function over this folder's ops: `quantize_mx` by the type that x becomes.

The ops themselves are `torch.ops.portable.quantize_mx`, to types of 8 bits, and
`torch.ops.portable.quantize_mxfp4`, to 4 bits, whose result is bytes: here they become torch's packed type.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_tensor, documented
from portable.errors import ParameterError, ShapeError, listed

OF_8_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
FP4 = torch.float4_e2m1fn_x2
_NAME = "quantize_mx"
_fp8: Any = dispatcher.op("quantize_mx")
_fp4: Any = dispatcher.op("quantize_mxfp4")
_HINTS = {
    "elem_dtype": " It is dtype here.",
    "mode": " It is rounding here.",
    "scaling_mode": " It is rounding here.",
    "block_size": " It is always 32.",
}


@partial(documented, hints=_HINTS)
def quantize_mx(x: Tensor, *, dtype: torch.dtype, rounding: str = "floor") -> tuple[Tensor, Tensor]:
    """(q, scale): x in a type of OCP MX v1.0, and a power of two for each 32 neighbours of a row, in a byte.

    x: bfloat16, float16 or float32, (..., K); other strides than of rows cost a copy. dtype: float8_e4m3fn or
    float8_e5m2, MXFP8, where q is (..., K); or float4_e2m1fn_x2, MXFP4, where q is (..., K / 2): it has two
    numbers in a byte, the even column's in the lower half, and K must be even. scale is float8_e8m0fnu,
    (..., ceil(K / 32)), of the last group of a row too where that has fewer than 32. Both are contiguous.
    x is about q * 2^(byte of scale - 127).

    rounding says which power of two, with amax the greatest |x| of the group, `largest` dtype's largest
    number (448, 57344, 6) and `top` the exponent of that (8, 15, 2); the exponent is at least -127:
    "floor", OCP's: floor(log2(amax)) - top, with which what lies above `largest` saturates. "ceil":
    ceil(log2(amax)) - top. "even": floor of amax rounded to dtype's precision, half up. "rceil", NVIDIA's:
    ceil(log2(float32(amax * float32(1 / largest)))).

    q is the nearest number, the even one of two, to x / 2^exponent, saturated: the bits are the same in every
    implementation, on every GPU and in every batch. A NaN or Inf makes the scale of its group NaN, and the
    group's q NaN, or 0 in float4_e2m1fn, which has no NaN: dequantised all of it is NaN. Of zeros alone the
    scale is 2^-127, and they keep their signs. There is no gradient: one that is asked for is an
    UnsupportedGradientError.

    Raises ParameterError, ShapeError, DtypeError, RankError or NotATensorError that name the argument.
    Source: OCP MX v1.0; rounding is torchao's ScaleCalculationMode, the packing torchao's and torch's.
    """
    if dtype != FP4:
        if dtype not in OF_8_BITS:
            raise ParameterError(_NAME, "dtype", dtype, listed([str(each) for each in (*OF_8_BITS, FP4)]))
        return _fp8(x, dtype=dtype, rounding=rounding)
    shape = check_tensor(_NAME, "x", x).shape
    if shape and shape[-1] % 2:
        expected = f"an even last dimension: two numbers of {FP4} share a byte"
        raise ShapeError(_NAME, "x", tuple(shape), expected, "Pad it with a column of zeros")
    q, scale = _fp4(x, rounding=rounding)
    return q.view(FP4), scale
