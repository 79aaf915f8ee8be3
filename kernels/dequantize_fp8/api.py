"""The public functions over this folder's ops, named after the quantisers that they undo."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_tensor, documented
from portable.errors import DtypeError, ParameterError, RankError, ShapeError

SCALINGS = {"tensor": 0, "row": 1, "1x128": 1, "128x128": 2}
"""Each scaling, and how many dimensions q has at least."""
_OPS: dict[str, Any] = {
    "row": dispatcher.op("dequantize_fp8"),
    "1x128": dispatcher.op("dequantize_fp8_1x128"),
    "128x128": dispatcher.op("dequantize_fp8_128x128"),
}
_int8: Any = dispatcher.op("dequantize_int8")
_mx: Any = dispatcher.op("dequantize_mx")
_mxfp4: Any = dispatcher.op("dequantize_mxfp4")
_nvfp4: Any = dispatcher.op("dequantize_nvfp4")
FP4 = torch.float4_e2m1fn_x2
_HINTS = {
    "dtype": " It is output_dtype here.",
    "out_dtype": " It is output_dtype here.",
    "azp": " It is zero_point here.",
    "block_size": " It follows from scaling; of MX it is always 32, of NVFP4 16.",
    "per_tensor_scale": " It is global_scale here.",
    "group_size": ' Here it is scaling="1x128".',
}


@partial(documented, hints=_HINTS)
def dequantize_fp8(
    q: Tensor, scale: Tensor, scaling: str = "row", *, output_dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """q * scale in output_dtype, of what quantize_fp8 returns by the same `scaling`.

    q: float8_e4m3fn, float8_e5m2, float8_e4m3fnuz or float8_e5m2fnuz, (..., K); other strides than of rows
    cost a copy. scale: float32, by scaling: "tensor": one element; "row": (..., 1); "1x128": (..., ceil(K /
    128)); "128x128": (..., ceil(M / 128), ceil(K / 128)) of a q of (..., M, K). The result is new,
    contiguous, of q's shape, in output_dtype: bfloat16, float16 or float32.

    The product is in float32, one rounding to nearest, and rounded once more, to output_dtype: the bits are
    the same in every implementation, on every GPU and in every batch. A NaN of q or of a scale is NaN, and so
    is 0 by an infinite scale; what is too large for output_dtype is Inf. There is no gradient: one that is
    asked for is an UnsupportedGradientError.

    Raises ParameterError, DtypeError, RankError, ShapeError or NotATensorError that name the argument.
    """
    name = "dequantize_fp8"
    _known(name, scaling, SCALINGS)
    rank = check_tensor(name, "q", q).dim()
    if rank < SCALINGS[scaling]:
        raise RankError(name, "q", rank, f"at least {SCALINGS[scaling]}, for scaling {scaling!r}")
    if scaling != "tensor":
        return _OPS[scaling](q, scale, output_dtype=output_dtype)
    return _OPS["row"](_one_row(q), _one(name, "scale", scale), output_dtype=output_dtype).reshape(q.shape)


@partial(documented, hints=_HINTS)
def dequantize_int8(
    q: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    scaling: str = "row",
    *,
    output_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """(q - zero_point) * scale in output_dtype, of what quantize_int8 returns by the same `scaling`.

    q: int8, (..., K). scale: float32, zero_point: int32 or None, both (..., 1) by scaling "row" and one
    element by "tensor". A zero point is brought to int8's range, as quantize_int8 does with a given one; then
    the difference is exact. The rest is as in `portable.dequantize_fp8`.
    """
    name = "dequantize_int8"
    _known(name, scaling, ("tensor", "row"))
    check_tensor(name, "q", q)
    if scaling == "row":
        return _int8(q, scale, zero_point, output_dtype=output_dtype)
    zero = zero_point if zero_point is None else _one(name, "zero_point", zero_point)
    made = _int8(_one_row(q), _one(name, "scale", scale), zero, output_dtype=output_dtype)
    return made.reshape(q.shape)


@partial(documented, hints=_HINTS)
def dequantize_mx(q: Tensor, scale: Tensor, *, output_dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """q * 2^(byte of scale - 127) in output_dtype, of what quantize_mx returns.

    q: float8_e4m3fn or float8_e5m2, (..., K); or float4_e2m1fn_x2, (..., K / 2), two numbers in a byte, the
    even column's in the lower half. scale: float8_e8m0fnu, (..., ceil(K / 32)); its NaN makes its group NaN.
    The result is (..., K); the rest is as in `portable.dequantize_fp8`.
    """
    if check_tensor("dequantize_mx", "q", q).dtype == FP4:
        return _mxfp4(q.view(torch.uint8), scale, output_dtype=output_dtype)
    return _mx(q, scale, output_dtype=output_dtype)


@partial(documented, hints=_HINTS)
def dequantize_nvfp4(
    q: Tensor, scale: Tensor, global_scale: Tensor, *, output_dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """q * scale * global_scale in output_dtype, of what quantize_nvfp4 returns.

    q: float4_e2m1fn_x2, (..., K / 2), two numbers in a byte, the even column's in the lower half. scale:
    float8_e4m3fn, (..., ceil(K / 16)); its NaN makes its group NaN. global_scale: float32, one element. q *
    scale has 6 bits and is exact; its product by global_scale is rounded to float32. The result is (..., K);
    the rest is as in `portable.dequantize_fp8`.
    """
    name = "dequantize_nvfp4"
    if check_tensor(name, "q", q).dtype != FP4:
        raise DtypeError(name, "q", q.dtype, str(FP4))
    whole = _one(name, "global_scale", global_scale).reshape(1)
    return _nvfp4(q.view(torch.uint8), scale, whole, output_dtype=output_dtype)


def _known(name: str, scaling: Any, known: Any) -> None:
    if not isinstance(scaling, str) or scaling not in known:
        raise ParameterError(name, "scaling", scaling, "one of " + ", ".join(map(repr, known)))


def _one_row(q: Tensor) -> Tensor:
    return q.reshape(1, -1)


def _one(name: str, argument: str, given: Any) -> Tensor:
    """What is given for all of q, (1, 1)."""
    if check_tensor(name, argument, given, "a torch.Tensor of one element").numel() != 1:
        raise ShapeError(name, argument, tuple(given.shape), "one element, for all of q")
    return given.reshape(1, 1)
