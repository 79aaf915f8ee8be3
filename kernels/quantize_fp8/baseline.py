"""What a user of torch alone would write: the baselines of the quantisers' throughput.

torch's own conversion saturates float8_e4m3fn from 2.13 on, which scales that follow from x do not need.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


def _scaled(
    x: Tensor, dims: tuple[int, ...], dtype: torch.dtype, power_of_2: bool, eps: float
) -> tuple[Tensor, Tensor]:
    scale = _scale(x.abs().amax(dims, keepdim=True), torch.finfo(dtype).max, power_of_2, eps)
    return (x.float() * scale.reciprocal()).to(dtype), scale


def _scale(amax: Tensor, largest: float, power_of_2: bool, eps: float) -> Tensor:
    scale = amax.float().clamp(min=eps) / largest
    return torch.exp2(scale.log2().ceil()) if power_of_2 else scale


def row(x: Tensor, dtype: torch.dtype, power_of_2: bool, eps: float) -> tuple[Tensor, Tensor]:
    return _scaled(x, (-1,), dtype, power_of_2, eps)


def columns(x: Tensor, dtype: torch.dtype, power_of_2: bool, eps: float) -> tuple[Tensor, Tensor]:
    return row(x.mT.contiguous(), dtype, power_of_2, eps)


def groups(x: Tensor, dtype: torch.dtype, power_of_2: bool, eps: float) -> tuple[Tensor, Tensor]:
    k = x.shape[-1]
    parts = pad(x, (0, -k % 128)).unflatten(-1, (-1, 128))
    q, scale = _scaled(parts, (-1,), dtype, power_of_2, eps)
    return q.flatten(-2)[..., :k], scale[..., 0]


def tiles(x: Tensor, dtype: torch.dtype, power_of_2: bool, eps: float) -> tuple[Tensor, Tensor]:
    m, k = x.shape[-2:]
    parts = pad(x, (0, -k % 128, 0, -m % 128)).unflatten(-1, (-1, 128)).unflatten(-3, (-1, 128))
    q, scale = _scaled(parts, (-3, -1), dtype, power_of_2, eps)
    return q.flatten(-2).flatten(-3, -2)[..., :m, :k], scale[..., 0, :, 0]


def static(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    largest = torch.finfo(dtype).max
    return (x.float() * scale.reciprocal()).clamp(-largest, largest).to(dtype)


def derived(given: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Tensor]:
    """A scale by which normal data fill float8_e4m3fn."""
    return {"scale": torch.full((1,), 5.5 / 448, device=given["x"].device)}


def amax_scale(x: Tensor, largest: float, power_of_2: bool, eps: float) -> Tensor:
    return _scale(x.abs().max(), largest, power_of_2, eps).reshape(1)
