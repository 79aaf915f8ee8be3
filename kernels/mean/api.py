"""The public function over this folder's op: `mean` with torch's arguments.

The op itself, of the last dimension, is `torch.ops.portable.mean`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_flag, check_tensor, documented
from portable.errors import DtypeError, ParameterError

_op: Any = dispatcher.op("mean")
_HINTS = {
    "x": " Here it is input, as in torch.",
    "axis": " Here it is dim.",
    "keepdims": " Here it is keepdim.",
}


@partial(documented, hints=_HINTS)
def mean(
    input: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """torch.mean: the sum over `dim` in float32 (float64 for float64), divided by the count, rounded once.

    input: any shape and strides, bfloat16, float16, float32 or float64. dim: one dimension, several, or None
    for all, as in torch. keepdim: those dimensions stay, with size 1. dtype: what the input is converted to
    first, as in torch; the result has it too.

    The result is NaN where there is nothing to add. Its bits are the same alone and in a batch: they depend
    on how many elements are added and on whether they start at multiples of 16 bytes. Dimensions that do not
    follow each other at the end are moved there, which is a copy. Each result is one thread block's, so the
    mean of all of a large tensor is slow. The gradient is dy divided by the count, a view of stride 0; the
    input is not kept for it.

    Raises DtypeError, ParameterError or NotATensorError that name the argument.
    """
    name = "mean"
    check_flag(name, "keepdim", keepdim)
    x = check_tensor(name, "input", input)
    if dtype is not None:
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ParameterError(name, "dtype", dtype, "a floating point torch.dtype or None")
        x = x.to(dtype)
    if not x.is_floating_point():
        remedy = "Convert it, or pass dtype=torch.float32"
        raise DtypeError(name, "input", x.dtype, "bfloat16, float16, float32 or float64", remedy)
    dims = _dimensions(dim, x.dim())
    rest = [each for each in range(x.dim()) if each not in dims]
    last = x if dims == list(range(len(rest), x.dim())) else x.permute(*rest, *dims)
    rows = last.unsqueeze(-1) if not dims else last.flatten(len(rest)) if len(dims) > 1 else last
    y = _op(rows)
    if keepdim:
        y = y.reshape([1 if each in dims else size for each, size in enumerate(x.shape)])
    return y


def _dimensions(dim: Any, rank: int) -> list[int]:
    """The dimensions, counted from 0, in order; none of a tensor without dimensions."""
    given = range(rank) if dim is None else dim if isinstance(dim, (tuple, list)) else (dim,)
    given = given or range(rank)  # torch's (), which is all
    least = max(rank, 1)
    legal = f"dimensions from {-least} to {least - 1}, each once, or None"
    try:
        found = [operator.index(each) for each in given]
    except TypeError:
        raise ParameterError("mean", "dim", dim, legal) from None
    wrapped = sorted(each % least for each in found)
    if any(not -least <= each < least for each in found) or len({*wrapped}) < len(wrapped):
        raise ParameterError("mean", "dim", dim, legal)
    return wrapped if rank else []
