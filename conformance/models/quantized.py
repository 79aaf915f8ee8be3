"""Steps whose linears are quantised: weights once, activations at each call.

What such a step computes is held against float32 products of the same dequantised operands, so that the
format's own error is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Rows:
    """Activations in codes (..., K), with a scale for each row (..., 1)."""

    codes: Tensor
    scale: Tensor

    def __getitem__(self, index: Any) -> Rows:
        return Rows(self.codes[index], self.scale[index])


class Fp8Rows(Scheme):
    """float8_e4m3fn with a scale for each row of activations and of weights."""

    def weight(self, weight: Tensor) -> Any:
        return portable.quantize_fp8(weight, "row")

    def product(self, x: Tensor, weight: Any) -> Tensor:
        return self.product_of(Rows(*portable.quantize_fp8(x, "row")), weight, x.dtype)

    def product_of(self, x: Rows, weight: Any, dtype: torch.dtype) -> Tensor:
        codes, scale = weight
        recipe = "RowWise"
        return portable.scaled_mm(x.codes, codes.t(), x.scale, recipe, scale.t(), recipe, output_dtype=dtype)

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

    def codes(self, weight: Tensor) -> Any:
        """Those of a weight."""
        if weight not in self._weights:
            self._weights[weight] = self._scheme.weight(weight.detach())
        return self._weights[weight]

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._scheme.product(x.flatten(0, -2), self.codes(weight)).unflatten(0, x.shape[:-1])

    def gated_mlp(self, x: Tensor, gate_up: Tensor, activation: str) -> Tensor:
        both = self.linear(x, gate_up)
        return portable.silu_and_mul(both) if activation == "silu" else portable.gelu_tanh_and_mul(both)


class PortableFp8(Portable):
    """The same in fp8: what a norm after an addition and what an activation makes is quantised in their
    launch."""

    _scheme: Fp8Rows

    def linear(self, x: Tensor | Rows, weight: Tensor) -> Tensor:
        if isinstance(x, Tensor):
            return super().linear(x, weight)
        flat = Rows(x.codes.flatten(0, -2), x.scale.flatten(0, -2))
        made = self._scheme.product_of(flat, self.codes(weight), weight.dtype)
        return made.unflatten(0, x.codes.shape[:-1])

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float
    ) -> tuple[Any, Tensor]:
        codes, scale, total = portable.fused_add_rms_norm_quant(
            x, residual, weight, eps=eps, weight_offset=offset
        )
        return Rows(codes, scale), total

    def gated_mlp(self, x: Tensor | Rows, gate_up: Tensor, activation: str) -> Any:
        both = self.linear(x, gate_up)
        if activation != "silu":
            return portable.gelu_tanh_and_mul(both)
        return Rows(*portable.silu_and_mul_quant(both))
