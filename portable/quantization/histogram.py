"""Sizes of numbers, counted in a stream: a histogram of |x| whose range grows without loss.

Its range is [0, 2^e), in equal bins, a power of two of them, so that an edge of a bin is exact. Where a batch
has a larger number, e grows and neighbouring bins are added together: what is counted then is what one pass
over all batches would have counted, in any order of them. e is the least that fits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

PART = 1 << 22  # elements that are converted to float64 at a time


class Histogram:
    """counts: int64, (bins,), of the numbers that are not 0. zeros: how many are. amax: the greatest |x|."""

    def __init__(self, bins: int):
        self.counts = torch.zeros(bins, dtype=torch.int64)
        self.exponent: int | None = None
        self.zeros = 0
        self.amax = 0.0

    @property
    def total(self) -> int:
        """How many numbers were counted."""
        return self.zeros + int(self.counts.sum())

    @property
    def width(self) -> float:
        """Of a bin."""
        return math.ldexp(1.0, (self.exponent or 0) - self._bits)

    @property
    def _bits(self) -> int:
        return len(self.counts).bit_length() - 1

    def add(self, x: Tensor) -> None:
        """Counts finite numbers, of any shape."""
        sizes = x.detach().flatten()
        amax = float(sizes.abs().max()) if sizes.numel() else 0.0
        if amax:
            self._grow(math.frexp(amax)[1])
            self.amax = max(self.amax, amax)
        for part in sizes.split(PART):
            found = part[part != 0].abs()
            self.zeros += part.numel() - found.numel()
            index = (found.double() / self.width).long()  # exact: the width is a power of two
            self.counts += torch.bincount(index, minlength=len(self.counts)).cpu()

    def _grow(self, exponent: int) -> None:
        if self.exponent is None:
            self.exponent = exponent
        shift = exponent - self.exponent
        if shift > 0:
            merged = self.counts.reshape(-1, 1 << min(shift, self._bits)).sum(1)
            self.counts = torch.zeros_like(self.counts)
            self.counts[: len(merged)] = merged
            self.exponent = exponent
