"""The public function over this folder's op: `embedding` with the arguments of torch.nn.functional.embedding.

The op itself is `torch.ops.portable.embedding`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import documented
from portable.errors import ParameterError

_op: Any = dispatcher.op("embedding")
_HINTS = {
    "indices": " Here it is input, as in torch.nn.functional.",
    "out": " There is no out=: the result is a new tensor.",
}


@partial(documented, hints=_HINTS)
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """torch.nn.functional.embedding: the rows `input` of the table `weight`, copied bit for bit.

    input: int64 or int32, of any shape. weight: (rows, length), bfloat16, float16, float32 or float64. An
    index outside the rows, or below 0, gives a row of NaN: it is not checked, and no memory outside the table
    is read. padding_idx: the row of weight that has no gradient, also counted from the end; its values are
    read as any other's.

    The gradient of weight is dense. A row's is the sum of its tokens' in float32 (float64 for float64),
    rounded once, in one order: ascending, in parts of 64. No atomics: the same bits in every run, whatever
    tokens the other rows have. Of an index outside the table it goes nowhere. The indices are sorted on the
    device; weight is not kept for it.

    There is no renormalisation and no scaled or sparse gradient: max_norm, scale_grad_by_freq and sparse have
    torch's places, and are refused where they are not None, False and False. norm_type says nothing without
    max_norm. Raises ParameterError, DtypeError, RankError or NotATensorError that name the argument.
    """
    if max_norm is not None:
        expected = "None: the rows of weight are not renormalised here"
        raise ParameterError("embedding", "max_norm", max_norm, expected)
    for name, value in (("scale_grad_by_freq", scale_grad_by_freq), ("sparse", sparse)):
        if value is not False:
            expected = "False: the gradient of weight is dense, and not scaled"
            raise ParameterError("embedding", name, value, expected)
    return _op(input, weight, padding_idx)
