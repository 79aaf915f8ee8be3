"""Steps whose linears are quantised, weights once and activations at each call, and whose KV cache may be.

What such a step computes is held against float32 products and attention of the same dequantised operands, so
that the format's own error is not in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

import portable
from portable.conformance.models import functions
from portable.conformance.models.functions import Cache


class Scheme(Protocol):
    """How the operands of a linear are quantised, and whether the KV cache is, to float8_e4m3fn with a scale
    for each key head."""

    cache: bool = False

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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Fp8Rows(Scheme):
    """float8_e4m3fn with a scale for each row of activations and of weights."""

    cache: bool = False

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


def scale_of(cache: Tensor) -> Tensor:
    """Of a cache (sequences, tokens, key heads, columns): a scale for each key head, in float32."""
    return cache.float().abs().amax((0, 1, 3)) / torch.finfo(_CODES).max


def codes_of(cache: Tensor, scale: Tensor) -> Tensor:
    largest = torch.finfo(_CODES).max
    return (cache.float() * (1 / scale)[:, None]).clamp(-largest, largest).to(_CODES)


_CODES = torch.float8_e4m3fn
_PAGE = 16


class _OfOperands(functions.Torch):
    """Linears of the dequantised operands, in x's dtype, and attention over the dequantised cache."""

    def __init__(self, scheme: Scheme):
        self._scheme = scheme
        self._scales: dict[Tensor, Tensor] = {}  # of caches, by the tensor itself

    def rope_and_write(self, *given: Any) -> Tensor:
        for cache in given[-2] if self._scheme.cache else ():
            if cache not in self._scales:
                self._scales[cache] = scale_of(cache)
        return super().rope_and_write(*given)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, *given: Any) -> Tensor:
        if self._scheme.cache:
            k, v = (self._cached(each) for each in (k, v))
        return super().attention(q, k, v, *given)

    def _cached(self, cache: Tensor) -> Tensor:
        scale = self._scales[cache]
        return (codes_of(cache, scale).float() * scale[:, None]).to(cache.dtype)

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


@dataclass(frozen=True)
class CodedCache:
    """Keys and values in codes (pages, page size, key heads, columns), scales, and the pages of sequences."""

    k: Tensor
    v: Tensor
    scales: dict[str, Tensor]
    block_table: Tensor
    seq_lens: Tensor

    @classmethod
    def of(cls, caches: Cache) -> CodedCache:
        sequences, tokens = caches[0].shape[:2]
        page = math.gcd(tokens, _PAGE)
        scales = [scale_of(each) for each in caches]
        k, v = (
            codes_of(each, scale).reshape(-1, page, *each.shape[2:])
            for each, scale in zip(caches, scales, strict=True)
        )
        pages = torch.arange(len(k), dtype=torch.int32, device=k.device).view(sequences, -1)
        lengths = torch.full((sequences,), tokens, dtype=torch.int32, device=k.device)
        return cls(k, v, {"k_scale": scales[0], "v_scale": scales[1]}, pages, lengths)


class PortableFp8Cache(PortableFp8):
    """The same with a KV cache in fp8, quantised at the first call and written by each."""

    def __init__(self, scheme: Fp8Rows):
        super().__init__(scheme)
        self._caches: dict[Tensor, CodedCache] = {}  # by the keys' tensor

    rope_and_write = functions.Torch.rope_and_write  # no kernel that rotates writes codes

    def write(self, k: Tensor, v: Tensor, caches: Cache, slots: Tensor) -> None:
        if caches[0] not in self._caches:
            self._caches[caches[0]] = CodedCache.of(caches)
        coded = self._caches[caches[0]]
        portable.kv_cache_write(k.flatten(0, 1), v.flatten(0, 1), coded.k, coded.v, slots, **coded.scales)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        coded = self._caches[k]
        return portable.attention_paged(
            *(q, coded.k, coded.v, coded.block_table, coded.seq_lens),
            **{"scale": scale, "window": window, "softcap": softcap, **coded.scales},
        )
