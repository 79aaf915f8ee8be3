"""`linear_cross_entropy`: the loss of a language model's head without all of its logits in memory.

Rows go through in chunks: `portable.linear` makes a chunk's logits, this folder's op their losses. Where one
number is to be differentiated, the forward pass makes the gradients too, from the logits at hand. Else the
backward pass makes the logits again, so that between the passes only lse is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    as many as make 2^27 logits, in multiples of 128, and at least 128; all, where that takes no more memory.

    With reduction "mean" or "sum", without return_lse, and not in float16, the forward pass computes the
    gradients of x and weight too, for a gradient of 1, which the backward pass multiplies by its own and
    rounds again (exact for powers of two): three products in all. Call it under torch.no_grad() where no
    gradient is wanted. Else the backward pass makes the logits again: four products. All sums have one order.

    Memory besides inputs, gradients and N losses: chunk_rows * V elements, twice that where gradients are
    computed, and with several chunks the gradient of the weight in float32 and one chunk's part of it.

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
        chunk_rows = _chunk_rows(len(x), *weight.shape)
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
    wanted = [torch.is_grad_enabled() and each.requires_grad for each in (x, weight)]
    if any(wanted) and reduction != "none" and not return_lse and x.dtype != torch.float16:
        return _Reduced.apply(x, weight, target, class_weight, params, chunk_rows, reduction, wanted)
    loss, lse = _Chunked.apply(x, weight, target, class_weight, params, chunk_rows)
    loss = api.reduced(loss, target, class_weight, ignore_index, reduction)
    return (loss, lse) if return_lse else loss


def _chunk_rows(rows: int, classes: int, columns: int) -> int:
    """All rows where their logits and the gradients of those, 16-bit, take no more memory than a chunk's, a
    float32 sum of the weight's gradients and a part of it."""
    chunk = max(CHUNK_ELEMENTS // max(classes, 1) // _ROWS, 1) * _ROWS
    return max(rows, 1) if 2 * rows <= 2 * chunk + 3 * columns else chunk


class _Gradients:
    """Of x and weight, where wanted, summed up by chunks: 16-bit parts of the weight's in float32."""

    def __init__(self, x: Tensor, weight: Tensor, wanted: Sequence[bool], rows: int):
        self._x, self._weight, self._whole = x, weight, len(x) <= rows
        self._of_weight = wanted[1]
        self.x = torch.empty_like(x) if wanted[0] else None
        self._sum: Tensor | None = None

    def add(self, here: slice, dlogits: Tensor) -> None:
        """Those of the rows `here`."""
        if self.x is not None:
            self.x[here] = portable.matmul(dlogits, self._weight)
        if not self._of_weight:
            return
        part = portable.matmul(dlogits.mT, self._x[here])
        if self._sum is None:
            self._sum = part if self._whole else part.to(torch.promote_types(part.dtype, torch.float32))
        else:
            self._sum += part

    @property
    def weight(self) -> Tensor | None:
        if not self._of_weight:
            return None
        return torch.zeros_like(self._weight) if self._sum is None else self._sum.to(self._weight.dtype)


class _Reduced(torch.autograd.Function):
    """The sum or mean of the losses. Its forward pass computes the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        class_weight: Tensor | None,
        params: dict[str, Any],
        rows: int,
        reduction: str,
        wanted: list[bool],
    ) -> Tensor:
        mean = weight_mean(class_weight, params["label_smoothing"])
        ones = torch.ones(len(x), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
        dloss = ones
        if reduction == "mean":
            dloss = ones / api.divisor(target, class_weight, params["ignore_index"])
        gradients, losses = _Gradients(x, weight, wanted, rows), []
        with torch.autocast(x.device.type, enabled=False):
            for start in range(0, len(x), rows):
                here = slice(start, start + rows)
                logits = portable.linear(x[here], weight)
                loss, lse = _op(logits, target[here], class_weight, **params)
                dlogits = _backward_op(
                    dloss[here], logits, target[here], lse, None, class_weight, mean, **params
                )
                del logits  # before the products' results
                gradients.add(here, dlogits)
                losses.append(loss)
        ctx.save_for_backward(gradients.x, gradients.weight)
        loss = torch.cat(losses) if losses else ones
        return api.reduced(loss, target, class_weight, params["ignore_index"], reduction)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.needs_input_grad[3]:
            raise UnsupportedGradientError(_NAME, "argument 'class_weight' has none")
        found = [None if each is None else (each * dloss).to(each.dtype) for each in ctx.saved_tensors]
        return *found, None, None, None, None, None, None


class _Chunked(torch.autograd.Function):
    """Losses and lse of the rows. Its backward pass makes the logits again."""

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
        gradients = _Gradients(x, weight, ctx.needs_input_grad[:2], ctx.rows)
        for start in range(0, len(x), ctx.rows):
            here = slice(start, start + ctx.rows)
            logits = portable.linear(x[here], weight)
            of_lse = None if dlse is None else dlse[here]
            weights = class_weight, mean
            dlogits = _backward_op(
                dloss[here], logits, target[here], lse[here], of_lse, *weights, **ctx.params
            )
            del logits  # before the products' results
            gradients.add(here, dlogits)
        return gradients.x, gradients.weight, None, None, None, None
