"""Wrong gradients: the backward ops, judged by their own cases."""

from __future__ import annotations

import torch

from .registry import mutant
from .tools import by_default, right, wide


@mutant("softmax_backward", "sign turned")
def sign(dy, y, dim):
    return -right("softmax_backward")(dy, y)


@mutant("softmax_backward", "sum left out")
def no_sum(dy, y, dim):
    return dy * y


@mutant("softmax_backward", "sum of dy, not of dy * y")
def sum_of_dy(dy, y, dim):
    d, o = wide(dy), wide(y)
    return (o * (d - d.sum(-1, keepdim=True))).to(y.dtype)


@mutant("softmax_backward", "dy * y rounded before the sum")
def rounded_product(dy, y, dim):
    d, o = wide(dy), wide(y)
    return (o * (d - wide(dy * y).sum(-1, keepdim=True))).to(y.dtype)


@mutant("softmax_backward", "difference rounded before the product")
def rounded_difference(dy, y, dim):
    d, o = wide(dy), wide(y)
    return (d - (d * o).sum(-1, keepdim=True)).to(y.dtype) * y


@mutant("swiglu_backward", "slope of the sigmoid left out")
def no_slope(dy, gate, up):
    d, g, u = wide(dy), wide(gate), wide(up)
    s = torch.sigmoid(g)
    return (d * u * s).to(gate.dtype), (d * g * s).to(gate.dtype)


@mutant("swiglu_backward", "outputs swapped")
def swapped(dy, gate, up):
    return right("swiglu_backward")(dy, gate, up)[::-1]


@mutant("swiglu_backward", "one output missing")
def missing(dy, gate, up):
    return right("swiglu_backward")(dy, gate, up)[0]


@mutant("rms_norm_backward", "projection left out")
@by_default("rms_norm_backward")
def no_projection(dy, x, weight=None, *, eps=1e-6):
    _, dweight = right("rms_norm_backward")(dy, x, weight, eps=eps)
    v = wide(x)
    g = wide(dy) if weight is None else wide(dy) * wide(weight)
    return (g * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)).to(x.dtype), dweight


@mutant("rms_norm_backward", "last row left out of dweight")
@by_default("rms_norm_backward")
def short_dweight(dy, x, weight=None, *, eps=1e-6):
    dx, dweight = right("rms_norm_backward")(dy, x, weight, eps=eps)
    if weight is not None and x.numel():
        rows, last = dy.reshape(-1, x.shape[-1])[:-1], x.reshape(-1, x.shape[-1])[:-1]
        dweight = right("rms_norm_backward")(rows, last, weight, eps=eps)[1]
    return dx, dweight


@mutant("rms_norm_backward", "dweight summed in the weight's type")
@by_default("rms_norm_backward")
def narrow_dweight(dy, x, weight=None, *, eps=1e-6):
    dx, dweight = right("rms_norm_backward")(dy, x, weight, eps=eps)
    if weight is not None and x.numel():
        total = torch.zeros_like(weight)
        for d, v in zip(
            dy.reshape(-1, x.shape[-1]).split(4), x.reshape(-1, x.shape[-1]).split(4), strict=True
        ):
            total = total + right("rms_norm_backward")(d, v, weight, eps=eps)[1]
        dweight = total
    return dx, dweight


@mutant("rms_norm_backward", "dweight of a vector for no rows not cleared")
@by_default("rms_norm_backward")
def uncleared(dy, x, weight=None, *, eps=1e-6):
    dx, dweight = right("rms_norm_backward")(dy, x, weight, eps=eps)
    return dx, torch.empty_like(dweight) if x.numel() == 0 else dweight


@mutant("layer_norm_backward", "mean of g left out")
def no_mean(dy, x, weight=None, bias=None, *, eps=1e-5):
    _, dweight, dbias = right("layer_norm_backward")(dy, x, weight, bias, eps=eps)
    v = wide(x) - wide(x).mean(-1, keepdim=True)
    r = torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
    g = wide(dy) if weight is None else wide(dy) * wide(weight)
    n = v * r
    return (r * (g - n * (g * n).mean(-1, keepdim=True))).to(x.dtype), dweight, dbias


@mutant("layer_norm_backward", "dbias scaled by the weight")
def scaled_dbias(dy, x, weight=None, bias=None, *, eps=1e-5):
    dx, dweight, dbias = right("layer_norm_backward")(dy, x, weight, bias, eps=eps)
    return dx, dweight, dbias if weight is None or bias is None else dbias * weight


@mutant("layer_norm_backward", "dweight and dbias swapped where both are given")
def swapped_sums(dy, x, weight=None, bias=None, *, eps=1e-5):
    dx, dweight, dbias = right("layer_norm_backward")(dy, x, weight, bias, eps=eps)
    return (dx, dbias, dweight) if weight is not None and bias is not None else (dx, dweight, dbias)


@mutant("layer_norm_backward", "rounded dx added to")
def rounded_dx(dy, x, weight=None, bias=None, *, eps=1e-5):
    dx, dweight, dbias = right("layer_norm_backward")(dy, x, weight, bias, eps=eps)
    half = (wide(dx) / 3).to(dx.dtype)
    return half + (wide(dx) - wide(half)).to(dx.dtype), dweight, dbias
