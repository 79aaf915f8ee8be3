"""The public function over the op of this folder: `swigluoai_and_mul`.

It takes gate and up in turn in the last dimension, as vLLM's layer of this name does. The op takes the same
memory as (..., N, 2).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import documented
from portable.kernels._lib.packed import pairs

_op: Any = dispatcher.op("swigluoai")


@documented
def swigluoai_and_mul(x: Tensor, *, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """(up + 1) * gate * sigmoid(alpha * gate), the gated activation of gpt-oss.

    x is (..., 2 N), gate in its even columns and up in its odd ones; the result is (..., N). gate is brought
    to at most `limit`, up to between -limit and limit; both numbers are taken in float32. The layout and the
    defaults of vLLM's SwigluOAIAndMul. bfloat16, float16, float32 and float64; computed in float32 (float64
    for float64) and rounded once. The gradient of what the limit cut is 0. A tensor that is not contiguous
    is copied first. Raises ShapeError where the last dimension is odd, ParameterError where limit is not
    above 0; DtypeError, NotATensorError or RankError that name x.
    """
    return _op(pairs("swigluoai_and_mul", x, -1), alpha=alpha, limit=limit)
