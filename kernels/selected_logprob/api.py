"""The public function over this folder's op: `selected_logprob`, without the op's third result.

The op itself, with lse, is `torch.ops.portable.selected_logprob`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_tensor, documented
from portable.errors import RankError

_op: Any = dispatcher.op("selected_logprob")


@documented
def selected_logprob(logits: Tensor, index: Tensor, *, temperature: float = 1.0) -> Any:
    """(logprob, entropy) of (N, V) logits, by one pass over them: with p = softmax(logits / temperature) per
    row, log(p[index]) and -sum(p * log(p)), both (N,), natural logarithms.

    A class whose logit is -inf adds nothing to the entropy. An index outside [0, V) gives a logprob of NaN:
    it is not checked, and no memory outside the row is read for it.

    logits: float16, bfloat16, float32 or float64; index: int64 or int32, (N,); temperature: above 0. Answers
    float32 (float64 for float64). The gradient of the logits has their dtype.

    Raises ShapeError, DtypeError or ParameterError that name the argument. Source: what policy-gradient
    trainers take of a language model's logits, as selective_log_softmax and entropy_from_logits of TRL.
    """
    name = "selected_logprob"
    if check_tensor(name, "logits", logits).dim() != 2:
        remedy = "Flatten the leading dimensions of both: logits.flatten(0, -2), index.flatten()"
        raise RankError(name, "logits", logits.dim(), "2: (rows, classes)", remedy)
    if isinstance(index, Tensor) and index.dtype == torch.int32:
        index = index.long()
    logprob, entropy, _ = _op(logits, index, temperature=temperature)
    return logprob, entropy
