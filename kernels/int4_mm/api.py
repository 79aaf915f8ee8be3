"""The public function over this folder's op: `int4_mm` of a weight [N, K / 2]."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_tensor, documented
from portable.errors import DtypeError, RankError, ShapeError

_NAME = "int4_mm"
_op: Any = dispatcher.op(_NAME)
_HINTS = {
    "group_size": " It is K divided by the columns of scale.",
    "scales_and_zeros": " They are scale and offset here.",
    "qzeros": " They are zero_point here, a number for each group.",
}


@partial(documented, hints=_HINTS)
def int4_mm(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    offset: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """x @ w.T + bias, of a weight w (N, K) in codes of 4 bits (W4A16), (..., N) in x's dtype.

    x: (..., K), bfloat16, float16 or float32. weight: uint8, (N, K / 2), codes 0 to 15, two in a byte: that
    of the even k in the lower half, that of the odd k after it in the upper half. scale: (N, K / group), of
    x's dtype or float32, in any strides: each is that of `group` neighbours along k, of which any even number
    that divides K is legal; fastest are 32, 64 and 128, and one for the whole row, (N, 1).

    w = (code - zero_point) * scale + offset. zero_point: uint8, like scale, from 0 to 16 (not checked; GPTQ's
    v1 has 16); None is 8. offset: like scale and of its dtype, for formats with a zero in floating point
    (torch's tinygemm, torchao); None is 0. bias: (N,), of x's dtype.

    A code less its zero point is exact in x's dtype and goes into the product so; a group's sum is multiplied
    by its scale in float32, and the sum of x in the group by its offset. So w is never rounded, whatever its
    scale. Sums are float32, with one rounding to x's dtype. Where x is Inf, a code at its zero point and an
    offset of 0 give NaN. There is no gradient.

    Raises RankError, ShapeError, DtypeError, NotATensorError or DeviceError that name the argument.
    Source: torch's _weight_int4pack_mm, torchao's Int4Tensor, GPTQ, AWQ; the products of groups as in Marlin.
    """
    codes, half = grouped(_NAME, weight, scale), weight.shape[1]
    if check_tensor(_NAME, "x", x).dim() and x.shape[-1] != 2 * half:
        expected = f"(..., {2 * half}), as weight has shape {tuple(weight.shape)}, two codes in a byte"
        raise ShapeError(_NAME, "x", tuple(x.shape), expected)
    return _op(x, codes, scale, zero_point, offset, bias)


def grouped(op: str, weight: Tensor, scale: Tensor) -> Tensor:
    """A weight (N, K / 2) as (N, groups, K / 2 / groups), by the columns of its scale. Raises
    NotATensorError, RankError, DtypeError or ShapeError."""
    for name, given in (("weight", weight), ("scale", scale)):
        if check_tensor(op, name, given).dim() != 2:
            expected = "2: weight is (N, K / 2), scale (N, K / group)"
            raise RankError(op, name, given.dim(), expected)
    if weight.dtype.itemsize != 1 or weight.dtype.is_floating_point:
        expected = "torch.uint8, two codes in a byte, that of the even k in the lower half"
        raise DtypeError(op, "weight", weight.dtype, expected)
    half, groups = weight.shape[1], scale.shape[1]
    if groups == 0 or half % groups:
        expected = f"(N, K / group) for a weight of K = {2 * half}, in whole bytes for each group"
        raise ShapeError(op, "scale", tuple(scale.shape), expected)
    return weight.unflatten(1, (groups, half // groups))
