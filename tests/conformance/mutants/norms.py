"""Wrong rms_norm and layer_norm."""

from __future__ import annotations

import torch

from .registry import mutant
from .tools import by_default, right, truncated, wide


def _rms(x, weight, eps, mean=None):
    v = wide(x)
    y = v * torch.rsqrt((v.square().mean(-1, keepdim=True) if mean is None else mean) + eps)
    return y if weight is None else y * wide(weight)


@mutant("rms_norm", "eps outside the root")
@by_default("rms_norm")
def eps_outside(x, weight=None, *, eps=1e-6):
    v = wide(x)
    y = v / (v.square().mean(-1, keepdim=True).sqrt() + eps)
    return (y if weight is None else y * wide(weight)).to(x.dtype)


@mutant("rms_norm", "eps left out")
@by_default("rms_norm")
def no_eps(x, weight=None, *, eps=1e-6):
    return _rms(x, weight, 0.0).to(x.dtype)


@mutant("rms_norm", "eps of 1e-5 instead of the argument")
@by_default("rms_norm")
def other_eps(x, weight=None, *, eps=1e-6):
    return _rms(x, weight, 1e-5).to(x.dtype)


@mutant("rms_norm", "rounded before the weight")
@by_default("rms_norm")
def rounded_before_weight(x, weight=None, *, eps=1e-6):
    y = _rms(x, None, eps).to(x.dtype)
    return y if weight is None else (wide(y) * wide(weight)).to(x.dtype)


@mutant("rms_norm", "weight rounded to the input's type")
@by_default("rms_norm")
def rounded_weight(x, weight=None, *, eps=1e-6):
    return _rms(x, None if weight is None else weight.to(x.dtype), eps).to(x.dtype)


@mutant("rms_norm", "weight ignored")
@by_default("rms_norm")
def no_weight(x, weight=None, *, eps=1e-6):
    return _rms(x, None, eps).to(x.dtype)


@mutant("rms_norm", "1 + weight")
@by_default("rms_norm")
def one_plus(x, weight=None, *, eps=1e-6):
    return _rms(x, None if weight is None else 1 + wide(weight), eps).to(x.dtype)


@mutant("rms_norm", "first element of the weight for every column")
@by_default("rms_norm")
def first_weight(x, weight=None, *, eps=1e-6):
    return _rms(x, None if weight is None else weight[:1].expand(weight.shape), eps).to(x.dtype)


@mutant("rms_norm", "divided by n - 1")
@by_default("rms_norm")
def n_minus_one(x, weight=None, *, eps=1e-6):
    mean = wide(x).square().sum(-1, keepdim=True) / max(x.shape[-1] - 1, 1)
    return _rms(x, weight, eps, mean).to(x.dtype)


@mutant("rms_norm", "divided by the padded length")
@by_default("rms_norm")
def padded_length(x, weight=None, *, eps=1e-6):
    mean = wide(x).square().sum(-1, keepdim=True) / (1 << max(x.shape[-1] - 1, 0).bit_length())
    return _rms(x, weight, eps, mean).to(x.dtype)


@mutant("rms_norm", "squares in the input's type")
@by_default("rms_norm")
def narrow_squares(x, weight=None, *, eps=1e-6):
    return _rms(x, weight, eps, wide(x.square()).mean(-1, keepdim=True)).to(x.dtype)


@mutant("rms_norm", "sum in the input's type")
@by_default("rms_norm")
def narrow_sum(x, weight=None, *, eps=1e-6):
    total = torch.zeros_like(x[..., :1]) if x.shape[-1] else torch.zeros((*x.shape[:-1], 1), dtype=x.dtype)
    for part in wide(x).square().split(max(32, x.shape[-1] // 64), -1):
        total = (wide(total) + part.sum(-1, keepdim=True)).to(x.dtype)
    return _rms(x, weight, eps, wide(total) / x.shape[-1] if x.shape[-1] else None).to(x.dtype)


@mutant("rms_norm", "mean subtracted")
@by_default("rms_norm")
def centred(x, weight=None, *, eps=1e-6):
    return _rms(wide(x) - wide(x).mean(-1, keepdim=True), weight, eps).to(x.dtype)


@mutant("rms_norm", "last column left out of the sum")
@by_default("rms_norm")
def short_mask(x, weight=None, *, eps=1e-6):
    mean = wide(x)[..., :-1].square().sum(-1, keepdim=True) / max(x.shape[-1], 1)
    return _rms(x, weight, eps, mean).to(x.dtype)


@mutant("rms_norm", "result truncated, not rounded")
@by_default("rms_norm")
def truncation(x, weight=None, *, eps=1e-6):
    return truncated(_rms(x.double(), None if weight is None else weight.double(), eps), x.dtype)


@mutant("rms_norm", "reciprocal root of 12 bits")
@by_default("rms_norm")
def rough_root(x, weight=None, *, eps=1e-6):
    v = wide(x)
    r = torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
    if r.dtype == torch.float32:
        r = (r.view(torch.int32) & ~0xFFF).view(torch.float32)
    return (v * r if weight is None else v * r * wide(weight)).to(x.dtype)


@mutant("rms_norm", "subnormal inputs flushed")
@by_default("rms_norm")
def flushed(x, weight=None, *, eps=1e-6):
    tiny = x.abs() < torch.finfo(x.dtype).smallest_normal
    return _rms(torch.where(tiny, torch.zeros_like(x), x), weight, eps).to(x.dtype)


@mutant("rms_norm", "mean square of the batch: a row depends on the others")
@by_default("rms_norm")
def shared_mean(x, weight=None, *, eps=1e-6):
    return _rms(x, weight, eps, wide(x).square().mean()).to(x.dtype)


@mutant("rms_norm", "zeros left out of the count")
@by_default("rms_norm")
def zeros_not_counted(x, weight=None, *, eps=1e-6):
    v = wide(x)
    count = (v != 0).sum(-1, keepdim=True).clamp_min(1)
    return _rms(x, weight, eps, v.square().sum(-1, keepdim=True) / count).to(x.dtype)


@mutant("layer_norm", "variance with n - 1")
def unbiased(x, weight=None, bias=None, *, eps=1e-5):
    return _layer(x, weight, bias, eps, correction=1)


@mutant("layer_norm", "mean not subtracted")
def not_centred(x, weight=None, bias=None, *, eps=1e-5):
    v = wide(x)
    r = torch.rsqrt((v - v.mean(-1, keepdim=True)).square().mean(-1, keepdim=True) + eps)
    return _affine(v * r, weight, bias).to(x.dtype)


@mutant("layer_norm", "mean rounded to the input's type")
def rounded_mean(x, weight=None, bias=None, *, eps=1e-5):
    v = wide(x)
    v = v - wide(v.mean(-1, keepdim=True).to(x.dtype))
    return _affine(v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps), weight, bias).to(x.dtype)


@mutant("layer_norm", "variance as E[x^2] - E[x]^2")
def one_pass(x, weight=None, bias=None, *, eps=1e-5):
    v = wide(x)
    mean = v.mean(-1, keepdim=True)
    variance = (v.square().mean(-1, keepdim=True) - mean.square()).clamp_min(0)
    return _affine((v - mean) * torch.rsqrt(variance + eps), weight, bias).to(x.dtype)


@mutant("layer_norm", "eps outside the root")
def layer_eps_outside(x, weight=None, bias=None, *, eps=1e-5):
    v = wide(x) - wide(x).mean(-1, keepdim=True)
    return _affine(v / (v.square().mean(-1, keepdim=True).sqrt() + eps), weight, bias).to(x.dtype)


@mutant("layer_norm", "bias ignored")
def no_bias(x, weight=None, bias=None, *, eps=1e-5):
    return right("layer_norm")(x, weight, None, eps=eps)


@mutant("layer_norm", "bias added twice")
def bias_twice(x, weight=None, bias=None, *, eps=1e-5):
    y = wide(right("layer_norm")(x, weight, bias, eps=eps))
    return (y if bias is None else y + wide(bias)).to(x.dtype)


@mutant("layer_norm", "bias scaled by the weight")
def scaled_bias(x, weight=None, bias=None, *, eps=1e-5):
    scaled = bias if weight is None or bias is None else bias * weight
    return right("layer_norm")(x, weight, scaled, eps=eps)


@mutant("layer_norm", "bias ignored where the weight is absent")
def coupled(x, weight=None, bias=None, *, eps=1e-5):
    return right("layer_norm")(x, weight, None if weight is None else bias, eps=eps)


@mutant("layer_norm", "masked lanes count in the variance")
def padded_variance(x, weight=None, bias=None, *, eps=1e-5):
    v = wide(x)
    mean = v.mean(-1, keepdim=True)
    extra = (1 << max(x.shape[-1] - 1, 0).bit_length()) - x.shape[-1]
    variance = ((v - mean).square().sum(-1, keepdim=True) + extra * mean.square()) / max(x.shape[-1], 1)
    return _affine((v - mean) * torch.rsqrt(variance + eps), weight, bias).to(x.dtype)


@mutant("layer_norm", "a row of one element gives 0 without the bias")
def single(x, weight=None, bias=None, *, eps=1e-5):
    return torch.zeros_like(x) if x.shape[-1] == 1 else right("layer_norm")(x, weight, bias, eps=eps)


def _affine(y, weight, bias):
    y = y if weight is None else y * wide(weight)
    return y if bias is None else y + wide(bias)


def _layer(x, weight, bias, eps, correction):
    v = wide(x)
    v = v - v.mean(-1, keepdim=True)
    variance = v.square().sum(-1, keepdim=True) / max(x.shape[-1] - correction, 1)
    return _affine(v * torch.rsqrt(variance + eps), weight, bias).to(x.dtype)
