"""The public function over this folder's op: `sample`, with settings that are numbers or tensors.

The op itself, with tensors alone, is `torch.ops.portable.sample`.
"""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_tensor, documented
from portable.errors import ParameterError, RankError

_op: Any = dispatcher.op("sample")
_HINTS = {
    "probs": " Here it is logits, before softmax.",
    "generator": " Here it is seed: one number, or one per row.",
    "indices": " Select the rows of logits instead.",
}


@partial(documented, hints=_HINTS)
def sample(
    logits: Tensor,
    temperature: float | Tensor | None = None,
    top_k: int | Tensor | None = None,
    top_p: float | Tensor | None = None,
    min_p: float | Tensor | None = None,
    *,
    seed: int | Tensor,
    offset: int | Tensor | None = None,
) -> Tensor:
    """One token per row of (..., vocabulary) logits, drawn from softmax(logits / temperature) of the tokens
    that top_k, then top_p, then min_p keep: int64, (...).

    logits: bfloat16, float16 or float32. The others are a number for all rows or a tensor (...), one per row.
    A number costs a launch that fills a tensor: loops keep tensors.

    temperature: 0 takes the likeliest token. None is 1. top_k: how many of the likeliest tokens are kept; 0,
    -1 or None keeps all. top_p: as few of the likeliest are kept as have this share of what top_k left; 1 or
    None keeps all. min_p: tokens are kept that are at least so many times as likely as the likeliest; 0 or
    None keeps all. Of tokens with one logit the one with the lower index counts as likelier.

    seed, offset: the key and the counter of the random number, Philox4x32-10, integers of 64 bits. A row of
    the same logits, settings, seed and offset gets the same token, alone or at any place of any batch, from
    every implementation on every GPU. Take a seed per sequence, and the token's position in it for offset.

    The result is -1 where a row has a NaN, or -inf alone. Tokens 2^-40 as likely as the likeliest, and less
    likely ones, are never drawn. Values of tensors are not checked: a temperature below 2^-126 or NaN counts
    as 0, a top_k below 1 and a top_p that is NaN keep all, a top_p of 0 or less keeps one. No gradient.

    Raises ParameterError, ShapeError, DtypeError or NotATensorError that name the argument. Source: names and
    meaning as in FlashInfer's top_k_top_p_sampling_from_logits and min_p_sampling_from_probs; the order of
    the filters as in transformers.
    """
    name = "sample"
    if check_tensor(name, "logits", logits).dim() == 0:
        raise RankError(name, "logits", 0, "at least 1: (..., vocabulary)")

    def per_row(value: Any, dtype: torch.dtype) -> Tensor:
        if isinstance(value, Tensor):
            return value.to(dtype) if value.dtype in _WIDER.get(dtype, ()) else value
        return torch.full(logits.shape[:-1], value, dtype=dtype, device=logits.device)

    def share(argument: str, value: Any, most: float, neutral: float, says: str) -> Tensor | None:
        if value is None or isinstance(value, Tensor):
            return None if value is None else per_row(value, torch.float32)
        number = _number(value)
        if number is None or not 0.0 <= number <= most:
            raise ParameterError(name, argument, value, says)
        return None if number == neutral else per_row(number, torch.float32)

    heat = share("temperature", temperature, _LARGEST, 1.0, "0 or above and finite, or a tensor, one per row")
    p = share("top_p", top_p, 1.0, 1.0, "from 0 to 1, or a tensor, one per row")
    least = share("min_p", min_p, 1.0, 0.0, "from 0 to 1, or a tensor, one per row")
    if top_k is not None and not isinstance(top_k, Tensor):
        count = _integer(
            name, "top_k", top_k, -1, 2**63 - 1, "-1 or 0 for all, 1 or more, or a tensor, one per row"
        )
        top_k = None if count < 1 or count >= logits.shape[-1] else count
    k = None if top_k is None else per_row(top_k, torch.int32)
    words = "an integer of 64 bits, or a tensor, one per row of int64"
    if not isinstance(seed, Tensor):
        seed = _integer(name, "seed", seed, -(2**63), 2**63 - 1, words)
    if offset is not None and not isinstance(offset, Tensor):
        offset = _integer(name, "offset", offset, -(2**63), 2**63 - 1, words) or None
    start = None if offset is None else per_row(offset, torch.int64)
    return _op(logits, per_row(seed, torch.int64), start, heat, k, p, least)


_LARGEST = torch.finfo(torch.float32).max
_WIDER = {
    torch.float32: (torch.float64, torch.bfloat16, torch.float16),
    torch.int64: (torch.int32,),
    torch.int32: (torch.int64,),
}
"""The dtypes of tensors that are converted to the one that the op takes."""


def _number(value: Any) -> float | None:
    """A float of a real number; None of what is not one."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value) if isinstance(value, (int, float)) or hasattr(value, "__float__") else math.nan
    except (TypeError, ValueError, OverflowError):
        return None
    return number


def _integer(op: str, name: str, value: Any, least: int, most: int, says: str) -> int:
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or not least <= found <= most:
        raise ParameterError(op, name, value, says)
    return found
