"""What the Triton kernels of cross_entropy share: a row's loss from its sums, the parts of its gradient."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_loss(
    most, whole, picked, even, weights, weight_ptr, target, legal, length, label_smoothing, z_loss,
    SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr,
):  # fmt: skip
    """(loss, lse) of rows from their maxima, the sums of exponentials about these, the scores of their
    targets, and with SMOOTHING the sums of the scores times their weights and of the weights."""
    log_sum = tl.log(whole)
    lse = most + log_sum
    loss = most - picked
    if weight_ptr is not None:
        loss = tl.load(weight_ptr + target, mask=legal, other=1.0) * (loss + log_sum)
        if SMOOTHING:
            mean = even / length
            of_weight = weights / length
            even_loss = tl.fma(of_weight, log_sum, tl.fma(of_weight, most, -mean))
            loss = tl.fma(label_smoothing, even_loss, (1.0 - label_smoothing) * loss)
    else:
        if SMOOTHING:
            mean = even / length
            loss = tl.fma(label_smoothing, most - mean, (1.0 - label_smoothing) * loss)
        loss += log_sum
    if Z_LOSS:
        loss = tl.fma(z_loss * lse, lse, loss)
    return loss, lse


@triton.jit
def row_gradient(
    row, count, length, dloss_ptr, dlse_ptr, target_ptr, weight_ptr, weight_mean_ptr, lse_ptr,
    ignore_index, label_smoothing, z_loss, SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr,
):  # fmt: skip
    """(target, kept, upstream, lse, own, factor) of rows. With p = exp(score - lse), o = (1 - smoothing) *
    weight[target] and m = smoothing * weight_mean the gradient is (dloss * ((o + m + 2 * z_loss * lse) * p -
    o * one-hot - smoothing * weight / classes) + dlse * p) * score': `factor` is what p is multiplied by,
    `own` is o, `upstream` is dloss, NaN where the target is outside the row; ignored rows are not `kept`."""
    target = tl.load(target_ptr + row, mask=row < count, other=ignore_index).to(tl.int64)
    kept = target != ignore_index
    upstream = tl.load(dloss_ptr + row, mask=kept, other=0.0)
    lse = tl.load(lse_ptr + row, mask=kept, other=0.0)
    outside = (target < 0) | (target >= length)
    upstream = tl.where(kept & outside, float("nan"), upstream)
    own = 1.0 - label_smoothing
    factor = upstream
    if (weight_ptr is not None) or (weight_mean_ptr is not None):
        mean = 1.0
        if weight_ptr is not None:
            own *= tl.load(weight_ptr + target, mask=kept & (outside == 0), other=1.0)
        if weight_mean_ptr is not None:
            mean = tl.load(weight_mean_ptr)
        both = own + label_smoothing * mean if SMOOTHING else own
        factor *= tl.fma(2.0 * z_loss, lse, both)
    elif Z_LOSS:
        factor *= tl.fma(2.0 * z_loss, lse, 1.0)
    if dlse_ptr is not None:
        factor += tl.load(dlse_ptr + row, mask=kept, other=0.0)
    return target, kept, upstream, lse, own, factor
