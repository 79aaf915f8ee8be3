"""The public function over this folder's op: `index_add` with torch's arguments.

The op itself, of the first of two dimensions and with sorted indices, is `torch.ops.portable.index_add`.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_tensor, documented
from portable.errors import DtypeError, ParameterError, RankError, ShapeError
from portable.kernels._lib.segments import segments

_op: Any = dispatcher.op("index_add")
_HINTS = {
    "self": " Here it is input.",
    "x": " Here it is input, as in torch.",
    "out": " There is no out=: the result is a new tensor.",
}
_INDICES = (torch.int32, torch.int64)


@partial(documented, hints=_HINTS)
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """torch.index_add: `input` with alpha times the slices of `source` added at the places `index` of `dim`.

    The sum of a place's slices is in float32 (float64 for float64), rounded once with `input` added. It has
    one order, ascending in parts of 64, that depends on how many slices a place has alone: no atomics, the
    same bits in every run, whatever is added elsewhere. torch's has no order on a GPU, and rounds after each.

    input: bfloat16, float16, float32 or float64, of any strides; dimensions other than the first are moved
    there, which is a copy. index: int64 or int32, of one dimension. An index outside `dim`, or below 0, is
    not checked and adds nothing. source: of input's dtype, and its shape but for `dim`, which is as long as
    index. The indices are sorted on the device.

    The gradient of input is dy itself, that of source its slices at `index`, times alpha. Raises DtypeError,
    ShapeError, RankError, ParameterError or NotATensorError that name the argument.
    """
    name = "index_add"
    x, added = check_tensor(name, "input", input), check_tensor(name, "source", source)
    at = check_tensor(name, "index", index)
    place = _dimension(dim, x.dim())
    if at.dtype not in _INDICES:
        raise DtypeError(name, "index", at.dtype, "int32 or int64", "Convert it, with index.long()")
    if at.dim() > 1:
        raise RankError(name, "index", at.dim(), "1: the places in dim", "Flatten it and dim of source")
    at = at.reshape(-1)
    shape = tuple(x.shape) if x.dim() else (1,)
    wanted = (*shape[:place], at.shape[0], *shape[place + 1 :])
    if tuple(added.shape) != (wanted if added.dim() else ()) or (not added.dim() and wanted != (1,)):
        expected = f"{wanted}: that of input, {tuple(x.shape)}, with as many in dim as index has"
        raise ShapeError(name, "source", tuple(added.shape), expected)
    if not shape[place]:
        return x.clone()
    wide = x.reshape(shape).movedim(place, 0)
    rest = wide.shape[1:]
    y = _op(
        wide.reshape(shape[place], rest.numel()),
        at,
        added.reshape(wanted).movedim(place, 0).reshape(at.shape[0], rest.numel()),
        *segments(at, shape[place]),
        alpha=alpha,
    )
    return y.reshape(shape[place], *rest).movedim(0, place).reshape(x.shape)


def _dimension(dim: Any, rank: int) -> int:
    """The dimension, counted from 0."""
    least = max(rank, 1)
    legal = f"an int from {-least} to {least - 1}"
    try:
        found = operator.index(dim)
    except TypeError:
        raise ParameterError("index_add", "dim", dim, legal) from None
    if not -least <= found < least:
        raise ParameterError("index_add", "dim", dim, legal)
    return found % least
