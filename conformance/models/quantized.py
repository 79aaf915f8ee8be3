"""Steps whose linears are quantised: weights once, activations at each call.

What such a step computes is held against float32 products of the same dequantised operands, so that the
format's own error is not in it.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

import portable
from portable.conformance.models import functions


class Scheme(Protocol):
    """How the operands of a linear are quantised."""

    def weight(self, weight: Tensor) -> Any:
        """The codes and scales of a weight (N, K) in bfloat16."""
        ...

    def product(self, x: Tensor, weight: Any) -> Tensor:
        """x (M, K) by such a weight, (M, N) of x's dtype."""
        ...

    def dequantized(self, weight: Any) -> Tensor:
        """What the weight's codes stand for, (N, K) in float32."""
        ...

    def rounded(self, x: Tensor) -> Tensor:
        """What x's codes stand for, in x's dtype; x where it is not quantised."""
        ...


class Int4(Scheme):
    """Weights alone, symmetric: a scale in bfloat16 for each 128 of K, or for a row that they do not fit."""

    def weight(self, weight: Tensor) -> Any:
        return portable.quantize_int4(weight, 128 if weight.shape[1] % 128 == 0 else None)

    def product(self, x: Tensor, weight: Any) -> Tensor:
        return portable.int4_mm(x, *weight[:4])

    def dequantized(self, weight: Any) -> Tensor:
        codes, scale = weight.weight, weight.scale.float()
        both = torch.stack((codes & 15, codes >> 4), -1).flatten(1).float() - 8
        return (both.unflatten(1, (scale.shape[1], -1)) * scale[..., None]).flatten(1)

    def rounded(self, x: Tensor) -> Tensor:
        return x


class Fp8Rows(Scheme):
    """float8_e4m3fn with a scale for each row of activations and of weights."""

    def weight(self, weight: Tensor) -> Any:
        return portable.quantize_fp8(weight, "row")

    def product(self, x: Tensor, weight: Any) -> Tensor:
        (q, scale), (codes, of_rows) = portable.quantize_fp8(x, "row"), weight
        return portable.scaled_mm(
            q, codes.t(), scale, "RowWise", of_rows.t(), "RowWise", output_dtype=x.dtype
        )

    def dequantized(self, weight: Any) -> Tensor:
        codes, scale = weight
        return codes.float() * scale

    def rounded(self, x: Tensor) -> Tensor:
        codes, scale = portable.quantize_fp8(x, "row")
        return (codes.float() * scale).to(x.dtype)


class _OfOperands(functions.Torch):
    """Linears of the dequantised operands, in x's dtype."""

    def __init__(self, scheme: Scheme):
        self._scheme = scheme

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        codes = self._scheme.weight(weight.to(torch.bfloat16))  # a reference's weight is one in bfloat16
        return super().linear(self._scheme.rounded(x), self._scheme.dequantized(codes).to(x.dtype))


class Torch(_OfOperands):
    """torch's functions so."""


class Reference(_OfOperands, functions.Reference):
    """The same in float32."""


class Portable(functions.Portable):
    """This package's functions with quantised linears, whose weights are quantised at their first call."""

    def __init__(self, scheme: Scheme):
        self._scheme = scheme
        self._weights: dict[Tensor, Any] = {}  # by the tensor itself

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        codes = self._weights.get(weight)
        if codes is None:
            codes = self._weights[weight] = self._scheme.weight(weight.detach())
        return self._scheme.product(x.flatten(0, -2), codes).unflatten(0, x.shape[:-1])

    def gated_mlp(self, x: Tensor, gate_up: Tensor, activation: str) -> Tensor:
        both = self.linear(x, gate_up)
        return portable.silu_and_mul(both) if activation == "silu" else portable.gelu_tanh_and_mul(both)
