"""The public function over this folder's ops: `quantize_int8` of rows or of a whole tensor.

The op itself, symmetric with a scale per row, is `torch.ops.portable.quantize_int8`; with zero points it is
`quantize_int8_asymmetric`, and with what is given `quantize_int8_static`. The scale of a whole tensor is
`amax_scale`'s, as quantize_fp8's is.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_flag, check_tensor, documented
from portable.errors import DtypeError, ParameterError, RankError, ShapeError
from portable.kernels.quantize_int8.reference import MOST

SCALINGS = ("tensor", "row")
_NAME = "quantize_int8"
_symmetric: Any = dispatcher.op("quantize_int8")
_asymmetric: Any = dispatcher.op("quantize_int8_asymmetric")
_static: Any = dispatcher.op("quantize_int8_static")
_amax_scale: Any = dispatcher.op("amax_scale")
_HINTS = {"azp": " It is zero_point here.", "dtype": " It is always torch.int8."}


@partial(documented, hints=_HINTS)
def quantize_int8(
    x: Tensor,
    scaling: str = "row",
    *,
    symmetric: bool = True,
    eps: float = 1e-10,
    scale: Tensor | None = None,
    zero_point: Tensor | None = None,
) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    """(q, scale): x in int8 and float32 dequantisation scales, x about q * scale; or, with symmetric=False,
    (q, scale, zero_point): x about (q - zero_point) * scale, zero_point int32.

    x: bfloat16, float16 or float32, (..., K); other strides than of rows cost a copy. q has x's shape and is
    contiguous. scaling says what has a scale and zero point of its own, and so their shape: "row", each row,
    (..., 1), as of tokens; "tensor", all of x, ().

    Symmetric: with amax the greatest |x|, scale = float32(max(amax, eps) / 127), and q is the integer nearest
    to float32(x * float32(1 / scale)), of two the even one, from -127 to 127: the same range on both sides.
    Asymmetric: `most` and `least` are the greatest and smallest of x and of 0, so that 0 is a code; scale =
    float32(max(float32(most - least), eps) / 255), zero_point is -128 minus the integer nearest to least over
    the scale, and q the sum of it and of x's integer, both from -128 to 127. Each float32 is one rounding to
    nearest, so that the bits are the same in every implementation, on every GPU and in every batch.

    NaN becomes what 0 becomes. A NaN makes the scale of its group NaN and Inf makes it Inf, with 0, or
    zero_point, for all of the group: dequantised all of it is NaN. Of zeros alone the scale is eps / 127 or
    eps / 255.

    scale, zero_point: for "tensor", a float32 and an int32 tensor of one element that take the place of those
    computed (static quantisation), with symmetric=False where there is a zero point; x is read once, and what
    is too large, Inf too, becomes the end of its sign, NaN the code of 0. A zero point of 0 gives the range
    -128 to 127, which vLLM's static quantisation uses. Asymmetric scales of a whole tensor are not computed:
    give them. eps: at least 1e-30. There is no gradient: one that is asked for is an
    UnsupportedGradientError.

    Raises ParameterError, DtypeError, RankError, ShapeError or NotATensorError that name the argument.
    Source: vLLM's scaled_int8_quant, with torchao's symmetric range and its zero among the codes.
    """
    check_flag(_NAME, "symmetric", symmetric)
    if scaling not in SCALINGS:
        raise ParameterError(_NAME, "scaling", scaling, "one of " + ", ".join(map(repr, SCALINGS)))
    rank = check_tensor(_NAME, "x", x).dim()
    if scaling == "row":
        for name, given in (("scale", scale), ("zero_point", zero_point)):
            if given is not None:
                raise ParameterError(_NAME, name, "a tensor", 'None, but for scaling="tensor"')
        if rank < 1:
            raise RankError(_NAME, "x", rank, "at least 1, for scaling 'row'")
        return (_symmetric if symmetric else _asymmetric)(x, eps=eps)
    last = x if rank else x.reshape(1)
    if scale is None:
        if not symmetric or zero_point is not None:
            expected = "a tensor: asymmetric scales of a whole tensor are not computed"
            raise ParameterError(_NAME, "scale", None, expected, "Give scale and zero_point")
        found = _amax_scale(last, largest=float(MOST), eps=eps)
    else:
        found = _one("scale", scale, torch.float32)
    if symmetric != (zero_point is None):
        expected = "None where symmetric is True, else a tensor"
        raise ParameterError(_NAME, "zero_point", "a tensor" if symmetric else None, expected)
    zero = None if zero_point is None else _one("zero_point", zero_point, torch.int32)
    q = _static(last, found, zero)
    q, found = q if rank else q.reshape(()), found.reshape(())
    return (q, found) if zero is None else (q, found, zero.reshape(()))


def _one(name: str, given: Any, dtype: torch.dtype) -> Tensor:
    """What is given for all of x, (1,)."""
    if check_tensor(_NAME, name, given, "a torch.Tensor of one element").dtype != dtype:
        raise DtypeError(_NAME, name, given.dtype, str(dtype), f"Convert it with {name}.to({dtype})")
    if given.numel() != 1:
        raise ShapeError(_NAME, name, tuple(given.shape), "one element, for all of x")
    return given.reshape(1)
