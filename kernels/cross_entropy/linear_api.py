"""`linear_cross_entropy`: the loss of a language model's head without a second tensor as large as its logits,
and mostly without all of them in memory.

This folder's op makes the losses of logits, and the gradient of the logits is written over them. All rows
go through at once where that takes no more memory, else in chunks. The logits of all rows lie in the memory
of the weight's gradient, as many as fit: a class's logits in its row, until products of some classes each
put the gradient in their place. A caller who has memory for the logits of all rows may say so. Of chunks
the forward pass makes the gradients too, from the logits at hand, where one number is to be differentiated;
else the backward pass makes the logits again, so that between the passes only lse is kept. Rows whose
logits are made again have their gradient of x from the first ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import portable
from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_flag, check_tensor, documented
from portable.errors import DtypeError, ParameterError, RankError, ShapeError, UnsupportedGradientError
from portable.kernels.cross_entropy import api
from portable.kernels.cross_entropy.gradient import weight_mean
from portable.layout import ceil_div

_op: Any = dispatcher.op("cross_entropy")
_backward_op: Any = dispatcher.op("cross_entropy_backward")

CHUNK_ELEMENTS = 2**27
"""Logits of a chunk, at most, where nothing else is asked for: 256 MiB in 16 bits."""
GATHERED_ELEMENTS = 2**25
LEAST_CLASSES, MOST_CLASSES, CLASSES_AGAIN = 1024, 4096, 8192
"""Of the logits' gradient, how many one product of the weight's gradient takes, and of how many classes; of
how many where logits are made again. With 4096 columns of x, 1024 classes are a wave of tiles of 128 x 256 on
an H200, and 4096 are four."""
_ROWS = 128
_ALIGNED = 8
"""Rows of logits that lie side by side begin at multiples of so many elements: 16 bytes in 16 bits."""
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
    """cross_entropy(x @ weight.T, target, ...), with few of the logits in memory.

    x is (N, H), weight (V, H) of the same dtype, target (N,), int64 or int32. The logits are rounded to
    that dtype, as those of `portable.linear` are; the other arguments and the results are those of
    `portable.cross_entropy`, whose `weight` is `class_weight` here, (V,). chunk_rows: how many rows'
    logits may be in memory of their own; None: as many as make 2^27 logits, in multiples of 128, and at
    least 128; for the gradient of the weight 3 * H more in 16 bits, 2 * H in wider ones. In a compiled
    graph always all.

    With N or more, and in a compiled graph, the logits of all rows are in memory of their own: three
    products, the fastest way. Else, where the weight has a gradient, the logits of H rows lie in its
    memory, until it takes their place. Those of the other rows are kept from the forward to the backward
    pass, where they are at most chunk_rows: three products in all. Else the backward pass makes them again,
    for some classes at a time, a fourth product for these rows alone. Their part of the gradient of x is
    then made in the forward pass, for the gradient of the losses that follows from `reduction`; the
    backward pass multiplies it by what that is of its own and rounds again (exact for powers of two). With
    return_lse, and in a second backward pass, it is a sum in float32 of products in x's dtype. A second
    backward pass makes all logits again. Call it under torch.no_grad() where no gradient is wanted. All
    sums have one order.

    With label_smoothing or class_weight all classes count in every logit's gradient, so that more rows
    than chunk_rows go by chunks. With reduction "mean" or "sum", without return_lse, and not in float16,
    the forward pass then computes the gradients of x and weight, for a gradient of 1, which the backward
    pass multiplies by its own and rounds again (exact for powers of two); else four products, as for the
    gradient of x alone.

    Memory besides inputs, gradients and N losses: all logits, those of the rows beyond H, or chunk_rows * V
    elements in the forward pass; in the backward pass 2^25 elements or 1024 * N, 8192 * N where logits are
    made again (with return_lse 4096 * N, the gradient of x in float32 and one part of it). By chunks
    chunk_rows * V, the gradient of the weight in float32, and one chunk's part of it. Under torch.compile
    twice the logits.

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
    whole_number = isinstance(chunk_rows, int) and not isinstance(chunk_rows, bool)
    if chunk_rows is not None and (not whole_number or chunk_rows < 1):
        raise ParameterError(_NAME, "chunk_rows", chunk_rows, "an int from 1 on, or None")
    if torch.is_autocast_enabled(x.device.type):
        lower = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(lower), weight.to(lower)
    if weight.dtype != x.dtype:
        raise DtypeError(_NAME, "weight", weight.dtype, f"{x.dtype}, as x has")
    target = target.long() if target.dtype == torch.int32 else target
    if class_weight is not None:
        class_weight = api.widened(_NAME, "class_weight", class_weight, weight[:, :1].T)
    params = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    params |= {"softcap": softcap, "z_loss": z_loss}
    wanted = [torch.is_grad_enabled() and each.requires_grad for each in (x, weight)]
    rows = _chunk_rows(x, weight, chunk_rows, wanted)
    by_classes = (class_weight is None and label_smoothing == 0.0) or len(x) - weight.shape[1] <= rows
    beside = torch.compiler.is_compiling() or (chunk_rows is not None and rows >= len(x))
    if wanted[1] and by_classes and not beside:
        ahead = None if return_lse or not wanted[0] else reduction
        loss, lse = _InGradient.apply(x, weight, target, class_weight, params, rows, ahead)
    elif any(wanted) and rows >= len(x):
        loss, lse = _Whole.apply(x, weight, target, class_weight, params)
    elif any(wanted) and reduction != "none" and not return_lse and x.dtype != torch.float16:
        return _Reduced.apply(x, weight, target, class_weight, params, rows, reduction, wanted)
    else:
        loss, lse = _Chunked.apply(x, weight, target, class_weight, params, rows)
    loss = api.reduced(loss, target, class_weight, ignore_index, reduction)
    return (loss, lse) if return_lse else loss


def _chunk_rows(x: Tensor, weight: Tensor, given: int | None, wanted: Sequence[bool] = (False, False)) -> int:
    """Rows of a chunk, of which the gradients of x and of the weight are `wanted`. Where that of the weight
    is, all, if their logits but for those that lie in that gradient take no more memory than a chunk's,
    the gradient's sum in float32 or wider and a part of it. Of a compiled graph all, whose chunks' logits
    would all be there at once."""
    if given is not None:
        return given
    (rows, columns), size = x.shape, weight.element_size()
    chunk = max(CHUNK_ELEMENTS // max(len(weight), 1) // _ROWS, 1) * _ROWS
    if any(wanted) and torch.compiler.is_compiling():
        return max(rows, 1)
    if not wanted[1]:
        return max(rows, 1) if rows <= chunk else chunk
    sums = columns * (max(size, 4) + size) // size
    return max(rows, 1) if rows - columns <= chunk + sums else chunk


def _dlogits(logits: Tensor, dloss: Tensor, *given: Any, **params: Any) -> Tensor:
    """The gradient of the logits, over them; in a compiled graph, which knows no such call, beside them."""
    over = None if torch.compiler.is_compiling() else logits
    return _backward_op(dloss, logits, *given, out=over, **params)


def _usual_dloss(
    x: Tensor, target: Tensor, class_weight: Tensor | None, ignore_index: int, reduction: str
) -> Tensor:
    """The gradient of each row's loss where that of their `reduction` is 1; in float16, which may not hold
    what a mean makes of it, 1."""
    ones = torch.ones(len(x), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    if reduction != "mean" or x.dtype == torch.float16:
        return ones
    return ones / api.divisor(target, class_weight, ignore_index)


def _refuse_class_weight(ctx: Any) -> None:
    if ctx.needs_input_grad[3]:
        raise UnsupportedGradientError(_NAME, "argument 'class_weight' has none")


class _Sum:
    """Of products in 16 bits, in float32."""

    def __init__(self) -> None:
        self._total: Tensor | None = None

    def add(self, part: Tensor) -> None:
        if self._total is None:
            self._total = part.to(torch.promote_types(part.dtype, torch.float32))
        else:
            self._total += part

    def rounded(self, like: Tensor) -> Tensor:
        """The sum in the dtype of `like`; zeros of its shape where nothing was added."""
        return torch.zeros_like(like) if self._total is None else self._total.to(like.dtype)


class _Gradients:
    """Of x and weight, where wanted, summed up by chunks."""

    def __init__(self, x: Tensor, weight: Tensor, wanted: Sequence[bool]):
        self._x, self._weight = x, weight
        self.x = torch.empty_like(x) if wanted[0] else None
        self._sum = _Sum() if wanted[1] else None

    def add(self, here: slice, dlogits: Tensor) -> None:
        """Those of the rows `here`."""
        if self.x is not None:
            self.x[here] = portable.matmul(dlogits, self._weight)
        if self._sum is not None:
            self._sum.add(portable.matmul(dlogits.mT, self._x[here]))

    @property
    def weight(self) -> Tensor | None:
        return None if self._sum is None else self._sum.rounded(self._weight)


class _Logits:
    """Logits in the memory of the weight's `gradient`, of as many rows as it has columns, and those of the
    rows beyond, if these are at most `beside`, in memory of their own: `blocks`, (some rows, their logits
    (classes, rows)), at most two. Those of the rows `again` are made where they are asked for."""

    def __init__(self, x: Tensor, weight: Tensor, beside: int):
        self._x, self._weight = x, weight
        self.gradient = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
        inside = min(weight.shape[1], len(x))
        self.blocks = [(slice(0, inside), self.gradient[:, :inside])]
        self.again = slice(inside, len(x))
        if 0 < len(x) - inside <= beside:
            self.blocks.append((self.again, self._room(len(weight), len(x) - inside)))
            self.again = slice(len(x), len(x))
        for rows, logits in self.blocks:
            portable.matmul(weight, x[rows].mT, out=logits)

    def _room(self, classes: int, rows: int) -> Tensor:
        width = ceil_div(rows, _ALIGNED) * _ALIGNED
        return torch.empty(classes, width, dtype=self._weight.dtype, device=self._weight.device)[:, :rows]

    def make_gradient(self, upstream: _Upstream, dx: Tensor | None) -> Tensor:
        """That of the weight, once the blocks hold the gradient of the logits, which it overwrites. A class's
        is one product over all rows. The gradient of x in the rows `again` goes into `dx`, if given."""
        classes, rows = len(self._weight), max(len(self._x), 1)
        step = max(GATHERED_ELEMENTS // rows // _ROWS * _ROWS, LEAST_CLASSES)
        step = min(step, MOST_CLASSES, classes)
        if self.again.start < len(self._x):
            step = min(CLASSES_AGAIN if dx is None else MOST_CLASSES, classes)
        room, total = self._room(step, len(self._x)), _Sum()
        for start in range(0, classes, step):
            here = slice(start, min(start + step, classes))
            gathered = room[: here.stop - start]
            for rows_of_block, dlogits in self.blocks:
                _copy(gathered[:, rows_of_block], dlogits[here])
            if self.again.start < len(self._x):
                made = gathered[:, self.again]
                portable.matmul(self._weight[here], self._x[self.again].mT, out=made)
                upstream.write(made.mT, self.again, here, classes)
                if dx is not None:
                    total.add(portable.matmul(made.mT, self._weight[here]))
            portable.matmul(gathered, self._x, out=self.gradient[here])
        if dx is not None and self.again.start < len(self._x):
            dx[self.again] = total.rounded(dx[self.again])
        return self.gradient


def _copy(to: Tensor, of: Tensor) -> None:
    """`of` into `to`, matrices of rows with gaps, by 16 bytes where they are made of such: torch copies an
    element of any size in the same time."""
    size = of.element_size()
    places = (of.shape[1], of.stride(0), to.stride(0), of.storage_offset(), to.storage_offset())
    if all(place * size % 16 == 0 for place in places):
        to, of = to.view(torch.complex128), of.view(torch.complex128)
    to.copy_(of)


class _Upstream:
    """What the gradient of the logits is made of beside them."""

    def __init__(
        self, dloss: Tensor, target: Tensor, lse: Tensor, dlse: Tensor | None, class_weight: Tensor | None,
        params: dict[str, Any],
    ):  # fmt: skip
        self._dloss, self._target, self._lse, self._dlse = dloss, target, lse, dlse
        self._class_weight, self._params = class_weight, params
        self._mean = weight_mean(class_weight, params["label_smoothing"])

    def write_all(self, logits: Tensor, rows: slice) -> None:
        """The gradient of the logits of some rows, over them."""
        of_lse = None if self._dlse is None else self._dlse[rows]
        given = self._target[rows], self._lse[rows], of_lse, self._class_weight, self._mean
        _dlogits(logits, self._dloss[rows], *given, **self._params)

    def write(self, logits: Tensor, rows: slice, classes: slice, count: int) -> None:
        """The same of some of the `count` classes, without weights or smoothing. Where a row's target is none
        of these, only the gradient of its lse counts: that of the loss adds to it."""
        target, dloss, lse = self._target[rows], self._dloss[rows], self._lse[rows]
        dlse = dloss * (1.0 + 2.0 * self._params["z_loss"] * lse)
        dlse = torch.where((target >= 0) & (target < count), dlse, torch.nan)
        if self._dlse is not None:
            dlse = dlse + self._dlse[rows]
        here = (target >= classes.start) & (target < classes.stop)
        moved = torch.where(here, target - classes.start, 0)
        moved = torch.where(target == self._params["ignore_index"], -1, moved)
        dloss = torch.where(here, dloss, 0.0)
        params = {
            "ignore_index": -1,
            "label_smoothing": 0.0,
            "softcap": self._params["softcap"],
            "z_loss": 0.0,
        }
        _dlogits(logits, dloss, moved, lse, dlse - dloss, None, None, **params)


class _InGradient(torch.autograd.Function):
    """Losses and lse, where the weight has a gradient. The logits, but those of `again`, are kept for the
    backward pass, which makes of their memory the weight's gradient; another one makes them again. `ahead`:
    the reduction of the losses, where nothing else has a gradient; the first logits of `again` then make
    their gradient of x."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        class_weight: Tensor | None,
        params: dict[str, Any],
        rows: int,
        ahead: str | None,
    ) -> tuple[Tensor, Tensor]:
        dx = usual = None
        with torch.autocast(x.device.type, enabled=False):
            logits = _Logits(x, weight, rows)
            parts = [_op(some.mT, target[here], class_weight, **params) for here, some in logits.blocks]
            if ahead is not None and logits.again.start < len(x):
                dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
                usual = _usual_dloss(x, target, class_weight, params["ignore_index"], ahead)
            for start in range(logits.again.start, len(x), rows):
                here = slice(start, start + rows)
                some = portable.linear(x[here], weight)
                parts.append(_op(some, target[here], class_weight, **params))
                if dx is not None and usual is not None:
                    upstream = _Upstream(usual[here], target[here], parts[-1][1], None, None, params)
                    upstream.write_all(some, slice(None))
                    portable.matmul(some, weight, out=dx[here])
                del some  # before the next ones
        loss, lse = parts[0] if len(parts) == 1 else (torch.cat(each) for each in zip(*parts, strict=True))
        ctx.save_for_backward(x, weight, target, lse, class_weight)
        ctx.params, ctx.rows, ctx.logits, ctx.dx, ctx.usual = params, rows, logits, dx, usual
        ctx.set_materialize_grads(False)
        return loss, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dloss: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        _refuse_class_weight(ctx)
        x, weight, target, lse, class_weight = ctx.saved_tensors
        logits = _Logits(x, weight, ctx.rows) if ctx.logits is None else ctx.logits
        dx, ctx.logits, ctx.dx = ctx.dx, None, None
        dloss = torch.zeros_like(lse) if dloss is None else dloss
        upstream = _Upstream(dloss, target, lse, dlse, class_weight, ctx.params)
        ahead = dx is not None
        if dx is not None:
            ratio = torch.where(target == ctx.params["ignore_index"], 1.0, dloss / ctx.usual)
            dx[logits.again] *= ratio[logits.again, None]
        elif ctx.needs_input_grad[0]:
            dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        for rows, some in logits.blocks:
            upstream.write_all(some.mT, rows)
            if dx is not None:
                portable.matmul(some.mT, weight, out=dx[rows])
        found = logits.make_gradient(upstream, None if ahead else dx)
        return dx, found, None, None, None, None, None


class _Whole(torch.autograd.Function):
    """Losses and lse of all rows at once, where the weight has no gradient, the logits have memory of their
    own, or in a compiled graph. The logits are kept for the backward pass, which writes their gradient over
    them; another one makes them again."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        class_weight: Tensor | None,
        params: dict[str, Any],
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(x.device.type, enabled=False):
            logits = portable.linear(x, weight)
            loss, lse = _op(logits, target, class_weight, **params)
        ctx.save_for_backward(x, weight, target, lse, class_weight, logits)
        ctx.params, ctx.overwritten = params, False
        ctx.set_materialize_grads(False)
        return loss, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dloss: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        _refuse_class_weight(ctx)
        x, weight, target, lse, class_weight, logits = ctx.saved_tensors
        if ctx.overwritten:
            logits = portable.linear(x, weight)
        if not torch.compiler.is_compiling():
            ctx.overwritten = True
        mean = weight_mean(class_weight, ctx.params["label_smoothing"])
        dloss = torch.zeros_like(lse) if dloss is None else dloss
        dlogits = _dlogits(logits, dloss, target, lse, dlse, class_weight, mean, **ctx.params)
        dx = portable.matmul(dlogits, weight) if ctx.needs_input_grad[0] else None
        dweight = portable.matmul(dlogits.mT, x) if ctx.needs_input_grad[1] else None
        return dx, dweight, None, None, None


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
        dloss = _usual_dloss(x, target, class_weight, params["ignore_index"], reduction)
        gradients, losses = _Gradients(x, weight, wanted), []
        with torch.autocast(x.device.type, enabled=False):
            for start in range(0, len(x), rows):
                here = slice(start, start + rows)
                logits = portable.linear(x[here], weight)
                loss, lse = _op(logits, target[here], class_weight, **params)
                gradients.add(
                    here, _dlogits(logits, dloss[here], target[here], lse, None, class_weight, mean, **params)
                )
                del logits  # before the next ones
                losses.append(loss)
        ctx.save_for_backward(gradients.x, gradients.weight)
        loss = torch.cat(losses) if losses else dloss
        return api.reduced(loss, target, class_weight, params["ignore_index"], reduction)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_class_weight(ctx)
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
        _refuse_class_weight(ctx)
        x, weight, target, lse, class_weight = ctx.saved_tensors
        mean = weight_mean(class_weight, ctx.params["label_smoothing"])
        dloss = torch.zeros_like(lse) if dloss is None else dloss
        gradients = _Gradients(x, weight, ctx.needs_input_grad[:2])
        for start in range(0, len(x), ctx.rows):
            here = slice(start, start + ctx.rows)
            logits = portable.linear(x[here], weight)
            of_lse = None if dlse is None else dlse[here]
            given = target[here], lse[here], of_lse, class_weight, mean
            gradients.add(here, _dlogits(logits, dloss[here], *given, **ctx.params))
            del logits  # before the next ones
        return gradients.x, gradients.weight, None, None, None, None
