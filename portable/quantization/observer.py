"""Scales of activations from data, for static quantisation: an observer of a stream of batches.

observer = Observer("percentile", percentile=99.9)
for batch in batches:
    observer.update(batch)
q, _ = portable.quantize_fp8(x, "tensor", scale=observer.scale(torch.float8_e4m3fn))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import torch
from torch import Tensor

from portable.dispatch.arguments import check_tensor
from portable.errors import ArgumentError, DtypeError, ParameterError, listed, nearest
from portable.kernels._lib import minifloat
from portable.quantization.histogram import Histogram

METHODS = ("max", "percentile", "mse", "entropy")
LARGEST = {
    torch.int8: 127.0,
    **{getattr(torch, name): minifloat.largest(name) for name in minifloat.OF_8_BITS},
    torch.float4_e2m1fn_x2: 448.0 * 6.0,
}
"""What the threshold becomes, in units of the scale: for float4_e2m1fn_x2 NVFP4's scale of the whole."""
LEAST_BINS, STRIDE = 128, 8
_NAME = "quantization.Observer"
_INPUTS = (torch.bfloat16, torch.float16, torch.float32)


class Observer:
    """A threshold of |x| over all batches, which becomes the largest number of a type: symmetric, one scale.

    method:

    - "max": the greatest |x|: nothing saturates. The scale has the bits that `quantize_fp8(x, "tensor")` and
      `quantize_int8(x, "tensor")` compute of all batches in one tensor.
    - "percentile": the least edge of a bin that `percentile` percent of all numbers, zeros too, are below,
      and at most the greatest |x|. It is less than a bin above the order statistic.
    - "mse": the threshold with the least sum of squared errors of the rounded and saturated numbers.
    - "entropy": that with the least Kullback-Leibler divergence of the histogram, what is beyond the
      threshold in the last bin below it that is not empty, from that of the numbers below the threshold
      after rounding, spread evenly over those bins of each of the type's numbers that are not empty. Zeros
      do not count: they are exact.

    The sizes are in a histogram of `bins`, a power of two from 256 on, over [0, 2^e); e is the least that
    fits, so that more than half of the bins are used. Its counts are exact integers, and growing loses
    nothing: scales do not depend on the order of the batches or how numbers are split among them, to the bit.
    "mse" and "entropy" take a bin's numbers as its middle, and try each 8th edge from the 128th on, and the
    greatest |x|; of equal ones the greater.

    Raises ParameterError.
    Source: the calibrators of TensorRT and pytorch-quantization. Theirs of entropy has 128 equal steps in
    the place of a type's numbers, and counts what is beyond the threshold in the last bin, empty or not.
    """

    def __init__(self, method: str = "max", *, percentile: float = 99.99, bins: int = 2048):
        if method not in METHODS:
            expected = "one of " + ", ".join(map(repr, METHODS))
            raise ParameterError(_NAME, "method", method, expected, nearest(str(method), METHODS).strip())
        if not isinstance(percentile, (int, float)) or not 0 < percentile <= 100:
            raise ParameterError(_NAME, "percentile", percentile, "above 0 and up to 100")
        if not isinstance(bins, int) or bins < 2 * LEAST_BINS or bins & (bins - 1):
            raise ParameterError(_NAME, "bins", bins, f"a power of two from {2 * LEAST_BINS} on")
        self.method, self.percentile = method, percentile
        self.name = "x"
        """Of the tensor, in errors."""
        self._seen = Histogram(bins)

    def __repr__(self) -> str:
        of = f", percentile={self.percentile}" if self.method == "percentile" else ""
        return f"Observer({self.method!r}{of})"

    @property
    def count(self) -> int:
        """How many numbers were observed."""
        return self._seen.total

    @property
    def amax(self) -> float:
        """The greatest |x| up to now."""
        return self._seen.amax

    def update(self, x: Tensor) -> None:
        """Takes a batch, of any shape, also of no element: bfloat16, float16 or float32, on any
        device. Reads the device's memory, so it synchronizes. Raises ArgumentError for NaN and Inf, and
        DtypeError or NotATensorError; the batch is not counted then."""
        if check_tensor(_NAME, self.name, x).dtype not in _INPUTS:
            raise DtypeError(_NAME, self.name, x.dtype, listed(_INPUTS))
        if not bool(x.isfinite().all()):
            nan, count = int(x.isnan().sum()), x.numel()
            infinite = count - nan - int(x.isfinite().sum())
            found = f"no finite tensor: it has {nan} NaN and {infinite} Inf among {count} numbers"
            remedy = "Find where they come from: a scale of them would make all else 0 or NaN"
            raise ArgumentError(_NAME, self.name, found, "finite numbers", remedy)
        self._seen.add(x)

    def threshold(self, dtype: torch.dtype) -> float:
        """The |x| that becomes the largest number of `dtype`. Raises as `scale`."""
        if dtype not in LARGEST:
            raise ParameterError(_NAME, "dtype", dtype, listed(LARGEST))
        if dtype == torch.float4_e2m1fn_x2 and self.method in ("mse", "entropy"):
            expected = "of 8 bits for this method: NVFP4 has scales of groups too"
            raise ParameterError(_NAME, "dtype", dtype, expected, "Take 'max' or 'percentile'")
        if not self._seen.total:
            raise ArgumentError(_NAME, self.name, "of no number yet", "a batch", "Call update before scale")
        if self.method == "max" or not self._seen.amax:
            return self._seen.amax
        if self.method == "percentile":
            return _percentile(self._seen, self.percentile)
        return _least(self._seen, dtype, _squares if self.method == "mse" else _divergence)

    def scale(self, dtype: torch.dtype) -> Tensor:
        """The dequantisation scale, float32, (), on the CPU: threshold / largest(dtype).

        dtype: int8; float8_e4m3fn, float8_e5m2 or a fnuz type; or, for "max" and "percentile",
        float4_e2m1fn_x2, whose scale is the `global_scale` of `quantize_nvfp4`. Of zeros alone it is that of
        a threshold of 1e-10 (NVFP4's 1e-30), as the quantisers have it. Raises ParameterError for another
        dtype, and ArgumentError where no number was observed.
        """
        least = torch.tensor(1e-30 if dtype == torch.float4_e2m1fn_x2 else 1e-10).double()
        threshold = torch.tensor(self.threshold(dtype), dtype=torch.float64).clamp(min=least)
        return (threshold / LARGEST[dtype]).float()


def _percentile(seen: Histogram, percentile: float) -> float:
    wanted = math.ceil(Fraction(str(percentile)) * seen.total / 100) - seen.zeros
    if wanted <= 0:
        return 0.0
    below = int((seen.counts.cumsum(0) < wanted).sum())
    return min((below + 1) * seen.width, seen.amax)


def _least(
    seen: Histogram, dtype: torch.dtype, loss: Callable[[Tensor, Tensor, Tensor, int], float]
) -> float:
    """The threshold with the least loss, which is a function of counts, middles of bins and what these become
    in units of the type, all float64, and of the threshold's number of bins."""
    counts = seen.counts.double()
    middles = (torch.arange(len(counts), dtype=torch.float64) + 0.5) * seen.width
    best, found = math.inf, seen.amax
    for bins, threshold in _thresholds(seen):
        scale = threshold / LARGEST[dtype]
        value = loss(counts, middles, _rounded(middles / scale, dtype) * scale, bins)
        if value <= best:
            best, found = value, threshold
    return found


def _thresholds(seen: Histogram) -> Iterator[tuple[int, float]]:
    used = int(seen.amax / seen.width) + 1
    yield from ((bins, bins * seen.width) for bins in range(LEAST_BINS, used, STRIDE))
    yield used, seen.amax


def _rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """To numbers of the type, saturated."""
    if dtype == torch.int8:
        return values.round().clamp(max=LARGEST[dtype])
    return minifloat.rounded(values, str(dtype).removeprefix("torch."))


def _squares(counts: Tensor, middles: Tensor, rounded: Tensor, bins: int) -> float:
    return float((counts * (middles - rounded).square()).sum())


def _divergence(counts: Tensor, middles: Tensor, rounded: Tensor, bins: int) -> float:
    inside = counts[:bins]
    # Equal numbers are neighbours: the bins of each are one group.
    _, group = torch.unique_consecutive(rounded[:bins], return_inverse=True)
    filled = inside > 0
    sums = torch.zeros(bins, dtype=torch.float64).index_add_(0, group, inside)
    sizes = torch.zeros(bins, dtype=torch.float64).index_add_(0, group, filled.double())
    after = torch.where(filled, sums[group] / sizes[group].clamp(min=1), 0.0)
    if not filled.any():
        return math.inf
    before = inside.clone()
    before[int(filled.nonzero()[-1])] += counts[bins:].sum()
    before, after = before / before.sum(), after / after.sum()
    return float((before * (before / after).log())[filled].sum())
