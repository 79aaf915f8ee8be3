"""What the probes know of the types of 8 bits, from torch's decoding of all codes alone."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
OF_NAN = 256


def numbers(dtype: torch.dtype) -> list[float]:
    """The finite numbers from 0 on; each is at its code."""
    values = torch.arange(128, dtype=torch.int16).to(torch.uint8).view(dtype).float()
    return values[values.isfinite()].tolist()


def codes_of(q: Tensor) -> Tensor:
    """Codes as int16, any NaN as OF_NAN."""
    return torch.where(q.float().isnan(), OF_NAN, q.view(torch.uint8).short())


def near_midpoints(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """float32 points and their codes: each number, each midpoint of two neighbours and what lies beside it,
    both signs. The last midpoint is of the largest number and what would follow it: beyond, all saturates."""
    found = numbers(dtype)
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
    point, code = torch.cat(points), torch.cat(codes)
    sign = torch.where(code == 0, 0, 0x80) if "fnuz" in str(dtype) else torch.full_like(code, 0x80)
    nothing = torch.full((1,), torch.nan), torch.full((1,), OF_NAN)
    return torch.cat([point, -point, nothing[0]]), torch.cat([code, code | sign, nothing[1]]).short()
