"""The public functions over this folder's ops, which have a default dtype."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_flag, documented
from portable.errors import ParameterError

_OPS: dict[str, Any] = {"row": dispatcher.op("rms_norm_quant")}
_ADDED: dict[str, Any] = {"row": dispatcher.op("fused_add_rms_norm_quant")}
_HINTS = {
    "epsilon": " Here it is eps.",
    "scale": " Here the scale follows from the row: quantize_fp8 takes one that is given.",
    "residual": " Of a sum it is fused_add_rms_norm_quant.",
    "use_ue8m0": " Here it is power_of_2.",
}


@partial(documented, hints=_HINTS)
def rms_norm_quant(
    x: Tensor,
    weight: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scaling: str = "row",
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    scale_eps: float = 1e-10,
    power_of_2: bool = False,
) -> tuple[Tensor, Tensor]:
    """(q, scale): quantize_fp8(rms_norm(x, weight), scaling) in one launch, which keeps the norm off memory.

    x: bfloat16, float16 or float32, (..., N); other strides than of rows cost a copy. weight: (N,), of x's
    dtype, or float32 beside a 16-bit x; None for ones. dtype: float8_e4m3fn, float8_e5m2, float8_e4m3fnuz or
    float8_e5m2fnuz. q has x's shape and is contiguous. scaling: "row", a float32 dequantisation scale for
    each row, (..., 1).

    y = x * rsqrt(mean(x^2) + eps) * (weight + weight_offset) over the last dimension in float32, rounded to
    x's dtype, as rms_norm's. With amax the greatest |y| of a row, scale = float32(max(amax, scale_eps) /
    largest(dtype)); with `power_of_2` it is rounded up to a power of two. q = float32(y * float32(1 / scale))
    to the nearest, the even one of two, saturated. From y on, these are quantize_fp8's bits. y itself may
    differ from rms_norm's, and between implementations, within rms_norm's tolerance: by the order of the sum.

    NaN or Inf in a row of x makes its q and scale NaN. A row of zeros has the scale scale_eps / largest.
    scale_eps: at least 1e-30. There is no gradient, of x or of weight: one that is asked for is an
    UnsupportedGradientError.

    Raises ParameterError, DtypeError, RankError, ShapeError or NotATensorError that name the argument.
    """
    _check("rms_norm_quant", scaling, power_of_2)
    return _OPS[scaling](
        x,
        weight,
        dtype=dtype,
        eps=eps,
        weight_offset=weight_offset,
        scale_eps=scale_eps,
        power_of_2=power_of_2,
    )


@partial(documented, hints=_HINTS)
def fused_add_rms_norm_quant(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scaling: str = "row",
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    scale_eps: float = 1e-10,
    power_of_2: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """(q, scale, new_residual): new_residual = x + residual, rounded once, and rms_norm_quant of that, in one
    launch.

    x, residual: bfloat16, float16 or float32, both (..., N) and of one dtype. new_residual has that shape and
    dtype, and is a new tensor: neither input is written. All else is rms_norm_quant's, errors too.
    """
    _check("fused_add_rms_norm_quant", scaling, power_of_2)
    return _ADDED[scaling](
        x,
        residual,
        weight,
        dtype=dtype,
        eps=eps,
        weight_offset=weight_offset,
        scale_eps=scale_eps,
        power_of_2=power_of_2,
    )


def _check(op: str, scaling: Any, power_of_2: Any) -> None:
    check_flag(op, "power_of_2", power_of_2)
    if not isinstance(scaling, str) or scaling not in _OPS:
        expected = f"{' or '.join(map(repr, _OPS))}; for others call the norm, then quantize_fp8"
        raise ParameterError(op, "scaling", scaling, expected)
