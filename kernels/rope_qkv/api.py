"""`portable.rope_qkv`: the op on the projection's one tensor, whose gradient is one tensor too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_flag, check_tensor, documented
from portable.errors import ParameterError, RankError, ShapeError, UnsupportedGradientError
from portable.kernels.rope.api import rows_of_tokens

_NAME = "rope_qkv"
_op: Any = dispatcher.op("rope_qkv")
_backward_op: Any = dispatcher.op("rope_qkv_backward")


@documented
def rope_qkv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    heads: int,
    kv_heads: int,
    interleaved: bool = False,
) -> Any:
    """Rotary position embedding of the queries and keys of a projection's heads [q | k | v], for training.

    qkv is (batch, tokens, heads + 2 * kv_heads, D), in any strides with a last one of 1. cos, sin, positions
    and interleaved are those of `portable.rope`. Answers (q, k, v): q (batch, tokens, heads, D) and k (batch,
    tokens, kv_heads, D) rotated, and v, shaped as k, as it is; all new and contiguous, so that qkv may be
    freed. Products and sums are in float32, rounded once. The gradient of qkv is one new tensor, written by
    one launch; cos and sin have none.

    There are no second derivatives and no transforms of torch.func: `portable.rope` of views has them. Raises
    RankError, ShapeError, DtypeError or ParameterError (subclasses of PortableError) that name the argument.
    Source: as of rope; heads side by side as in vLLM's and FlashAttention's functions of qkv.
    """
    for name, each in (("qkv", qkv), ("cos", cos), ("sin", sin)):
        check_tensor(_NAME, name, each)
    check_flag(_NAME, "interleaved", interleaved)
    if qkv.dim() != 4:
        expected = "4, as its shape is [batch, tokens, heads + 2 * kv_heads, D]"
        raise RankError(_NAME, "qkv", qkv.dim(), expected)
    for name, number, least in (("heads", heads, 1), ("kv_heads", kv_heads, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ParameterError(_NAME, name, number, f"an int from {least} on")
    if qkv.shape[2] != heads + 2 * kv_heads:
        expected = f"{heads} + 2 * {kv_heads} heads in dimension 2, as `heads` and `kv_heads` say"
        raise ShapeError(_NAME, "qkv", tuple(qkv.shape), expected)
    if cos.dim() == sin.dim() == 3 and positions is None:
        cos, sin, positions = rows_of_tokens(qkv, cos, sin)
    if torch.is_grad_enabled() and (qkv.requires_grad or cos.requires_grad or sin.requires_grad):
        return _Joined.apply(qkv, cos, sin, positions, (heads, kv_heads, kv_heads), interleaved)
    return _op(*qkv.split((heads, kv_heads, kv_heads), 2), cos, sin, positions, interleaved=interleaved)


class _Joined(torch.autograd.Function):
    """The op and its gradient of all heads; torch's of a split would copy three tensors together."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor | None,
        sizes: tuple[int, int, int],
        interleaved: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cos, sin, positions)
        ctx.interleaved = interleaved
        return _op(*qkv.split(sizes, 2), cos, sin, positions, interleaved=interleaved)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, ...]:
        for place, name in ((1, "cos"), (2, "sin")):
            if ctx.needs_input_grad[place]:
                raise UnsupportedGradientError(_NAME, f"argument '{name}' has none")
        dqkv = _backward_op(dq, dk, dv, *ctx.saved_tensors, interleaved=ctx.interleaved)
        return dqkv, None, None, None, None, None
