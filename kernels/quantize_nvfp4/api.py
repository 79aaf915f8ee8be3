"""The public function over quantize_nvfp4 and amax_scale: with a global scale that is computed or given.

The op itself is `torch.ops.portable.quantize_nvfp4`, whose q is bytes and whose global scale is given.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_tensor, documented
from portable.errors import DtypeError, RankError, ShapeError

FP4 = torch.float4_e2m1fn_x2
LARGEST = 448.0 * 6.0
"""Of a scale in float8_e4m3fn times a number in float4_e2m1fn."""
LEAST_AMAX = 1e-30
_NAME = "quantize_nvfp4"
_op: Any = dispatcher.op("quantize_nvfp4")
_amax_scale: Any = dispatcher.op("amax_scale")
_HINTS = {
    "per_tensor_scale": " It is global_scale here: both are what a quantised number is multiplied by.",
    "block_size": " It is always 16.",
}


@partial(documented, hints=_HINTS)
def quantize_nvfp4(x: Tensor, *, global_scale: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(q, scale, global_scale): x in NVFP4, of 4 bits, with a scale in 8 bits for each 16 neighbours of a row
    and a float32 scale for all of x: x is about q * scale * global_scale.

    x: bfloat16, float16 or float32, (..., K), K even; other strides than of rows cost a copy. q is
    float4_e2m1fn_x2, (..., K / 2): two numbers in a byte, the even column's in the lower half. scale is
    float8_e4m3fn, (..., ceil(K / 16)), of the last group of a row too where that has fewer than 16. Both are
    contiguous. global_scale is float32, ().

    global_scale: a float32 tensor of one positive number in the place of the computed one: x is read once
    then. The computed one is float32(max(amax of x, 1e-30) / (448 * 6)).

    With amax the greatest |x| of a group, scale is the nearest number of float8_e4m3fn, the even one of two,
    to float32(float32(amax / 6) / global_scale), brought to 2^-6 to 448: no scale is 0 or subnormal. q is the
    nearest number, the even one of two, to float32(x * float32(float32(1 / global_scale) / scale)), saturated
    to 6. Each float32 is one rounding to nearest, so that the bits are the same in every implementation, on
    every GPU and in every batch.

    A NaN makes the scale of its group NaN and the group's q 0, as float4_e2m1fn has no NaN; it makes a
    computed global_scale NaN, and so all scales. Inf makes a computed global_scale Inf: all of x is NaN when
    it is dequantised. By a given global_scale what is too large, Inf too, becomes 6 * 448 * global_scale. Of
    zeros alone the scale is 2^-6, and they keep their signs. There is no gradient: one that is asked for is
    an UnsupportedGradientError.

    Raises ShapeError, DtypeError, RankError or NotATensorError that name the argument.
    Source: torchao's nvfp4_quantize with a per_tensor_scale, and its packing.
    """
    shape = check_tensor(_NAME, "x", x).shape
    if not shape:
        raise RankError(_NAME, "x", 0, "at least 1: (..., K)")
    if shape[-1] % 2:
        expected = f"an even last dimension: two numbers of {FP4} share a byte"
        raise ShapeError(_NAME, "x", tuple(shape), expected, "Pad it with a column of zeros")
    computed = global_scale is None
    found = _amax_scale(x, largest=LARGEST, eps=LEAST_AMAX) if computed else _one(global_scale)
    q, scale = _op(x, found)
    return q.view(FP4), scale, found.reshape(())


def _one(given: Any) -> Tensor:
    """The given scale of all of x, (1,)."""
    found = check_tensor(_NAME, "global_scale", given, "a torch.Tensor of one element")
    if found.dtype != torch.float32:
        remedy = "Convert it with global_scale.float()"
        raise DtypeError(_NAME, "global_scale", found.dtype, "float32", remedy)
    if found.numel() != 1:
        raise ShapeError(_NAME, "global_scale", tuple(found.shape), "one element, for all of x")
    return found.reshape(1)
