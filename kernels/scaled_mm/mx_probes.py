"""Exact answers of scaled_mm_mx: those of probes.py, with powers of two for groups of 32."""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels.scaled_mm import reference
from portable.kernels.scaled_mm.probes import KINDS, named


def of_groups(rows: int, columns: int, length: int) -> tuple[Tensor, Tensor]:
    """Scales of which those of neighbouring lines and groups differ."""
    group = torch.arange(-(-length // reference.MX_GROUP))
    m, n = torch.arange(rows)[:, None], torch.arange(columns)[:, None]
    exponents = (5 * m + 2 * group) % 6, (3 * n + group) % 5
    a, b = ((each + 127).to(torch.uint8).view(torch.float8_e8m0fnu) for each in exponents)
    return a, b


PROBES = tuple(named(each, of_groups, reference.scaled_mm_mx) for each in KINDS)
