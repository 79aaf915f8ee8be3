"""The public functions over the op of this folder: `gelu`, `gelu_tanh`, `silu`, `quick_gelu` and `relu2`.

Each is `portable.activation` with the function of its name; that op checks the argument.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import documented

_op: Any = dispatcher.op("activation")


@documented
def gelu(x: Tensor) -> Tensor:
    """x * Phi(x), Phi the normal distribution: torch.nn.functional.gelu(x).

    x is (..., N) in any strides, bfloat16, float16, float32 or float64; the result has its shape and dtype.
    It is computed in float32 (float64 for float64) and rounded once. The lower tail keeps its relative
    accuracy, where 1 + erf(x) would cancel; as in torch, gelu(-inf) is NaN. Raises DtypeError,
    NotATensorError or RankError that name the argument. Source: Hendrycks and Gimpel 2016.
    """
    return _op(x, "gelu")


@documented
def gelu_tanh(x: Tensor) -> Tensor:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))): torch.nn.functional.gelu(x, approximate="tanh").

    Shapes, dtypes, rounding and errors are those of `portable.gelu`.
    """
    return _op(x, "gelu_tanh")


@documented
def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x): torch.nn.functional.silu(x). Shapes, dtypes, rounding and errors as `portable.gelu`."""
    return _op(x, "silu")


@documented
def quick_gelu(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 x), the approximation of gelu in CLIP: transformers' quick_gelu.

    Shapes, dtypes, rounding and errors are those of `portable.gelu`.
    """
    return _op(x, "quick_gelu")


@documented
def relu2(x: Tensor) -> Tensor:
    """max(x, 0)^2: transformers' relu2. Shapes, dtypes, rounding and errors are those of `portable.gelu`.

    Source: So et al. 2021 (Primer).
    """
    return _op(x, "relu2")
