"""What a user of torch alone would write of int8 rows and a weight of 4 bits: both in the result's type, and
their product. `wide` is this library's product of rows in 16 bits with
the same weight, `dense` that of the same rows with the weight in 8 bits, both made beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from portable import dtypes
from portable.dispatch import dispatcher
from portable.kernels.int4_mm.baseline import weight_of
from portable.kernels.int4_mm.reference import numbers

_int4_mm: Any = dispatcher.op("int4_mm")
_int8_scaled_mm: Any = dispatcher.op("int8_scaled_mm")


def int8_int4_mm(
    mat_a: Tensor, weight: Tensor, scale_a: Tensor, scale: Tensor, zero_point: Tensor | None = None,
    bias: Tensor | None = None, *, output_dtype: Any,
) -> Tensor:  # fmt: skip
    dtype = dtypes.of(output_dtype).storage
    x = (mat_a * scale_a).to(dtype)
    c = x @ weight_of(x, weight, scale, zero_point, None).T
    return c if bias is None else c + bias


def wide(given: Mapping[str, Any], facts: Mapping[str, Any]) -> Callable[[], object]:
    """int4_mm of the same weight and of rows in the result's type."""
    x = (given["mat_a"] * given["scale_a"]).to(dtypes.of(facts["R"]).storage)
    weight, rest = given["weight"], [given[name] for name in ("scale", "zero_point")]
    return lambda: _int4_mm(x, weight, *rest, None, given["bias"])


def dense(given: Mapping[str, Any], facts: Mapping[str, Any]) -> Callable[[], object]:
    """int8_scaled_mm of the numbers in 8 bits, twice the weight's bytes, with the first groups' scales."""
    w = numbers(given["weight"], given["zero_point"]).to(torch.int8).flatten(1).t()
    scales = given["scale_a"], given["scale"][:, :1].float().t()
    output_dtype = dtypes.of(facts["R"]).storage
    return lambda: _int8_scaled_mm(given["mat_a"], w, *scales, given["bias"], None, output_dtype=output_dtype)
