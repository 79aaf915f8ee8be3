"""Wrong ways of rms_norm's weight_offset and cast_before_weight, and wrong sums before a norm."""

from __future__ import annotations

import torch

from .registry import Edit, mutant, source
from .tools import right, wide

CUDA = "rms_norm/rms_norm.cu"


@mutant("rms_norm", "weight_offset ignored")
def no_offset(x, weight=None, *, weight_offset=0.0, **settings):
    return right("rms_norm")(x, weight, **settings)


@mutant("rms_norm", "weight_offset added in the weight's type")
def narrow_offset(x, weight=None, *, weight_offset=0.0, **settings):
    if weight is not None and weight_offset:
        weight = weight + weight_offset
    return right("rms_norm")(x, weight, **settings)


@mutant("rms_norm", "weight_offset added to the product")
def late_offset(x, weight=None, *, weight_offset=0.0, **settings):
    y = right("rms_norm")(x, weight, **settings)
    return y if weight is None or not weight_offset else (wide(y) + weight_offset).to(x.dtype)


@mutant("rms_norm", "cast_before_weight ignored")
def no_cast(x, weight=None, *, cast_before_weight=False, **settings):
    return right("rms_norm")(x, weight, **settings)


@mutant("rms_norm", "cast_before_weight rounds to the weight's type")
def wrong_cast(x, weight=None, *, cast_before_weight=False, weight_offset=0.0, eps=1e-6):
    if weight is None or not cast_before_weight:
        return right("rms_norm")(x, weight, weight_offset=weight_offset, eps=eps)
    y = wide(x) * torch.rsqrt(wide(x).square().mean(-1, keepdim=True) + eps)
    return (wide(y.to(weight.dtype)) * (wide(weight) + weight_offset)).to(x.dtype)


@mutant("rms_norm_backward", "weight_offset forgotten in dx")
def plain_dx(dy, x, weight=None, *, weight_offset=0.0, **settings):
    return right("rms_norm_backward")(dy, x, weight, **settings)


@mutant("rms_norm_backward", "dweight scaled by 1 + weight_offset")
def scaled_dweight(dy, x, weight=None, *, weight_offset=0.0, **settings):
    dx, dweight = right("rms_norm_backward")(dy, x, weight, weight_offset=weight_offset, **settings)
    return dx, dweight * (1 + weight_offset)


@mutant("rms_norm_backward", "dweight takes values not rounded before the weight")
def smooth_dweight(dy, x, weight=None, *, cast_before_weight=False, **settings):
    return right("rms_norm_backward")(dy, x, weight, **settings)


@mutant("fused_add_rms_norm", "norm of the sum before it is rounded")
def wide_sum(x, residual, weight=None, **settings):
    _, total = right("fused_add_rms_norm")(x, residual, weight, **settings)
    if x.dtype not in (torch.bfloat16, torch.float16):
        return right("fused_add_rms_norm")(x, residual, weight, **settings)
    wide_weight = None if weight is None else wide(weight)
    return right("rms_norm")(wide(x) + wide(residual), wide_weight, **settings).to(x.dtype), total


@mutant("fused_add_rms_norm", "sum rounded twice: float16 by way of bfloat16")
def rounded_twice(x, residual, weight=None, **settings):
    y, total = right("fused_add_rms_norm")(x, residual, weight, **settings)
    return y, total.bfloat16().to(x.dtype) if x.dtype == torch.float16 else total


@mutant("fused_add_rms_norm", "new_residual is x")
def unsummed(x, residual, weight=None, **settings):
    return right("fused_add_rms_norm")(x, residual, weight, **settings)[0], x.clone()


@mutant("fused_add_rms_norm", "new_residual written over residual as well")
def in_place(x, residual, weight=None, **settings):
    y, total = right("fused_add_rms_norm")(x, residual, weight, **settings)
    residual.copy_(total)
    return y, total


@mutant("fused_add_rms_norm", "new_residual is the memory of residual")
def aliased(x, residual, weight=None, **settings):
    y, total = right("fused_add_rms_norm")(x, residual, weight, **settings)
    return y, residual.copy_(total)


@mutant("fused_add_rms_norm", "results swapped")
def swapped(x, residual, weight=None, **settings):
    return right("fused_add_rms_norm")(x, residual, weight, **settings)[::-1]


@mutant("fused_add_rms_norm_backward", "dnew_residual left out")
def unadded(dy, x, dnew_residual, weight=None, **settings):
    return right("rms_norm_backward")(dy, x, weight, **settings)


@mutant("fused_add_rms_norm_backward", "dnew_residual added to the rounded dx")
def added_late(dy, x, dnew_residual, weight=None, **settings):
    dx, dweight = right("rms_norm_backward")(dy, x, weight, **settings)
    return dx + dnew_residual, dweight


@mutant("fused_add_rms_norm_backward", "dnew_residual normalized with dy")
def added_early(dy, x, dnew_residual, weight=None, **settings):
    return right("rms_norm_backward")(dy + dnew_residual, x, weight, **settings)


source(
    *("fused_add_rms_norm_backward", "cpp", "gfx942", "another row's dnew_residual"),
    Edit(CUDA, "(rows - left + row_slot()) * dnew_residual_stride", "(rows - left) * dnew_residual_stride"),
)
source(
    *("rms_norm", "cpp", "gfx942", "the sign of weight_offset turned"),
    Edit("_lib/rows/columns.h", "weight + float_of(WEIGHT_OFFSET)", "weight - float_of(WEIGHT_OFFSET)"),
)
