"""Wrong means."""

from __future__ import annotations

import torch

from .registry import Edit, mutant, source
from .tools import right, wide


@mutant("mean", "the sum")
def the_sum(x):
    return wide(x).sum(-1).to(x.dtype)


@mutant("mean", "divided by one less")
def one_less(x):
    return (wide(x).sum(-1) / (x.shape[-1] - 1)).to(x.dtype)


@mutant("mean", "sum rounded to the input's type")
def rounded_twice(x):
    return (wide(x).sum(-1).to(x.dtype) / x.shape[-1]).to(x.dtype)


@mutant("mean", "each term divided and rounded to the input's type")
def rounded_terms(x):
    return wide(x / max(x.shape[-1], 1)).sum(-1).to(x.dtype) if x.shape[-1] else right("mean")(x)


@mutant("mean", "0 where there is nothing to add")
def zero_of_none(x):
    return (wide(x).sum(-1) / max(x.shape[-1], 1)).to(x.dtype)


@mutant("mean", "NaN left out")
def without_nan(x):
    return right("mean")(torch.where(x.isnan(), torch.zeros_like(x), x))


@mutant("mean", "elements beyond 65,536 left out")
def of_the_first(x):
    return (wide(x)[..., :65536].sum(-1) / x.shape[-1]).to(x.dtype)


source(
    *("mean", "cpp", "gfx942", "the last tile of a row alone"),
    Edit("mean/mean.cu", "sum[0] += added;", "sum[0] = added;"),
)
source(
    *("mean", "cpp", "gfx942", "lanes not added"),
    Edit("mean/mean.cu", "sum_row(sum, partial);", ""),
)
source(
    *("mean", "triton", "gfx942", "the last block of a row alone"),
    Edit("mean/triton_impl.py", "sums += tl.load", "sums = tl.load"),
)
