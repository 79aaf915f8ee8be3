"""The public functions over the op of this folder: `silu_and_mul`, `gelu_and_mul` and `gelu_tanh_and_mul`.

They take gate and up packed in the last dimension, [gate | up], as vLLM's layers of these names do. The op
takes the same memory as (..., 2, N).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import documented
from portable.kernels._lib.packed import pairs

_op: Any = dispatcher.op("gated_activation")


@documented
def silu_and_mul(x: Tensor) -> Tensor:
    """silu(x[..., :N]) * x[..., N:], silu(g) = g * sigmoid(g); x is (..., 2 N), the result (..., N).

    The layout of vLLM's SiluAndMul: what one product of a gate and an up projection leaves. bfloat16,
    float16, float32 and float64; computed in float32 (float64 for float64) and rounded once, where vLLM's
    kernel rounds silu too. Its gradient is one launch and one tensor like x. A tensor whose rows are not one
    stride apart is copied first. Raises ShapeError where the last dimension is odd; DtypeError,
    NotATensorError or RankError that name x.
    """
    return _op(pairs("silu_and_mul", x, -2), "silu")


@documented
def gelu_and_mul(x: Tensor) -> Tensor:
    """gelu(x[..., :N]) * x[..., N:], gelu by erf: vLLM's GeluAndMul. The rest is as in
    `portable.silu_and_mul`."""
    return _op(pairs("gelu_and_mul", x, -2), "gelu")


@documented
def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """gelu_tanh(x[..., :N]) * x[..., N:]: vLLM's GeluAndMul("tanh"). The rest is as in
    `portable.silu_and_mul`."""
    return _op(pairs("gelu_tanh_and_mul", x, -2), "gelu_tanh")
