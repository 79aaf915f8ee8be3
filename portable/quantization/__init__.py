"""Inference of whole models with quantised linears: torchao's `quantize_` and configs on this package's ops.

    from portable.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_
    quantize_(model, Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()))

torchao need not be installed, and none of its code is used: the names are its own, so that a program changes
its import. `portable.quantize_` is the function.
"""

from portable.quantization.checkpoint import load_int4_
from portable.quantization.configs import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8MMConfig,
    Int4WeightOnlyConfig,
    Int8DynamicActivationInt4WeightConfig,
    Int8DynamicActivationInt8WeightConfig,
    MXDynamicActivationMXWeightConfig,
    NVFP4DynamicActivationNVFP4WeightConfig,
    QuantizationConfig,
)
from portable.quantization.convert import quantize_
from portable.quantization.granularity import PerBlock, PerRow, PerTensor
from portable.quantization.linear import ObservedLinear, QuantizedLinear
from portable.quantization.observer import Observer
from portable.quantization.static_configs import (
    Float8StaticActivationFloat8WeightConfig,
    Int8StaticActivationInt8WeightConfig,
)

__all__ = [
    "Float8DynamicActivationFloat8WeightConfig",
    "Float8MMConfig",
    "Float8StaticActivationFloat8WeightConfig",
    "Int4WeightOnlyConfig",
    "Int8DynamicActivationInt4WeightConfig",
    "Int8DynamicActivationInt8WeightConfig",
    "Int8StaticActivationInt8WeightConfig",
    "MXDynamicActivationMXWeightConfig",
    "NVFP4DynamicActivationNVFP4WeightConfig",
    "ObservedLinear",
    "Observer",
    "PerBlock",
    "PerRow",
    "PerTensor",
    "QuantizationConfig",
    "QuantizedLinear",
    "load_int4_",
    "quantize_",
]
