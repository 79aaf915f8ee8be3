"""Wrong matmul and linear."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from portable.conformance.cases.inputs import same_bits

from .registry import mutant
from .tools import ROUNDINGS, chopped, right_linear, right_matmul, truncated, walked, wide


def _chunks(a, b, step, partial):
    total = torch.zeros((), dtype=partial)
    for k in range(0, a.shape[-1], step):
        total = (wide(total) + wide(a[..., k : k + step]) @ wide(b[..., k : k + step, :])).to(partial)
    return total.to(a.dtype) if a.shape[-1] else right_matmul(a, b)


@mutant("matmul", "accumulates in the input's type")
def narrow_accumulation(a, b, precision="ieee"):
    return _chunks(a, b, 16, a.dtype)


@mutant("matmul", "accumulates in bfloat16 whatever the type")
def bfloat16_accumulation(a, b, precision="ieee"):
    return _chunks(a, b, 32, torch.bfloat16)


@mutant("matmul", "accumulates in float16")
def float16_accumulation(a, b, precision="ieee"):
    return _chunks(a, b, 32, torch.float16)


@mutant("matmul", "split-K partial sums rounded to the output's type")
def narrow_partials(a, b, precision="ieee"):
    half = a.shape[-1] // 2
    one = right_matmul(a[..., :half], b[..., :half, :])
    return one + right_matmul(a[..., half:], b[..., half:, :])


@mutant("matmul", "last k dropped")
def dropped_k(a, b, precision="ieee"):
    return right_matmul(a[..., :-1], b[..., :-1, :])


@mutant("matmul", "tail of K (beyond a multiple of 32) dropped")
def dropped_tail(a, b, precision="ieee"):
    whole = a.shape[-1] // 32 * 32
    return right_matmul(a[..., :whole], b[..., :whole, :])


@mutant("matmul", "one k of two split-K halves counted twice")
def overlapping_halves(a, b, precision="ieee"):
    half = a.shape[-1] // 2
    first, second = (a[..., : half + 1], b[..., : half + 1, :]), (a[..., half:], b[..., half:, :])
    return (wide(right_matmul(*map(wide, first))) + right_matmul(*map(wide, second))).to(a.dtype)


@mutant("matmul", "rows beyond a multiple of 32 are zero")
def missed_tile(a, b, precision="ieee"):
    c = right_matmul(a, b)
    c[..., c.shape[-2] // 32 * 32 :, :] = 0
    return c


@mutant("matmul", "last column not written")
def unwritten_column(a, b, precision="ieee"):
    c = right_matmul(a, b)
    out = torch.empty_like(c)
    out[..., :-1] = c[..., :-1]
    return out


@mutant("matmul", "last row not written")
def unwritten_row(a, b, precision="ieee"):
    c = right_matmul(a, b)
    out = torch.empty_like(c)
    out[..., :-1, :] = c[..., :-1, :]
    return out


@mutant("matmul", "result truncated, not rounded")
def truncation(a, b, precision="ieee"):
    return truncated(a.double() @ b.double(), a.dtype)


@mutant("matmul", "ties rounded away from zero")
def ties_away(a, b, precision="ieee"):
    """Add half of the last kept bit's place, then cut: what integer code for bfloat16 often does."""
    c = right_matmul(wide(a), wide(b))
    if a.dtype != torch.bfloat16:
        return c.to(a.dtype)
    bits = c.view(torch.int32)
    away = ((bits + 0x8000) & -0x10000).view(torch.float32)
    return torch.where(c.isfinite(), away, c).to(a.dtype)


@mutant("matmul", "rounded twice, to 10 bits and then to the output")
def double_rounding(a, b, precision="ieee"):
    c = right_matmul(wide(a), wide(b))
    return (c if a.dtype != torch.bfloat16 else ROUNDINGS["tf32"](c)).to(a.dtype)


@mutant("matmul", "TF32 products in float32")
def tf32(a, b, precision="ieee"):
    if a.dtype != torch.float32:
        return right_matmul(a, b)
    return right_matmul(ROUNDINGS["tf32"](a), ROUNDINGS["tf32"](b))


@mutant("matmul", "three bfloat16 products in the place of float32")
def split_float32(a, b, precision="ieee"):
    if a.dtype != torch.float32:
        return right_matmul(a, b)
    ah, bh = a.bfloat16().float(), b.bfloat16().float()
    al, bl = (a - ah).bfloat16().float(), (b - bh).bfloat16().float()
    return ah @ bh + (ah @ bl + al @ bh)


@mutant("matmul", "float64 computed in float32")
def float32_inside(a, b, precision="ieee"):
    return (a.float() @ b.float()).to(a.dtype)


@mutant("matmul", "bfloat16 taken through float16")
def through_float16(a, b, precision="ieee"):
    if a.dtype != torch.bfloat16:
        return right_matmul(a, b)
    return right_matmul(a.half().float(), b.half().float()).to(a.dtype)


@mutant("matmul", "float32 sums cut towards zero after each step")
def chopped_sums(a, b, precision="ieee"):
    if a.dtype == torch.float64:
        return right_matmul(a, b)
    total = torch.zeros(())
    for k in range(a.shape[-1]):
        total = chopped(wide(total).double() + a[..., k : k + 1].double() * b[..., k : k + 1, :].double())
    return total.to(a.dtype) if a.shape[-1] else right_matmul(a, b)


@mutant("matmul", "signed bias: every result one tenth of a unit low")
def leaning(a, b, precision="ieee"):
    """A drift that stays below half a unit after rounding: the element-wise bound cannot see all of it."""
    c = a.double() @ b.double()
    return (c * (1 - 0.1 * torch.finfo(a.dtype).eps)).to(a.dtype)


@mutant("matmul", "b taken transposed where it is square")
def transposed_square(a, b, precision="ieee"):
    return right_matmul(a, b.mT if b.shape[-1] == b.shape[-2] else b)


@mutant("matmul", "c written transposed where it is square")
def transposed_result(a, b, precision="ieee"):
    c = right_matmul(a, b)
    return c.mT if c.shape[-1] == c.shape[-2] else c


@mutant("matmul", "strides derived from the shape: padding ignored")
def ignored_strides(a, b, precision="ieee"):
    return right_matmul(walked(a), b)


@mutant("matmul", "storage offset ignored")
def ignored_offset(a, b, precision="ieee"):
    return right_matmul(a.as_strided(a.shape, a.stride(), 0), b)


@mutant("matmul", "misaligned base rounded down to 16 bytes")
def aligned_down(a, b, precision="ieee"):
    off = a.data_ptr() % 16 // a.element_size()
    return right_matmul(a.as_strided(a.shape, a.stride(), a.storage_offset() - off), b)


@mutant("matmul", "batch stride of b ignored")
def first_batch(a, b, precision="ieee"):
    return right_matmul(a, b.flatten(0, -3)[:1].reshape(*[1] * (b.dim() - 2), *b.shape[-2:]).expand(b.shape)
                        if b.dim() > 2 and b.numel() else b)  # fmt: skip


@mutant("matmul", "batches of a taken in another order (head mapping)")
def other_head(a, b, precision="ieee"):
    return right_matmul(a.roll(1, 0) if a.dim() > 2 else a, b)


@mutant("matmul", "zeros")
def zeros(a, b, precision="ieee"):
    return torch.zeros_like(right_matmul(a, b))


@mutant("matmul", "echo of a where the shapes allow it")
def echo(a, b, precision="ieee"):
    c = right_matmul(a, b)
    return a.clone() if a.shape == c.shape else c


@mutant("matmul", "output of float32 for 16-bit inputs")
def wrong_dtype(a, b, precision="ieee"):
    return right_matmul(wide(a), wide(b))


@mutant("matmul", "leading dimensions of size 1 squeezed away")
def squeezed(a, b, precision="ieee"):
    c = right_matmul(a, b)
    return c.squeeze(-2) if c.shape[-2] == 1 else c


@mutant("matmul", "nothing written where K is 0")
def empty_sum(a, b, precision="ieee"):
    c = right_matmul(a, b)
    return torch.empty_like(c) if a.shape[-1] == 0 else c


@mutant("matmul", "an input scaled in place")
def written_input(a, b, precision="ieee"):
    c = right_matmul(a, b)
    a.mul_(2)
    return c


@mutant("matmul", "memory behind an input's last row written")
def written_beside(a, b, precision="ieee"):
    c = right_matmul(a, b)
    end = a.storage_offset() + sum((n - 1) * s for n, s in zip(a.shape, a.stride(), strict=True)) + 1
    if a.numel():
        a.as_strided((1,), (1,), end).zero_()
    return c


@mutant("matmul", "NaN swallowed")
def swallowed_nan(a, b, precision="ieee"):
    c = right_matmul(a, b)
    return torch.where(c.isnan(), torch.zeros_like(c), c)


@mutant("matmul", "Inf turned into NaN")
def inf_to_nan(a, b, precision="ieee"):
    c = right_matmul(a, b)
    return c + (c - c)


@mutant("matmul", "overflow saturates")
def saturated(a, b, precision="ieee"):
    c, most = right_matmul(wide(a), wide(b)), torch.finfo(a.dtype).max
    return torch.where(c.isfinite(), c.clamp(-most, most), c).to(a.dtype)


@mutant("matmul", "subnormal inputs and results flushed")
def flushed(a, b, precision="ieee"):
    def flush(x):
        return torch.where(x.abs() < torch.finfo(x.dtype).smallest_normal, torch.zeros_like(x), x)

    return flush(right_matmul(flush(a), flush(b)))


@mutant("matmul", "partial sums added in the order in which they arrive")
def atomic(a, b, precision="ieee"):
    order = torch.randperm(max(a.shape[-1], 1))[: a.shape[-1]]
    return _chunks(wide(a)[..., order], wide(b)[..., order, :], 8, wide(a).dtype).to(a.dtype)


_workspace: list[torch.Tensor] = []


@mutant("matmul", "workspace not cleared between calls")
def stale(a, b, precision="ieee"):
    c = right_matmul(a, b)
    last = _workspace.pop() if _workspace else None
    _workspace.append(c.clone())
    return c + last if last is not None and last.shape == c.shape and same_bits(c, last) else c


@mutant("matmul", "offsets in 32 bits")
def offsets_in_32_bits(a, b, precision="ieee"):
    def wrapped(x):
        last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
        return x if last < 2**31 else torch.zeros(x.shape, dtype=x.dtype)

    return right_matmul(wrapped(a), wrapped(b))


@mutant("matmul", "result kept from the former call of the same shape")
def cached(a, b, precision="ieee"):
    key = (a.shape, b.shape, a.dtype)
    if key not in _cache:
        _cache[key] = right_matmul(a, b)
    return _cache[key].clone()


_cache: dict = {}


@mutant("matmul", "TF32 allowed: factors cut to bfloat16")
def bfloat16_for_tf32(a, b, precision="ieee"):
    if precision == "tf32" and a.dtype == torch.float32:
        a, b = a.bfloat16().float(), b.bfloat16().float()
    return right_matmul(a, b)


@mutant("matmul", "TF32 allowed: partial sums in TF32 as well")
def tf32_sums(a, b, precision="ieee"):
    if precision != "tf32" or a.dtype != torch.float32:
        return right_matmul(a, b)
    total = torch.zeros(())
    for k in range(0, a.shape[-1], 16):
        total = ROUNDINGS["tf32"](total + a[..., k : k + 16] @ b[..., k : k + 16, :])
    return total if a.shape[-1] else right_matmul(a, b)


@mutant("matmul", "TF32 allowed: b transposed")
def transposed_for_tf32(a, b, precision="ieee"):
    if precision != "tf32":
        return right_matmul(a, b)
    return right_matmul(a, b.mT.reshape(b.shape))


@mutant("matmul", "last bit of b's mantissa lost in float32")
def last_bit_lost(a, b, precision="ieee"):
    if b.dtype == torch.float32:
        b = (b.contiguous().view(torch.int32) & ~1).view(torch.float32)
    return right_matmul(a, b)


@mutant("matmul", "rows beyond 65,535 are zero")
def rows_of_16_bits(a, b, precision="ieee"):
    c = right_matmul(a, b)
    c[..., 65535:, :] = 0
    return c


@mutant("matmul", "K taken modulo 65,536")
def k_of_16_bits(a, b, precision="ieee"):
    k = a.shape[-1] % 65536
    return right_matmul(a[..., :k], b[..., :k, :])


@mutant("linear", "offsets in 32 bits")
def linear_offsets_in_32_bits(x, weight, bias=None, activation=None):
    last = sum((n - 1) * s for n, s in zip(weight.shape, weight.stride(), strict=True))
    return right_linear(x, weight if last < 2**31 else torch.zeros_like(weight), bias, activation)


@mutant("linear", "weight read with x's strides where the shapes agree")
def borrowed_strides(x, weight, bias=None, activation=None):
    if x.shape == weight.shape:
        weight = weight.as_strided(weight.shape, x.stride(), weight.storage_offset())
    return right_linear(x, weight, bias, activation)


@mutant("linear", "x and weight swapped where the shapes agree")
def swapped(x, weight, bias=None, activation=None):
    x, weight = (weight, x) if x.shape == weight.shape else (x, weight)
    return right_linear(x, weight, bias, activation)


@mutant("linear", "bias added twice")
def bias_twice(x, weight, bias=None, activation=None):
    return right_linear(x, weight, None if bias is None else 2 * wide(bias), activation)


@mutant("linear", "bias ignored")
def no_bias(x, weight, bias=None, activation=None):
    return right_linear(x, weight, None, activation)


@mutant("linear", "bias added after the activation")
def late_bias(x, weight, bias=None, activation=None):
    y = right_linear(wide(x), wide(weight), None, activation)
    return (y if bias is None else y + wide(bias)).to(x.dtype)


@mutant("linear", "sum rounded before the bias")
def rounded_before_bias(x, weight, bias=None, activation=None):
    z = wide(right_linear(x, weight, None, None))
    z = z if bias is None else z + wide(bias)
    return _activated(z, activation).to(x.dtype)


@mutant("linear", "sum rounded before the activation")
def rounded_before_activation(x, weight, bias=None, activation=None):
    return _activated(wide(right_linear(x, weight, bias, None)), activation).to(x.dtype)


@mutant("linear", "first element of the bias for every column")
def first_bias(x, weight, bias=None, activation=None):
    return right_linear(x, weight, None if bias is None else bias[:1].expand(bias.shape), activation)


@mutant("linear", "weight not transposed where it is square")
def square_weight(x, weight, bias=None, activation=None):
    return right_linear(x, weight.mT if weight.shape[0] == weight.shape[1] else weight, bias, activation)


@mutant("linear", "gelu by tanh in the place of erf")
def gelu_tanh(x, weight, bias=None, activation=None):
    return right_linear(x, weight, bias, "gelu_tanh" if activation == "gelu" else activation)


@mutant("linear", "gelu by erf in the place of tanh")
def gelu_erf(x, weight, bias=None, activation=None):
    return right_linear(x, weight, bias, "gelu" if activation == "gelu_tanh" else activation)


@mutant("linear", "gelu as x * sigmoid(1.702 x)")
def gelu_quick(x, weight, bias=None, activation=None):
    if activation != "gelu":
        return right_linear(x, weight, bias, activation)
    z = right_linear(wide(x), wide(weight), None if bias is None else wide(bias), None)
    return (z * torch.sigmoid(1.702 * z)).to(x.dtype)


@mutant("linear", "relu of NaN is 0")
def relu_max(x, weight, bias=None, activation=None):
    y = right_linear(x, weight, bias, activation)
    return torch.where(y.isnan(), torch.zeros_like(y), y) if activation == "relu" else y


@mutant("linear", "activation left out")
def no_activation(x, weight, bias=None, activation=None):
    return right_linear(x, weight, bias, None)


@mutant("linear", "relu leaks a hundredth")
def leaky(x, weight, bias=None, activation=None):
    if activation != "relu":
        return right_linear(x, weight, bias, activation)
    return F.leaky_relu(right_linear(x, weight, bias, None), 0.01)


def _activated(z, activation):
    from portable.spec import registry

    reference = registry.load_module(registry.op_folders()["linear"].parent / "reference.py")
    return reference.activate(z, activation)
