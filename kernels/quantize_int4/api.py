"""The public function over this folder's ops: `quantize_int4` of groups along the last dimension."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_flag, check_tensor, documented
from portable.errors import ParameterError, RankError, ShapeError
from portable.kernels.int4_mm.formats import Int4Weight

_NAME = "quantize_int4"
_symmetric: Any = dispatcher.op("quantize_int4")
_asymmetric: Any = dispatcher.op("quantize_int4_asymmetric")
_HINTS = {
    "groupsize": " It is group_size.",
    "sym": " It is symmetric.",
    "block_size": " It is group_size here.",
}


@partial(documented, hints=_HINTS)
def quantize_int4(
    weight: Tensor, group_size: int | None = 128, *, symmetric: bool = True, eps: float = 1e-10
) -> Int4Weight:
    """A weight as `int4_mm` takes it: int4_mm(x, *quantize_int4(weight)[:4]) is about x @ weight.T.

    weight: (..., N, K), bfloat16, float16 or float32. group_size: how many neighbours along K share a scale,
    an even divisor of K; None is all of a row. The result has `weight`, the codes, uint8 (..., N, K / 2), two
    in a byte, that of the even k in the lower half; `scale`, float32 (..., N, K / group_size); `zero_point`,
    uint8 like scale, or None, which is 8.

    Symmetric: with amax the greatest |w| of a group, scale = float32(max(amax, eps) / 7.5) and code = 8 + the
    integer nearest to float32(w * float32(1 / scale)), of two the even one, from -8 to 7. Else: `most` and
    `least` are the greatest and smallest of w and of 0, so that 0 is a code; scale = float32(max(float32(most
    - least), eps) / 15), zero_point is minus the integer nearest to least over the scale, and code the sum of
    it and of w's integer, both from 0 to 15. Each float32 is one rounding to nearest, so that the bits are
    the same in every implementation and on every GPU.

    A NaN makes the scale of its group NaN and Inf makes it Inf, with the code of 0 for all of the group:
    dequantised all of it is NaN. Of zeros alone the scale is eps / 7.5 or eps / 15. eps: at least 1e-30.
    There is no gradient: one that is asked for is an UnsupportedGradientError.

    Raises ParameterError, ShapeError, RankError, DtypeError or NotATensorError that name the argument.
    Source: the rule of GPTQ's and compressed-tensors' quantisers (round to nearest, without their search).
    """
    check_flag(_NAME, "symmetric", symmetric)
    if check_tensor(_NAME, "weight", weight).dim() < 2:
        raise RankError(_NAME, "weight", weight.dim(), "at least 2: (..., N, K)")
    width = weight.shape[-1]
    if group_size is not None and (type(group_size) is not int or group_size < 2 or group_size % 2):
        raise ParameterError(_NAME, "group_size", group_size, "an even int from 2 on, or None for whole rows")
    if width % 2:
        raise ShapeError(_NAME, "weight", tuple(weight.shape), "an even number of columns: two share a byte")
    size = width if group_size is None else group_size
    if size and width % size:
        raise ShapeError(_NAME, "weight", tuple(weight.shape), f"a multiple of group_size = {size} columns")
    groups = width // size if width else 1
    q, scale, *zero = (_symmetric if symmetric else _asymmetric)(
        weight.unflatten(-1, (groups, -1 if width else 0)), eps=eps
    )
    return Int4Weight(q.flatten(-2), scale.squeeze(-1), zero[0].squeeze(-1) if zero else None)
