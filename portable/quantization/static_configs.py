"""Configs with scales of activations that are given, or found by observers in a run over data.

quantize_(model, Float8StaticActivationFloat8WeightConfig(step="prepare", observer=Observer("mse")))
for batch in batches:
    model(batch)
quantize_(model, Float8StaticActivationFloat8WeightConfig(step="convert"))
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import portable
from portable.quantization.configs import (
    Buffers,
    Float8Config,
    QuantizationConfig,
    int8_product,
    int8_weight,
)
from portable.quantization.granularity import Granularity, PerRow, PerTensor, pair
from portable.quantization.observer import Observer

STEPS = ("prepare", "convert")


@dataclass(frozen=True, kw_only=True)
class StaticConfig(QuantizationConfig):
    """What the static configs share: `act_quant_scale`, or the two steps."""

    step: Any = None
    act_quant_scale: Tensor | None = dataclasses.field(default=None, compare=False, repr=False)
    observer: Observer = dataclasses.field(default_factory=Observer, compare=False, repr=False)

    def _check_static(self) -> None:
        """Raises ParameterError."""
        step = getattr(self.step, "value", self.step)  # a member of torchao's QuantizationStep
        if step not in (None, *STEPS):
            raise self._wrong("step", "'prepare', 'convert', or None where act_quant_scale is given")
        object.__setattr__(self, "step", step)
        if not isinstance(self.observer, Observer):
            raise self._wrong("observer", "an Observer: each linear gets one like it")
        scale = self.act_quant_scale
        if scale is None:
            return
        if step is not None:
            raise self._wrong("step", "None where act_quant_scale is given")
        if not isinstance(scale, Tensor) or scale.numel() != 1:
            raise self._wrong("act_quant_scale", "a tensor of one number", "Activations have one scale")
        if not scale.is_meta and not (0 < float(scale) < float("inf")):
            raise self._wrong("act_quant_scale", "a positive, finite number: value = code * scale")

    @property
    def scale_dtype(self) -> torch.dtype:
        """What activations become."""
        raise NotImplementedError

    @property
    def stored(self) -> QuantizationConfig:
        return dataclasses.replace(self, act_quant_scale=None, step=None)

    def refusal(self, weight: Tensor) -> str:
        self._given(weight)
        return super().refusal(weight)

    def _given(self, weight: Tensor) -> dict[str, Tensor]:
        """The buffer of the scale. Raises ParameterError where there is none."""
        if self.act_quant_scale is None:
            remedy = 'Give one; or observers find it: step="prepare", a run over data, step="convert"'
            raise self._wrong("act_quant_scale", "a tensor, where there is no step", remedy)
        scale = self.act_quant_scale.detach().reshape(()).to(weight.device, torch.float32, copy=True)
        return {"input_scale": scale}


@dataclass(frozen=True)
class Float8StaticActivationFloat8WeightConfig(StaticConfig, Float8Config):
    """fp8 weights, and activations quantised to fp8 by one scale that is given: `quantize_fp8`, `scaled_mm`.

    act_quant_scale: a tensor of one positive number, value = code * scale. Or step: "prepare" gives each
    linear a copy of `observer` (by default Observer("max")), which sees its inputs; "convert" quantises by
    the scales that they found. granularity: of activations PerTensor(); of weights that or PerRow():
    PerTensor() (None means it), or a pair. The rest as in Float8DynamicActivationFloat8WeightConfig. Raises
    ParameterError.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_static()
        if self.pair[0] != PerTensor():
            raise self._wrong("granularity", "PerTensor() of activations, which have one scale")

    @property
    def scale_dtype(self) -> torch.dtype:
        return self.activation_dtype

    def quantized(self, weight: Tensor) -> dict[str, Tensor]:
        return Float8Config.quantized(self, weight) | self._given(weight)

    def product(self, x: Tensor, buffers: Buffers, bias: Tensor | None) -> Tensor:
        given = buffers["input_scale"]
        q, scale = portable.quantize_fp8(x, "tensor", dtype=self.activation_dtype, scale=given)
        return self.multiplied(q, scale, buffers, bias, x.dtype)


@dataclass(frozen=True)
class Int8StaticActivationInt8WeightConfig(StaticConfig):
    """int8 weights, symmetric, and activations quantised to int8, symmetric, by one scale that is given:
    `quantize_int8`, `int8_scaled_mm`.

    granularity: of weights, PerRow() (None means it) or PerTensor(); or a pair, with PerTensor() of
    activations. act_quant_scale, step and observer as in Float8StaticActivationFloat8WeightConfig. Raises
    ParameterError.
    """

    granularity: Any = None

    def __post_init__(self) -> None:
        self._check_static()
        _ = self.pair

    @property
    def pair(self) -> tuple[Granularity, Granularity]:
        """The granularities of activations and of weights."""
        given = self.granularity
        if isinstance(given, (list, tuple)):
            both = pair(type(self).__name__, given, PerRow(), blocks=False)
            if both[0] != PerTensor():
                raise self._wrong("granularity", "PerTensor() of activations, which have one scale")
            return both
        return PerTensor(), pair(type(self).__name__, given, PerRow(), blocks=False)[1]

    @property
    def scale_dtype(self) -> torch.dtype:
        return torch.int8

    def quantized(self, weight: Tensor) -> dict[str, Tensor]:
        return int8_weight(weight, self.pair[1]) | self._given(weight)

    def product(self, x: Tensor, buffers: Buffers, bias: Tensor | None) -> Tensor:
        q, scale = portable.quantize_int8(x, "tensor", scale=buffers["input_scale"])
        return int8_product(q, scale, None, buffers, bias, x.dtype)
