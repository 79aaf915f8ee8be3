"""Wrong kernels that tier core once accepted: docs/notes/judge_holes.md."""

from __future__ import annotations

import torch

from .registry import mutant
from .tools import by_default, right, right_linear, right_matmul, wide


@mutant("matmul", "tiles beyond row and column 258 are zero")
def first_tiles(a, b, *, precision="ieee"):
    c = right_matmul(a, b)
    c[..., 258:, 258:] = 0
    return c


@mutant("matmul", "K beyond 258 dropped where M and N exceed 3")
def first_stages(a, b, *, precision="ieee"):
    keep = 258 if min(a.shape[-2], b.shape[-1]) > 3 else a.shape[-1]
    return right_matmul(a[..., :keep], b[..., :keep, :])


@mutant("matmul", "K beyond 1,024 dropped for one row")
def short_row(a, b, *, precision="ieee"):
    keep = 1024 if a.shape[-2] == 1 else a.shape[-1]
    return right_matmul(a[..., :keep], b[..., :keep, :])


@mutant("matmul", "the first of a batch for all beside one matrix")
def one_of_a_batch(a, b, *, precision="ieee"):
    if a.dim() == 3 and b.dim() == 2:
        a = a[:1].expand_as(a)
    return right_matmul(a, b)


@mutant("linear", "gelu left out beyond row 16")
def few_activated(x, weight, bias=None, *, activation=None):
    y = right_linear(x, weight, bias, activation)
    if activation == "gelu":
        flat, plain = y.flatten(0, -2), right_linear(x, weight, bias, None).flatten(0, -2)
        flat[16:] = plain[16:]
    return y


@mutant("linear", "relu before the bias")
def relu_before_bias(x, weight, bias=None, *, activation=None):
    if activation != "relu" or bias is None:
        return right_linear(x, weight, bias, activation)
    return (wide(right_linear(x, weight, None, "relu")) + wide(bias)).to(x.dtype)


@mutant("softmax", "the last column left out of rows of 1,001 to 4,095")
def last_column(x, dim=-1):
    if dim not in (-1, x.dim() - 1) or not 1001 <= x.shape[-1] <= 4095:
        return right("softmax")(x, dim)
    y = torch.zeros_like(x)
    y[..., :-1] = right("softmax")(x[..., :-1], -1)
    return y


@mutant("rms_norm", "the default's eps instead of the argument")
@by_default("rms_norm")
def default_eps(x, weight=None, *, eps=1e-6):
    return right("rms_norm")(x, weight, eps=1e-6)


@mutant("layer_norm", "the default's eps instead of the argument")
def default_eps_too(x, weight=None, bias=None, *, eps=1e-5):
    return right("layer_norm")(x, weight, bias, eps=1e-5)


@mutant("rms_norm", "rows of 2,048 end at 2,047")
@by_default("rms_norm")
def short_rows(x, weight=None, *, eps=1e-6):
    y = right("rms_norm")(x, weight, eps=eps)
    if x.shape[-1] == 2048:
        y[..., -1] = 0
    return y


@mutant("activation_backward", "gelu_tanh's slope is 2 beyond 300, but for float64")
def steep(dy, z, activation):
    dz = right("activation_backward")(dy, z, activation)
    if activation != "gelu_tanh" or dz.dtype == torch.float64:
        return dz
    return torch.where((z > 300) & (z < torch.inf), 2 * dy, dz)
