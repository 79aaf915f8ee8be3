"""What the probes know of the types of 8 bits, from torch's decoding of all codes alone, and of 4 bits."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
OF_NAN = 256
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
"""The numbers of float4_e2m1fn from 0 on, as OCP lists them; each is at its code."""


def numbers(dtype: torch.dtype) -> list[float]:
    """The finite numbers from 0 on; each is at its code."""
    values = torch.arange(128, dtype=torch.int16).to(torch.uint8).view(dtype).float()
    return values[values.isfinite()].tolist()


def codes_of(q: Tensor) -> Tensor:
    """Codes as int16, any NaN as OF_NAN."""
    return torch.where(q.float().isnan(), OF_NAN, q.view(torch.uint8).short())


def points_of(found: list[float]) -> tuple[Tensor, Tensor]:
    """float32 points from 0 on and their codes, of a type with the numbers `found`: each number, each
    midpoint of two neighbours and what lies beside it. The last midpoint is of the largest number and what
    would follow it: beyond, all saturates."""
    whole = torch.tensor(found, dtype=torch.float64)
    code = torch.arange(len(found))
    middle = (whole[1:] + whole[:-1]) / 2
    points, codes = [whole.float()], [code]
    for end, chosen in ((torch.inf, code[1:]), (-torch.inf, code[:-1])):
        points.append(torch.nextafter(middle.float(), torch.tensor(end)))
        codes.append(chosen)
    points.append(middle.float())
    codes.append(code[:-1] + code[:-1] % 2)
    last = found[-1] + (found[-1] - found[-2]) / 2
    points.append(torch.tensor([last * 0.999, last, last * 1.001, 1e9, 3e38, torch.inf]))
    codes.append(torch.full((6,), len(found) - 1))
    return torch.cat(points), torch.cat(codes)


def near_midpoints(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`points_of` a type of 8 bits, of both signs, and NaN."""
    point, code = points_of(numbers(dtype))
    sign = torch.where(code == 0, 0, 0x80) if "fnuz" in str(dtype) else torch.full_like(code, 0x80)
    nothing = torch.full((1,), torch.nan), torch.full((1,), OF_NAN)
    return torch.cat([point, -point, nothing[0]]), torch.cat([code, code | sign, nothing[1]]).short()


def fp4_codes_of(q: Tensor) -> Tensor:
    """The codes of bytes, (..., N), int16, (..., 2 N): of each the lower half first."""
    return torch.stack([q.short() % 16, q.short() // 16], -1).flatten(-2)


def fp4_points() -> tuple[Tensor, Tensor]:
    """`points_of` float4_e2m1fn, of both signs."""
    point, code = points_of(FP4)
    return torch.cat([point, -point]), torch.cat([code, code + 8]).short()
