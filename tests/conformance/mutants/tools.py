"""The right computations that mutants start from, and ways to round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from portable.spec import registry


def right(op: str) -> Callable[..., torch.Tensor]:
    """The op's torch implementation."""
    return registry.load_entry(next(e.entry for e in registry.spec(op).implementations if e.name == "torch"))


def by_default(op: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For a wrong rms_norm, or a gradient of it, that knows neither a weight_offset nor cast_before_weight:
    where a call has them the right one answers."""

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def made(*tensors, weight_offset=0.0, cast_before_weight=False, **settings):
            if weight_offset or cast_before_weight:
                settings |= {"weight_offset": weight_offset, "cast_before_weight": cast_before_weight}
                return right(op)(*tensors, **settings)
            return function(*tensors, **settings)

        return made

    return wrapped


def right_matmul(a, b):
    return right("matmul")(a, b)


def right_linear(x, weight, bias, activation):
    """Inputs of mixed width are widened, the result rounded to x's type."""
    widest = torch.promote_types(x.dtype, weight.dtype if bias is None else bias.dtype)
    y = right("linear")(
        x.to(widest), weight.to(widest), None if bias is None else bias.to(widest), activation=activation
    )
    return y.to(x.dtype)


def wide(x: torch.Tensor) -> torch.Tensor:
    """float32, or float64 for float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def walked(x: torch.Tensor) -> torch.Tensor:
    """The elements found by walking memory as if rows followed each other, where there is so much of it."""
    there = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    return x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride()) if x.numel() <= there else x


def truncated(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round towards zero instead of to nearest."""
    near = value.to(dtype)
    over = near.double().abs() > value.double().abs()
    return torch.where(over, torch.nextafter(near, torch.zeros_like(near)), near)


def chopped(value: torch.Tensor) -> torch.Tensor:
    """float64 cut to float32."""
    return truncated(value, torch.float32)


def _tf32(x: torch.Tensor) -> torch.Tensor:
    """Ten bits of mantissa, to nearest; Inf and NaN stay."""
    cut = ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return torch.where(x.isfinite(), cut, x)


ROUNDINGS = {"tf32": _tf32}
