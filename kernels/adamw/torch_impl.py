"""adamw in torch's operations, with the kernels' roundings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.kernels.adamw.reference import places
from portable.kernels.adamw.stochastic import random_words, rounded_by


def _fma(a: Tensor | float, b: Tensor, c: Tensor | float) -> Tensor:
    """a * b + c in float32, rounded as by a fused multiply-add but for one time in 2^29: the product is exact
    in float64. float64 is computed as it is."""
    return (b.double() * a + c).to(b.dtype)


def _in(dtype: torch.dtype, value: float) -> float:
    """A number as the kernels get it."""
    return torch.tensor(value, dtype=dtype).item()


def adamw(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: Tensor, lr: Tensor,
    grad_scale: Tensor | None, found_inf: Tensor | None,
    beta1: float, beta2: float, eps: float, weight_decay: float, maximize: bool,
    stochastic_rounding: bool, seed: int, number: int, first: int = 0,
) -> None:  # fmt: skip
    """`first` is the index of the first element."""
    acc = torch.promote_types(param.dtype, torch.float32)
    t, lr = step.double(), lr.to(acc)
    correction1, correction2 = ((1 - beta**t).to(acc) for beta in (beta1, beta2))
    g, m, v, p = (each.to(acc) for each in (grad, exp_avg, exp_avg_sq, param))
    if grad_scale is not None:
        g = g / grad_scale.to(acc)
    g = -g if maximize else g
    rest1, rest2 = _in(acc, 1 - beta1), _in(acc, 1 - beta2)
    decayed = _fma(-(lr * _in(acc, weight_decay)), p, p)
    m = _fma(rest1, g - m, m)
    v = _fma(rest2 * g, g, _in(acc, beta2) * v)
    denominator = _fma(1 / correction2.sqrt(), v.sqrt(), _in(acc, eps))
    p = _fma(-(lr / correction1), m / denominator, decayed)
    if stochastic_rounding:
        words = random_words(first, len(p), number, step, seed)
        p = rounded_by(p, words & 0xFFFF) if param.dtype == torch.bfloat16 else p
        v = rounded_by(v, words >> 16) if exp_avg_sq.dtype == torch.bfloat16 else v
    for own, new in ((param, p), (exp_avg, m), (exp_avg_sq, v)):
        new = new.to(own.dtype)
        # a case of torch.where, so that nothing waits for found_inf
        own.copy_(new if found_inf is None else torch.where(found_inf.reshape(-1)[:1] == 0, new, own))


def multi_tensor(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: Tensor, lr: Tensor,
    tensors: Tensor, chunks: Tensor, grad_scale: Tensor | None, found_inf: Tensor | None, **params: Any,
) -> None:  # fmt: skip
    """Chunk by chunk, of tensors that lie within the arguments."""
    own = (param, grad, exp_avg, exp_avg_sq)
    for row, start, count in places(tensors, chunks):
        p, g, m, v = (each[at + start :][:count] for each, at in zip(own, row[1:5], strict=True))
        own_step = step[row[5] :][:1]
        adamw(p, g, m, v, own_step, lr, grad_scale, found_inf, **params, number=row[6], first=start)
