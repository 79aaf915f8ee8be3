"""The public function over this folder's ops, which takes gate and up packed in the last dimension.

The ops, `torch.ops.portable.silu_and_mul_quant` and `silu_and_mul_quant_1x128`, take the same memory as
(..., 2, N).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_flag, documented
from portable.errors import ParameterError
from portable.kernels._lib.packed import pairs

_NAME = "silu_and_mul_quant"
_OPS: dict[str, Any] = {
    "row": dispatcher.op("silu_and_mul_quant"),
    "1x128": dispatcher.op("silu_and_mul_quant_1x128"),
}
_HINTS = {
    "group_size": ' Here it is scaling="1x128".',
    "scale": " Here the scale follows from the data: quantize_fp8 takes one that is given.",
    "scale_ub": " Here no scale is bounded from above.",
    "scale_eps": " Here it is eps.",
    "use_ue8m0": " Here it is power_of_2.",
}


@partial(documented, hints=_HINTS)
def silu_and_mul_quant(
    x: Tensor,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scaling: str = "row",
    power_of_2: bool = False,
    eps: float = 1e-10,
) -> tuple[Tensor, Tensor]:
    """(q, scale): quantize_fp8(silu_and_mul(x), scaling) in one launch, which keeps the product off memory.

    x: bfloat16, float16 or float32, (..., 2 N), gate in its first half and up in its second; a tensor whose
    rows are not one stride apart is copied first. dtype: float8_e4m3fn, float8_e5m2, float8_e4m3fnuz or
    float8_e5m2fnuz. q is (..., N) and contiguous. scaling: "row", a float32 dequantisation scale for each
    row, (..., 1); "1x128", for each 128 neighbours of a row, the last ones fewer, (..., ceil(N / 128)).

    y = silu(gate) * up in float32, rounded once, to x's dtype, as silu_and_mul's; silu itself is not rounded,
    where vLLM's kernel does that too. With amax the greatest |y| of a group, scale = float32(max(amax, eps) /
    largest(dtype)); with `power_of_2` it is rounded up to a power of two. q = float32(y * float32(1 / scale))
    to the nearest, the even one of two, saturated. From y on, these are quantize_fp8's bits. y itself may
    differ from silu_and_mul's, and between implementations, within silu_and_mul's tolerance.

    A NaN in y makes its group and its scale NaN. Inf makes the scale Inf: it becomes NaN and the rest of the
    group 0. Of zeros alone the scale is eps / largest. eps: at least 1e-30. There is no gradient: one that is
    asked for is an UnsupportedGradientError.

    Raises ShapeError where the last dimension is odd; ParameterError, DtypeError, RankError or
    NotATensorError that name the argument.
    """
    check_flag(_NAME, "power_of_2", power_of_2)
    if not isinstance(scaling, str) or scaling not in _OPS:
        expected = f"{' or '.join(map(repr, _OPS))}; for others call silu_and_mul, then quantize_fp8"
        raise ParameterError(_NAME, "scaling", scaling, expected)
    return _OPS[scaling](pairs(_NAME, x, -2), dtype=dtype, power_of_2=power_of_2, eps=eps)
