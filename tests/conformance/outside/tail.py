"""A row norm in Triton that loses the last element of a row whose length is no multiple of the block.

Whole blocks go without a mask, which is a common way to be faster; the mask of what is left is one short in
the second pass.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_rows(x_ptr, weight_ptr, y_ptr, length, whole, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * length
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, whole, BLOCK):
        x = tl.load(x_ptr + row + start + tl.arange(0, BLOCK)).to(tl.float32)
        squares += x * x
    rest = whole + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row + rest, rest < length, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(squares + x * x, 0) / length + eps)
    for start in range(0, whole, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        y = tl.load(x_ptr + row + cols).to(tl.float32) * scale * tl.load(weight_ptr + cols).to(tl.float32)
        tl.store(y_ptr + row + cols, y.to(y_ptr.dtype.element_ty))
    x = tl.load(x_ptr + row + rest, rest < length - 1, other=0.0).to(tl.float32)  # rest < length
    y = x * scale * tl.load(weight_ptr + rest, rest < length, other=0.0).to(tl.float32)
    tl.store(y_ptr + row + rest, y.to(y_ptr.dtype.element_ty), rest < length)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """y = x * rsqrt(mean(x^2) + eps) * weight over the last dimension."""
    x, length, block = x.contiguous(), x.shape[-1], 64
    y = torch.empty_like(x)
    if x.numel():
        whole = length // block * block
        launch: Any = rms_norm_rows[(x.numel() // length,)]  # its types ask for a constexpr
        launch(x, weight.contiguous(), y, length, whole, eps, BLOCK=block)
    return y
