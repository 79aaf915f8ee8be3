"""What a user of torch alone would write: the baseline of quantize_mx's throughput."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def quantize_mx(x: Tensor, dtype: torch.dtype, rounding: str) -> tuple[Tensor, Tensor]:
    largest, top = torch.finfo(dtype).max, 8 if dtype == torch.float8_e4m3fn else 15
    scaled, scale = _scaled(x, rounding, largest, top)
    return scaled.clamp(-largest, largest).to(dtype)[..., : x.shape[-1]], scale


def quantize_mxfp4(x: Tensor, rounding: str) -> tuple[Tensor, Tensor]:
    scaled, scale = _scaled(x, rounding, 6.0, 2)
    return to_fp4(scaled)[..., : -(-x.shape[-1] // 2)], scale


def to_fp4(scaled: Tensor) -> Tensor:
    """Numbers as codes of 4 bits, two in a byte."""
    size = scaled.abs().clamp(max=6.0)
    # Beside 2^22 the step of float32 is 0.5; from 2 on e2m1's is twice that, from 4 on twice again.
    step = torch.where(size < 2, 1.0, torch.where(size < 4, 2.0, 4.0)) * 2.0**22
    size = (size + step) - step
    code = torch.where(size < 2, size * 2, torch.where(size < 4, size + 2, size / 2 + 4)).to(torch.uint8)
    code |= scaled.signbit().to(torch.uint8) << 3
    return code[..., 0::2] | code[..., 1::2] << 4


def _scaled(x: Tensor, rounding: str, largest: float, top: int) -> tuple[Tensor, Tensor]:
    """Numbers over their scale, in whole groups, and the scales."""
    parts = pad(x, (0, -x.shape[-1] % 32)).unflatten(-1, (-1, 32)).float()
    size = parts.abs().amax(-1, keepdim=True).clamp(min=2.0**-100)
    if rounding == "rceil":
        exponent = (size * (1 / largest)).log2().ceil()
    else:
        exponent = (size.log2().ceil() if rounding == "ceil" else size.log2().floor()) - top
    scale = (exponent[..., 0] + 127).to(torch.uint8).view(torch.float8_e8m0fnu)
    return (parts * torch.exp2(-exponent)).flatten(-2), scale
