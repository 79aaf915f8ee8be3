"""A row norm in Triton that is right."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from portable.conformance import Unsupported


@triton.jit
def rms_norm_rows(x_ptr, weight_ptr, y_ptr, length, eps, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * length
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, length, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + cols, cols < length, other=0.0).to(tl.float32)
        squares += x * x
    scale = tl.rsqrt(tl.sum(squares, 0) / length + eps)
    for start in range(0, length, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        y = tl.load(x_ptr + row + cols, cols < length, other=0.0).to(tl.float32) * scale
        if WEIGHTED:
            y *= tl.load(weight_ptr + cols, cols < length, other=0.0).to(tl.float32)
        tl.store(y_ptr + row + cols, y.to(y_ptr.dtype.element_ty), cols < length)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 1e-6) -> torch.Tensor:
    """y = x * rsqrt(mean(x^2) + eps) * weight over the last dimension."""
    if x.dtype is torch.float64:
        raise Unsupported("it computes in float32")
    x, weight = x.contiguous(), None if weight is None else weight.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        rows = x.numel() // x.shape[-1]
        launch: Any = rms_norm_rows[(rows,)]  # its types ask for a constexpr, which Triton makes
        launch(x, weight, y, x.shape[-1], eps, WEIGHTED=weight is not None, BLOCK=64)
    return y
