"""`linear_cross_entropy`: the loss of a language model's head without all of its logits in memory.

Rows go through in chunks: `portable.linear` makes a chunk's logits, this folder's op their losses. The
backward pass makes the logits again, so that between the passes only lse is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import portable
from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_flag, check_tensor, documented
from portable.errors import ParameterError, RankError, ShapeError, UnsupportedGradientError
from portable.kernels.cross_entropy import api
from portable.kernels.cross_entropy.gradient import weight_mean

_op: Any = dispatcher.op("cross_entropy")
_backward_op: Any = dispatcher.op("cross_entropy_backward")

CHUNK_ELEMENTS = 2**27
"""Logits of a chunk, at most, where nothing else is asked for: 256 MiB in 16 bits."""
_ROWS = 128
_NAME = "linear_cross_entropy"


@documented
def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    return_lse: bool = False,
    chunk_rows: int | None = None,
) -> Any:
    """cross_entropy(x @ weight.T, target, ...) by chunks of rows, with logits of one chunk in memory.

    x is (N, H), weight (V, H) of the same dtype, target (N,), int64 or int32. A chunk's logits are rounded to
    that dtype, as those of `portable.linear` are; the other arguments and the results are those of
    `portable.cross_entropy`, whose `weight` is `class_weight` here, (V,). chunk_rows: rows of a chunk; None:
    as many as make 2^27 logits, in multiples of 128, and at least 128.

    Memory besides inputs, gradients and N losses: forward chunk_rows * V elements; backward twice that, the
    gradient of the weight in float32, and one chunk's part of it. The backward pass makes the logits again:
    four products in all, where three are made with all logits kept. All sums have one order.

    There are no second derivatives and no transforms of torch.func. Under autocast both are converted to its
    dtype. Raises RankError, ShapeError, DtypeError or ParameterError that name the argument, and
    UnsupportedGradientError for a gradient of class_weight.
    Source: chunks as in Liger Kernel's fused linear cross-entropy (Hsu et al. 2024).
    """
    check_flag(_NAME, "return_lse", return_lse)
    if reduction not in api.REDUCTIONS:
        raise ParameterError(_NAME, "reduction", reduction, "one of 'none', 'mean', 'sum'")
    for name, tensor in (("x", x), ("weight", weight)):
        if check_tensor(_NAME, name, tensor).dim() != 2:
            raise RankError(_NAME, name, tensor.dim(), "2: x is (rows, H), weight (classes, H)")
    check_tensor(_NAME, "target", target)
    if weight.shape[1] != x.shape[1]:
        raise ShapeError(_NAME, "weight", tuple(weight.shape), f"(classes, {x.shape[1]}), as x has")
    if target.shape != x.shape[:1]:
        raise ShapeError(_NAME, "target", tuple(target.shape), f"({len(x)},), a class for each row of x")
    if chunk_rows is None:
        chunk_rows = max(CHUNK_ELEMENTS // max(len(weight), 1) // _ROWS, 1) * _ROWS
    elif isinstance(chunk_rows, bool) or not isinstance(chunk_rows, int) or chunk_rows < 1:
        raise ParameterError(_NAME, "chunk_rows", chunk_rows, "an int from 1 on, or None")
    if torch.is_autocast_enabled(x.device.type):
        lower = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(lower), weight.to(lower)
    target = target.long() if target.dtype == torch.int32 else target
    if class_weight is not None:
        class_weight = api.widened(_NAME, "class_weight", class_weight, weight[:, :1].T)
    params = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    params |= {"softcap": softcap, "z_loss": z_loss}
    loss, lse = _Chunked.apply(x, weight, target, class_weight, params, chunk_rows)
    loss = api.reduced(loss, target, class_weight, ignore_index, reduction)
    return (loss, lse) if return_lse else loss


class _Chunked(torch.autograd.Function):
    """Losses and lse of the rows."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        class_weight: Tensor | None,
        params: dict[str, Any],
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(x.device.type, enabled=False):
            parts = [
                _op(portable.linear(some, weight), of_some, class_weight, **params)
                for some, of_some in zip(x.split(rows), target.split(rows), strict=True)
            ]
        loss, lse = (torch.cat(each) for each in zip(*parts, strict=True))
        ctx.save_for_backward(x, weight, target, lse, class_weight)
        ctx.params, ctx.rows = params, rows
        ctx.set_materialize_grads(False)
        return loss, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dloss: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.needs_input_grad[3]:
            raise UnsupportedGradientError(_NAME, "argument 'class_weight' has none")
        x, weight, target, lse, class_weight = ctx.saved_tensors
        mean = weight_mean(class_weight, ctx.params["label_smoothing"])
        dloss = torch.zeros_like(lse) if dloss is None else dloss
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        dweight: Tensor | None = None
        for start in range(0, len(x), ctx.rows):
            here = slice(start, start + ctx.rows)
            logits = portable.linear(x[here], weight)
            of_lse = None if dlse is None else dlse[here]
            weights = class_weight, mean
            dlogits = _backward_op(
                dloss[here], logits, target[here], lse[here], of_lse, *weights, **ctx.params
            )
            del logits  # before the products' results
            if dx is not None:
                dx[here] = portable.matmul(dlogits, weight)
            if ctx.needs_input_grad[1]:
                part = portable.matmul(dlogits.mT, x[here])
                if dweight is None:
                    whole = len(x) <= ctx.rows
                    dweight = part if whole else part.to(torch.promote_types(part.dtype, torch.float32))
                else:
                    dweight += part
        if ctx.needs_input_grad[1]:
            dweight = torch.zeros_like(weight) if dweight is None else dweight.to(weight.dtype)
        return dx, dweight, None, None, None, None
