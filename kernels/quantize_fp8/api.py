"""The public function over this folder's ops: `quantize_fp8` by the shape of its groups.

The op itself, with a scale per row, is `torch.ops.portable.quantize_fp8`; the others are
`quantize_fp8_columns`, which reads rows as columns, `quantize_fp8_1x128`, `quantize_fp8_128x128`, and of a
whole tensor `amax_scale` and `quantize_fp8_static`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_flag, check_tensor, documented
from portable.errors import DtypeError, ParameterError, RankError, ShapeError
from portable.kernels._lib import minifloat

_rows: Any = dispatcher.op("quantize_fp8")
_columns: Any = dispatcher.op("quantize_fp8_columns")
_static: Any = dispatcher.op("quantize_fp8_static")
_amax_scale: Any = dispatcher.op("amax_scale")


def by_rows(x: Tensor, **params: Any) -> tuple[Tensor, Tensor]:
    """The op with a scale per row; of a transpose, whose columns lie as rows do, the one that reads those."""
    if x.dim() >= 2 and x.stride(-2) == 1 != x.stride(-1) and min(x.shape[-2:]) > 1:
        return _columns(x.mT, **params)
    return _rows(x, **params)


SCALINGS = {"tensor": 0, "row": 1, "1x128": 1, "128x128": 2}
"""Each scaling, and how many dimensions x has at least."""
_OPS: dict[str, Any] = {
    "row": by_rows,
    "1x128": dispatcher.op("quantize_fp8_1x128"),
    "128x128": dispatcher.op("quantize_fp8_128x128"),
}
_HINTS = {
    "group_size": ' Here it is scaling="1x128".',
    "use_ue8m0": " Here it is power_of_2.",
    "scale_inv": " Here it is scale: both are what a quantised number is multiplied by.",
}


@partial(documented, hints=_HINTS)
def quantize_fp8(
    x: Tensor,
    scaling: str = "row",
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    power_of_2: bool = False,
    eps: float = 1e-10,
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(q, scale): x in a type of 8 bits and float32 dequantisation scales, x about q * scale.

    x: bfloat16, float16 or float32, (..., K); other strides than of rows cost a copy, but for the transpose
    of such a tensor with a scale per row, which is read as it lies. dtype: float8_e4m3fn, float8_e5m2,
    float8_e4m3fnuz or float8_e5m2fnuz. q has x's shape and is contiguous. scaling says what has a scale of
    its own, and so the shape of `scale`: "tensor": all of x, (); "row": each row, (..., 1); "1x128": each 128
    neighbours of a row, the last ones fewer, (..., ceil(K / 128)); "128x128": each such tile of x, (..., M,
    K), smaller at the edges, (..., ceil(M / 128), ceil(K / 128)).

    With amax the greatest |x| of a group, scale = float32(max(amax, eps) / largest(dtype)); with `power_of_2`
    it is rounded up to a power of two. q = float32(x * float32(1 / scale)) to the nearest, the even one of
    two, saturated. Each float32 is one rounding to nearest, so that the bits are the same in every
    implementation, on every GPU and in every batch. The reciprocal is what DeepGEMM multiplies by. x / scale
    differs from it at midpoints of two numbers alone, and not at all where the scale is a power of two.

    A NaN makes its group and its scale NaN. Inf makes the scale Inf: it becomes NaN and the rest of the group
    0. Of zeros alone the scale is eps / largest, and they keep their signs; the fnuz types have no -0.

    scale: for "tensor", a float32 tensor of one element that takes the place of the one computed (static
    quantisation): x is read once, and what is too large, Inf too, becomes the largest number. eps: at least
    1e-30. There is no gradient: one that is asked for is an UnsupportedGradientError.

    Raises ParameterError, DtypeError, RankError, ShapeError or NotATensorError that name the argument.
    Source: the rule of DeepGEMM's per_token_cast_to_fp8 and per_block_cast_to_fp8, with vLLM's eps.
    """
    name = "quantize_fp8"
    check_flag(name, "power_of_2", power_of_2)
    if not isinstance(scaling, str) or scaling not in SCALINGS:
        raise ParameterError(name, "scaling", scaling, "one of " + ", ".join(map(repr, SCALINGS)))
    rank = check_tensor(name, "x", x).dim()
    if rank < SCALINGS[scaling]:
        raise RankError(name, "x", rank, f"at least {SCALINGS[scaling]}, for scaling {scaling!r}")
    if scaling != "tensor":
        if scale is not None:
            raise ParameterError(name, "scale", "a tensor", 'None, but for scaling="tensor"')
        return _OPS[scaling](x, dtype=dtype, power_of_2=power_of_2, eps=eps)
    last = x if rank else x.reshape(1)
    if scale is None:
        largest = _largest(name, dtype)
        found = _amax_scale(last, largest=largest, power_of_2=power_of_2, eps=eps)
    else:
        if power_of_2:
            raise ParameterError(name, "power_of_2", power_of_2, "False where the scale is given")
        found = _one(name, scale)
    q = _static(last, found, dtype=dtype)
    return (q if rank else q.reshape(())), found.reshape(())


def _largest(op: str, dtype: Any) -> float:
    """The largest number of a type that x may be quantised to."""
    word = str(dtype).removeprefix("torch.")
    if not isinstance(dtype, torch.dtype) or word not in minifloat.OF_8_BITS:
        raise ParameterError(op, "dtype", dtype, " or ".join(f"torch.{each}" for each in minifloat.OF_8_BITS))
    return minifloat.largest(word)


def _one(op: str, scale: Any) -> Tensor:
    """The given scale, (1,)."""
    if check_tensor(op, "scale", scale, "a torch.Tensor of one element").dtype != torch.float32:
        raise DtypeError(op, "scale", scale.dtype, "float32", "Convert it with scale.float()")
    if scale.numel() != 1:
        raise ShapeError(op, "scale", tuple(scale.shape), "one element, for all of x")
    return scale.reshape(1)
