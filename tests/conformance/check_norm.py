"""A right rms_norm, a wrong one, and `check` of functions like them on the CPU."""

from __future__ import annotations

import torch

from portable.conformance import check

NORM = "rms_norm/float32/N=33,lead=3x5/normal/contiguous"
BARE = "rms_norm/float32/N=65,lead=4,no=weight/normal/padded"
EPS = "rms_norm/float32/N=65,lead=4,eps=0.1/normal/contiguous"
GRAD = "rms_norm/float32/N=33,lead=3x5/normal/contiguous/grad"
SOFTMAX = "softmax/float32/N=33,lead=3x5/normal/contiguous"
MATMUL = "matmul/float32/M=33,N=31,K=65/normal/transposed"


def norm(x, weight=None, eps=1e-6):
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.float()).to(x.dtype)


def judged(function, *cases, op="rms_norm", **options):
    return check(function, op, "cpu", cases=cases or (NORM,), **options)


def state(function, *cases, **options) -> str:
    return judged(function, *cases, **options).results[0].state


def zeros(x, weight=None):
    return torch.zeros_like(x)


def raising(error):
    def function(x, weight):
        raise error

    return function
