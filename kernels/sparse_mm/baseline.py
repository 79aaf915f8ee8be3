"""What a user of torch alone would write: the decompressed weight, and its product. `dense` is this library's
product alone, of a weight that was made beforehand.

torch's own sparse products (cuSPARSELt's, CUTLASS's) are of a weight that was packed for one GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from portable import dtypes
from portable.dispatch import dispatcher
from portable.kernels.scaled_mm import baseline as scaled
from portable.kernels.sparse_mm import reference

_linear: Any = dispatcher.op("linear")
_scaled_mm: Any = dispatcher.op("scaled_mm")


def sparse_mm(x: Tensor, values: Tensor, meta: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, reference.dense(values, meta), bias)


def sparse_scaled_mm(
    mat_a: Tensor, values: Tensor, meta: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    *, output_dtype: Any,
) -> Tensor:  # fmt: skip
    w = reference.dense(values, meta).t()
    return scaled.scaled_mm(mat_a, w, scale_a, scale_b, bias, output_dtype=output_dtype)


def dense(given: Mapping[str, Any], facts: Mapping[str, Any]) -> Callable[[], object]:
    """This library's linear, or row-wise scaled_mm, of the decompressed weight: twice the products."""
    if "mat_a" in given:
        w = reference.dense(given["values"], given["meta"]).t()
        rest = [given[name] for name in ("scale_a", "scale_b", "bias")]
        output_dtype = dtypes.of(facts["R"]).storage
        return lambda: _scaled_mm(given["mat_a"], w, *rest, output_dtype=output_dtype)
    x, w, bias = given["x"], reference.dense(given["values"], given["meta"]), given["bias"]
    return lambda: _linear(x, w, bias)


def derived(given: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Tensor]:
    """Metadata of any pairs of places, on the device of the values."""
    values = given["values"]
    generator = torch.Generator(values.device).manual_seed(0)
    nibbles = [first + 4 * second for first, second in reference.PLACES]
    table = torch.tensor([low + 16 * high for high in nibbles for low in nibbles], dtype=torch.uint8)
    shape = (facts["N"], facts["J"])
    drawn = torch.randint(0, len(table), shape, generator=generator, device=values.device)
    return {"meta": table.to(values.device)[drawn]}
