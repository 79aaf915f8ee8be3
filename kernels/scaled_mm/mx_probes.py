"""Exact answers of scaled_mm_mx: those of probes.py, with powers of two for groups of 32."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from portable.kernels.scaled_mm import reference
from portable.kernels.scaled_mm.probes import KINDS, Call, Scales, called, named


def of_groups(rows: int, columns: int, length: int) -> tuple[Tensor, Tensor]:
    """Scales of which those of neighbouring lines and groups differ."""
    group = torch.arange(-(-length // reference.MX_GROUP))
    m, n = torch.arange(rows)[:, None], torch.arange(columns)[:, None]
    exponents = (5 * m + 2 * group) % 6, (3 * n + group) % 5
    a, b = ((each + 127).to(torch.uint8).view(torch.float8_e8m0fnu) for each in exponents)
    return a, b


def every_scale(
    call: Call, dtype: torch.dtype, device: torch.device, scales: Scales, meaning: Callable[..., Tensor]
) -> bool:
    """each scale, of a or of b, is its power of two: of the smallest number where that is a normal number of
    float32, else of 2"""
    codes = torch.arange(255, dtype=torch.uint8)
    smallest = torch.ones(1, dtype=torch.uint8).view(dtype).double()
    powers = torch.exp2(codes.double() - 127)
    numbers = torch.where(powers * smallest >= 2.0**-126, smallest, 2.0)
    wide, unit = torch.zeros(len(codes), 48, dtype=torch.float64), torch.zeros(1, 48)
    wide[:, 37], unit[:, 37] = numbers, 1.0  # of the second group
    wide, unit = wide.to(dtype), unit.to(dtype)
    ones = torch.full((len(codes),), 127, dtype=torch.uint8)
    given, one = (torch.stack(each, 1).view(torch.float8_e8m0fnu) for each in ((ones, codes), (ones, ones)))
    left = called(call, device, mat_a=wide, mat_b=unit.t(), scale_a=given, scale_b=one[:1],
                  output_dtype=torch.float32)  # fmt: skip
    right = called(call, device, mat_a=unit, mat_b=wide.t(), scale_a=one[:1], scale_b=given,
                   output_dtype=torch.float32)  # fmt: skip
    wanted = numbers * powers
    return torch.equal(left[:, 0].double(), wanted) and torch.equal(right[0].double(), wanted)


PROBES = tuple(named(each, of_groups, reference.scaled_mm_mx) for each in (*KINDS, every_scale))
