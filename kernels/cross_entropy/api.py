"""The public function over this folder's op: `cross_entropy` with torch's arguments and reductions.

The op itself, losses of rows and lse, is `torch.ops.portable.cross_entropy`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher, fast_path
from portable.dispatch.arguments import check_flag, check_tensor, documented
from portable.errors import DtypeError, ParameterError, RankError, ShapeError

_call = fast_path.by_position(dispatcher.op("cross_entropy"))
REDUCTIONS = ("none", "mean", "sum")
_HINTS = {
    "input": " Here it is logits.",
    "size_average": " Pass reduction=... instead, as torch advises.",
    "reduce": " Pass reduction=... instead, as torch advises.",
}


@partial(documented, hints=_HINTS)
def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    return_lse: bool = False,
) -> Any:
    """torch.nn.functional.cross_entropy of (N, V) logits and N class indices, by one pass over the logits.

    With s = logits, or softcap * tanh(logits / softcap), lse = log(sum(exp(s))), and w the weights, ones by
    default, a row's loss is (1 - label_smoothing) * w[target] * (lse - s[target]) + label_smoothing * mean(
    w * (lse - s)) + z_loss * lse^2. A row whose target is ignore_index has a loss and an lse of 0, and a
    gradient of 0; its logits count for nothing. A target outside [0, V) that is not ignore_index gives NaN:
    it is not checked, and no memory outside the row is read.

    logits: float16, bfloat16, float32 or float64, in any strides: fastest with a first or a last one of 1.
    target: int64 or int32. weight: (V,), of the dtype of the logits, or float32 for narrower ones; it has no
    gradient, and z_loss is not weighted. reduction: "none" for N losses; "sum"; "mean", the sum over the
    number of rows that are not ignored, or over the sum of w[target] of those (NaN where it is 0 / 0). The
    sums are torch's over N numbers, in one order: no atomics.

    Answers the loss in float32 (float64 for float64), where torch rounds to the dtype of the logits; with
    `return_lse` also lse, (N,), in the same. The gradient of the logits has their dtype.

    Raises RankError, ShapeError, DtypeError, ParameterError or UnsupportedGradientError that name the
    argument. There are no class probabilities here: torch.nn.functional.cross_entropy has them.
    Source: the running maximum and sum of Milakov and Gimelshein 2018; z_loss of Chowdhery et al. 2022;
    label_smoothing of Szegedy et al. 2016, as torch has it.
    """
    name = "cross_entropy"
    check_flag(name, "return_lse", return_lse)
    if reduction not in REDUCTIONS:
        raise ParameterError(name, "reduction", reduction, "one of 'none', 'mean', 'sum'")
    if check_tensor(name, "logits", logits).dim() != 2:
        remedy = "Flatten the leading dimensions of both: logits.flatten(0, -2), target.flatten()"
        raise RankError(name, "logits", logits.dim(), "2: (rows, classes)", remedy)
    if isinstance(target, Tensor) and target.dtype == torch.int32:
        target = target.long()
    weight = None if weight is None else widened(name, "weight", weight, logits)
    loss, lse = _call(logits, target, weight, ignore_index, label_smoothing, softcap, z_loss)
    loss = reduced(loss, target, weight, ignore_index, reduction)
    return (loss, lse) if return_lse else loss


def widened(op: str, name: str, weight: Tensor, logits: Tensor) -> Tensor:
    """The weights of the classes in the dtype of the losses. DtypeError where theirs is neither that nor the
    logits'; ShapeError where they are not a number per class."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    if check_tensor(op, name, weight).dtype not in (logits.dtype, wide):
        expected = f"{logits.dtype}, as the logits have" + (f", or {wide}" if wide != logits.dtype else "")
        raise DtypeError(op, name, weight.dtype, expected)
    if weight.shape != logits.shape[-1:]:
        raise ShapeError(op, name, tuple(weight.shape), f"({logits.shape[-1]},), a number per class")
    return weight.to(wide)


def reduced(loss: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str) -> Tensor:
    """The losses of the rows, their sum, or their mean weighted by the targets' weights, over the rows that
    are not ignored."""
    if reduction == "none":
        return loss
    total = loss.sum()
    if reduction == "sum":
        return total
    return total / divisor(target, weight, ignore_index)


def divisor(target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """What "mean" divides by: the number of rows that are not ignored, or the weights of their targets."""
    kept = target != ignore_index
    if weight is None:
        return kept.sum()
    # The loss of a target outside the row is NaN already.
    of_rows = weight.detach()[target.clamp(0, len(weight) - 1)]
    return torch.where(kept, of_rows, 0.0).sum()
