"""Inference of whole models with quantised linears: torchao's `quantize_` and configs on this package's ops.

    from portable.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_
    quantize_(model, Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()))

torchao need not be installed, and none of its code is used: the names are its own, so that a program changes
its import. `portable.quantize_` is the function.
"""

from portable.quantization.configs import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8MMConfig,
    Int8DynamicActivationInt8WeightConfig,
    MXDynamicActivationMXWeightConfig,
    NVFP4DynamicActivationNVFP4WeightConfig,
    QuantizationConfig,
)
from portable.quantization.convert import quantize_
from portable.quantization.granularity import PerBlock, PerRow, PerTensor
from portable.quantization.linear import QuantizedLinear

__all__ = [
    "Float8DynamicActivationFloat8WeightConfig",
    "Float8MMConfig",
    "Int8DynamicActivationInt8WeightConfig",
    "MXDynamicActivationMXWeightConfig",
    "NVFP4DynamicActivationNVFP4WeightConfig",
    "PerBlock",
    "PerRow",
    "PerTensor",
    "QuantizationConfig",
    "QuantizedLinear",
    "quantize_",
]
