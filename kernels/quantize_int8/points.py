"""What the probes know of int8: its integers, the points between them, and rows of many lengths."""

from __future__ import annotations

import torch
from torch import Tensor

FACTORS = (1.0, 2.0**-20, 2.0**20)
LENGTHS = (65, 129, 700, 5000, 66000)


def near_midpoints(least: int) -> tuple[Tensor, Tensor]:
    """float32 points and their codes from `least` to 127: each integer, each midpoint of two and what lies
    beside it; the last midpoints are those of the ends and what would follow them. Zero is the last point but
    for what is beyond the ends."""
    whole = torch.arange(least, 128)
    middle = torch.arange(least - 1, 128) + 0.5
    below, above = middle.floor().long(), middle.ceil().long()
    points, codes = [whole.float(), middle], [whole, torch.where(below % 2 == 0, below, above)]
    for end, chosen in ((torch.inf, above), (-torch.inf, below)):
        points.append(torch.nextafter(middle, torch.tensor(end)))
        codes.append(chosen)
    beyond = torch.tensor([1e3, 1e9, 3e38, torch.inf])
    points += [beyond, -beyond]
    codes += [torch.full((4,), 127), torch.full((4,), least)]
    return torch.cat(points), torch.cat(codes).clamp(least, 127).to(torch.int8)
