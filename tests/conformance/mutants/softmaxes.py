"""Wrong softmax and swiglu. Implementations see the op's axis last."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from .registry import mutant
from .tools import chopped, right, truncated, walked, wide


def _softmax(x):
    return torch.softmax(x, -1)


def _parts(x):
    """Numerators and their sum in at least float32; x has elements."""
    v = wide(x)
    e = torch.exp(v - v.amax(-1, keepdim=True))
    return e, e.sum(-1, keepdim=True)


@mutant("softmax", "maximum not subtracted")
def no_maximum(x, dim):
    e = torch.exp(wide(x))
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


@mutant("softmax", "last column left out of the sum")
def short_sum(x, dim):
    e, _ = _parts(x)
    return (e / e[..., :-1].sum(-1, keepdim=True)).to(x.dtype)


@mutant("softmax", "last column left out of the maximum")
def short_maximum(x, dim):
    if x.shape[-1] < 2:
        return _softmax(x)
    v = wide(x)
    e = torch.exp(v - v[..., :-1].amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


@mutant("softmax", "one element past the row read")
def long_sum(x, dim):
    rows = x.as_strided((*x.shape[:-1], x.shape[-1] + 1), x.stride())
    e, total = _parts(rows)
    return (e / total)[..., :-1].to(x.dtype)


@mutant("softmax", "masked lanes hold 0, not -inf, in the sum")
def zero_lanes(x, dim):
    v = wide(x)
    padded = F.pad(v, (0, (1 << max(v.shape[-1] - 1, 0).bit_length()) - v.shape[-1]))
    return _softmax(padded)[..., : x.shape[-1]].to(x.dtype)


@mutant("softmax", "wrong axis")
def wrong_axis(x, dim):
    return torch.softmax(x, 0)


@mutant("softmax", "half of each wave left out of the sum")
def half_wave(x, dim):
    e, _ = _parts(x)
    lanes = torch.arange(x.shape[-1]) % 64 < 32
    return (e / (e * lanes).sum(-1, keepdim=True)).to(x.dtype)


@mutant("softmax", "columns beyond a multiple of 32 not written")
def unwritten_tail(x, dim):
    out = torch.empty(x.shape, dtype=x.dtype)
    whole = x.shape[-1] // 32 * 32
    out[..., :whole] = _softmax(x)[..., :whole]
    return out


@mutant("softmax", "last row not written")
def unwritten_row(x, dim):
    y = _softmax(x).reshape(-1, max(x.shape[-1], 1))
    out = torch.empty_like(y)
    out[:-1] = y[:-1]
    return out.reshape(x.shape)


@mutant("softmax", "powers of 2 in the place of e")
def base_two(x, dim):
    return _softmax(wide(x) * math.log(2)).to(x.dtype)


@mutant("softmax", "exponentials in the input's type")
def narrow_exponentials(x, dim):
    e = torch.exp((x - x.amax(-1, keepdim=True)) if x.numel() else x)
    return (wide(e) / wide(e).sum(-1, keepdim=True)).to(x.dtype)


@mutant("softmax", "sum in the input's type")
def narrow_sum(x, dim):
    if not x.numel():
        return x.clone()
    e, _ = _parts(x)
    total = torch.zeros_like(x[..., :1])
    for part in e.split(max(32, x.shape[-1] // 64), -1):
        total = (wide(total) + part.sum(-1, keepdim=True)).to(x.dtype)
    return (e / wide(total)).to(x.dtype)


@mutant("softmax", "reciprocal of 12 bits")
def rough_reciprocal(x, dim):
    e, total = _parts(x)
    r = 1 / total
    if r.dtype == torch.float32:
        r = (r.view(torch.int32) & ~0xFFF).view(torch.float32)
    return (e * r).to(x.dtype)


@mutant("softmax", "result truncated, not rounded")
def truncation(x, dim):
    return truncated(_softmax(x.double()), x.dtype)


@mutant("softmax", "sum cut towards zero after each step")
def chopped_sum(x, dim):
    if x.dtype == torch.float64 or not x.numel() or x.shape[-1] > 5000:
        return _softmax(x)
    e, _ = _parts(x)
    total = torch.zeros_like(e[..., :1])
    for k in range(x.shape[-1]):
        total = chopped(total.double() + e[..., k : k + 1].double())
    return (e / total).to(x.dtype)


@mutant("softmax", "not divided by the sum")
def unnormalised(x, dim):
    return _parts(x)[0].to(x.dtype)


@mutant("softmax", "logarithm of the result")
def logarithm(x, dim):
    return torch.log_softmax(x, -1)


@mutant("softmax", "maximum of the whole batch: a row depends on the others")
def shared_maximum(x, dim):
    if not x.numel():
        return x.clone()
    v = wide(x)
    e = torch.exp(v - v.max())
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


@mutant("softmax", "order of summation depends on the number of rows")
def batch_order(x, dim):
    if not x.numel() or x.dtype == torch.float64:
        return _softmax(x)
    e, _ = _parts(x)
    rows = x.numel() // x.shape[-1]
    step = 8 if rows > 1 else 16
    total = sum(part.sum(-1, keepdim=True) for part in e.split(step, -1))
    return (e * (1 / total) if rows > 1 else e / total).to(x.dtype)


@mutant("softmax", "NaN swallowed")
def swallowed_nan(x, dim):
    return torch.nan_to_num(_softmax(x), nan=0.0)


@mutant("softmax", "a row with +inf gives 1 there, not NaN")
def inf_row(x, dim):
    y = _softmax(x)
    return torch.where(y.isnan() & (x == math.inf), torch.ones_like(y), y)


@mutant("softmax", "subnormal results flushed")
def flushed(x, dim):
    y = _softmax(x)
    return torch.where(y < torch.finfo(x.dtype).smallest_normal, torch.zeros_like(y), y)


@mutant("softmax", "padding between rows ignored")
def ignored_strides(x, dim):
    return _softmax(walked(x))


@mutant("softmax", "row offsets in 16 bits")
def offsets_in_16_bits(x, dim):
    flat = x.reshape(-1, x.shape[-1]) if x.numel() else x
    if x.dim() < 2 or not x.numel():
        return _softmax(x)
    index = (torch.arange(flat.shape[0]) * flat.shape[1] % 2**16)[:, None] + torch.arange(flat.shape[1])
    return _softmax(flat.reshape(-1)[index % flat.numel()]).reshape(x.shape)


@mutant("softmax", "offsets in 32 bits")
def offsets_in_32_bits(x, dim):
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return _softmax(x) if last < 2**31 else torch.zeros_like(x)


@mutant("softmax", "rows beyond 65,535 not written")
def rows_of_16_bits(x, dim):
    if x.dim() != 2:
        return _softmax(x)
    out = torch.empty_like(x)
    out[:65535] = _softmax(x)[:65535]
    return out


_shift = [0.0]


@mutant("softmax", "shift kept from the former call")
def stale_shift(x, dim):
    if not x.numel():
        return x.clone()
    v = wide(x)
    shift, _shift[0] = _shift[0], float(torch.nan_to_num(v).max())
    e = torch.exp(v - shift)
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


@mutant("swiglu", "gate and up swapped")
def swapped(gate, up):
    return right("swiglu")(up, gate)


@mutant("swiglu", "sigmoid without its factor")
def sigmoid_alone(gate, up):
    return (torch.sigmoid(wide(gate)) * wide(up)).to(gate.dtype)


@mutant("swiglu", "silu rounded before the product")
def rounded_silu(gate, up):
    return F.silu(wide(gate)).to(gate.dtype) * up


@mutant("swiglu", "exp(g) / (1 + exp(g)) overflows")
def overflowing(gate, up):
    g = wide(gate)
    return (g * (torch.exp(g) / (1 + torch.exp(g))) * wide(up)).to(gate.dtype)


@mutant("swiglu", "gelu in the place of silu")
def gelu(gate, up):
    return (F.gelu(wide(gate)) * wide(up)).to(gate.dtype)


@mutant("swiglu", "up ignored")
def no_up(gate, up):
    return F.silu(wide(gate)).to(gate.dtype)


@mutant("swiglu", "hard sigmoid")
def hard(gate, up):
    return (F.hardswish(wide(gate)) * wide(up)).to(gate.dtype)


@mutant("swiglu", "up read with gate's strides")
def borrowed_strides(gate, up):
    return right("swiglu")(gate, up.as_strided(gate.shape, gate.stride(), gate.storage_offset()))


@mutant("swiglu", "up read as contiguous")
def walked_up(gate, up):
    return right("swiglu")(gate, walked(up))


@mutant("swiglu", "products in another order where up is large")
def order_by_size(gate, up):
    """Both orders are right; that the size of the data chooses one is not: doubling changes last bits."""
    g, u = wide(gate), wide(up)
    if u.numel() and u.abs().max() > 5:
        return (g * (u * torch.sigmoid(g))).to(gate.dtype)
    return (g * torch.sigmoid(g) * u).to(gate.dtype)


@mutant("swiglu", "0 / 0 where the gate is 0")
def zero_by_zero(gate, up):
    g = wide(gate)
    return (g * g / (g * (1 + torch.exp(-g))) * wide(up)).to(gate.dtype)


@mutant("swiglu", "columns beyond 65,535 not written")
def columns_of_16_bits(gate, up):
    y = right("swiglu")(gate, up)
    out = torch.empty_like(y)
    out[..., :65535] = y[..., :65535]
    return out


@mutant("log_softmax", "maximum not subtracted")
def unshifted_log(x, dim):
    return (wide(x) - wide(x).exp().sum(-1, keepdim=True).log()).to(x.dtype)


@mutant("log_softmax", "the logarithm of softmax")
def log_of_softmax(x, dim):
    return torch.softmax(wide(x), -1).log().to(x.dtype)


@mutant("log_softmax", "difference from the maximum rounded to the input's type")
def narrow_log(x, dim):
    if x.dtype == torch.float64 or not x.shape[-1]:
        return right("log_softmax")(x, dim)
    below = wide((wide(x) - wide(x).amax(-1, keepdim=True)).to(torch.bfloat16))
    return (below - below.exp().sum(-1, keepdim=True).log()).to(x.dtype)


@mutant("log_softmax", "wrong axis")
def wrong_axis_of_log(x, dim):
    return right("log_softmax")(x, 0)


@mutant("log_softmax_backward", "softmax's gradient")
def of_softmax(dy, y, dim):
    return right("softmax_backward")(dy, y.exp(), dim)


@mutant("log_softmax_backward", "sum of dy * exp(y), not of dy")
def weighted_sum(dy, y, dim):
    d, p = wide(dy), wide(y).exp()
    return (d - p * (d * p).sum(-1, keepdim=True)).to(y.dtype)


@mutant("log_softmax_backward", "NaN where y is -inf")
def not_a_number(dy, y, dim):
    d, v = wide(dy), wide(y)
    return (d - v / v * v.exp() * d.sum(-1, keepdim=True)).to(y.dtype)
