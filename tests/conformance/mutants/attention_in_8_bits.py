"""Wrong attention_fp8: scales, codes, P in 8 bits and how a kernel lays out its operands."""

from __future__ import annotations

import torch

from portable import dtypes
from portable.kernels._lib import minifloat
from portable.kernels.attention.semantics import fp8, torch_impl

from .registry import Edit, mutant, source
from .tools import chopped, right

OP = "attention_fp8"
TRITON = "attention/triton/fwd.py"
HIP, CODES = "attention/gfx/fwd.hip", "attention/gfx/codes.h"
FNUZ = "_lib/amdgcn/ocp_as_fnuz.h"


def _right(*tensors, **params):
    return right(OP)(*tensors, **params)


def _wrong(name):
    """A mutant of six tensors: an implementation gets them by name."""

    def added(function):
        def by_name(q, k, v, q_scale, k_scale, v_scale, **params):
            return function(q, k, v, q_scale, k_scale, v_scale, **params)

        by_name.__module__ = function.__module__
        return mutant(OP, name)(by_name)

    return added


@_wrong("the keys' scale for values")
def keys_scale(q, k, v, q_scale, k_scale, v_scale, **params):
    return _right(q, k, v, q_scale, k_scale, k_scale, **params)


@_wrong("q_scale left out")
def no_q_scale(q, k, v, q_scale, k_scale, v_scale, **params):
    return _right(q, k, v, torch.ones_like(q_scale), k_scale, v_scale, **params)


@_wrong("v_scale left out")
def no_v_scale(q, k, v, q_scale, k_scale, v_scale, **params):
    return _right(q, k, v, q_scale, k_scale, torch.ones_like(v_scale), **params)


@_wrong("the scales of the next head")
def next_head(q, k, v, *scales, **params):
    return _right(q, k, v, *(scale.roll(-1, -1) for scale in scales), **params)


@_wrong("the first head's scales for all")
def first_head(q, k, v, *scales, **params):
    return _right(q, k, v, *(scale[..., :1].expand(scale.shape) for scale in scales), **params)


@_wrong("the first batch's scales for all")
def first_batch(q, k, v, *scales, **params):
    def of_first(scale):
        lead = scale.dim() - 1
        return scale[(slice(0, 1),) * lead].expand(scale.shape) if 0 not in scale.shape else scale

    return _right(q, k, v, *map(of_first, scales), **params)


@_wrong("query head h takes the scale of key head h % G")
def heads_modulo(q, k, v, q_scale, k_scale, v_scale, **params):
    group = q.shape[-3] // k.shape[-3]
    of_heads = q_scale.repeat((1,) * (q_scale.dim() - 1) + (group,))
    many = (x.view(torch.uint8).repeat_interleave(group, -3).view(x.dtype) for x in (k, v))
    others = (scale.repeat_interleave(group, -1) for scale in (k_scale, v_scale))
    return _right(q, *many, of_heads, *others, **params)


@_wrong("fnuz codes taken for OCP's")
def fnuz_misread(q, k, v, *scales, **params):
    if q.dtype == torch.float8_e4m3fnuz:
        q, k, v = (x.view(torch.float8_e4m3fn) for x in (q, k, v))
    return _right(q, k, v, *scales, **params)


def _changed(x, change):
    return change(x.contiguous().view(torch.uint8).clone(), x.dtype).view(x.dtype)


@_wrong("subnormal codes taken for 0")
def no_subnormals(q, k, v, *scales, **params):
    def flushed(codes, kind):
        return codes.masked_fill(((codes & 0x7F) < 8) & (codes != 0x80), 0)

    return _right(*(_changed(x, flushed) for x in (q, k, v)), *scales, **params)


@_wrong("NaN codes taken for 480")
def no_nan(q, k, v, *scales, **params):
    def finite(codes, kind):
        return torch.where((codes & 0x7F == 0x7F) & (kind == torch.float8_e4m3fn), codes - 1, codes)

    return _right(*(_changed(x, finite) for x in (q, k, v)), *scales, **params)


@_wrong("causal by one key more")
def causal_off_by_one(*tensors, causal=False, window_right=None, **params):
    if causal:
        window_right = 1 if window_right is None else min(window_right, 1)
    return _right(*tensors, causal=False, window_right=window_right, **params)


@_wrong("keys behind the last whole block of 32 left out")
def no_partial_block(q, k, v, *scales, **params):
    whole = k.shape[-2] // 32 * 32
    if whole in (0, k.shape[-2]) or params.get("causal") or params.get("window_left") is not None:
        return _right(q, k, v, *scales, **params)
    return _right(q, k[..., :whole, :], v[..., :whole, :], *scales, **params)


@_wrong("values in the keys' order where P come in wgmma's")
def order_of_keys(q, k, v, *scales, **params):
    j, t, e = torch.arange(4)[:, None, None], torch.arange(4)[:, None], torch.arange(2)
    places = (16 * (j // 2) + 4 * t + 2 * (j % 2) + e).flatten()
    order = (torch.arange(k.shape[-2] // 32)[:, None] * 32 + places).flatten()
    order = torch.cat([order, torch.arange(len(order), k.shape[-2])])
    return _right(q, k, _changed(v, lambda codes, _: codes[..., order, :]), *scales, **params)


def _of_p(tensors, change, output_dtype, params):
    """o and lse with `change` of P, relative to the row's largest, and values."""
    wide = (x.to(torch.float32) for x in tensors[:3])
    q, k, v = fp8.of_numbers(*wide, *tensors[3:])
    scores, _ = torch_impl.scores_of(q, k, None, **params)
    if not scores.shape[-1]:
        return _right(*tensors, output_dtype=output_dtype, **params)
    most = scores.amax(-1, keepdim=True)
    most = torch.where(torch.isneginf(most), 0, most)
    p = torch.exp(scores - most)
    total = p.sum(-1, keepdim=True)
    safe = torch.where(total == 0, 1, total)
    v = v.repeat_interleave(q.shape[-3] // v.shape[-3], -3)
    lse = torch.where(total == 0, -torch.inf, most + safe.log()).squeeze(-1)
    return (change(p, v) / safe).to(dtypes.of(output_dtype).storage), lse


PARAMS = {"causal": False, "scale": None, "window_left": None, "window_right": None, "softcap": None}


@_wrong("P rounded to e4m3 from 1 down, where small ones are lost")
def p_not_scaled(*tensors, output_dtype, **params):
    def product(p, v):
        return minifloat.rounded(p, "float8_e4m3fn").float() @ v

    return _of_p(tensors, product, output_dtype, PARAMS | params)


@_wrong("P rounded to e5m2")
def p_of_two_bits(*tensors, output_dtype, **params):
    def product(p, v):
        return minifloat.rounded(p * 2**8, "float8_e5m2").float() @ v * 2**-8

    return _of_p(tensors, product, output_dtype, PARAMS | params)


@_wrong("sums kept in 13 bits over all keys")
def thirteen_bits(*tensors, output_dtype, **params):
    def product(p, v):
        total = 0 * (p[..., :1] @ v[..., :1, :])
        for start in range(0, p.shape[-1], 32):
            total = total + p[..., start : start + 32] @ v[..., start : start + 32, :]
            total = (chopped(total.double()).view(torch.int32) & ~0x3FF).view(torch.float32)
        return total

    if tensors[1].shape[-2] * tensors[0].shape[-2] > 1 << 22:
        return _right(*tensors, output_dtype=output_dtype, **params)
    return _of_p(tensors, product, output_dtype, PARAMS | params)


@_wrong("what was added up not rescaled where a later key is larger")
def not_rescaled(*tensors, output_dtype, **params):
    def product(p, v):
        half = p.shape[-1] // 2
        if not half:
            return p @ v
        most = p[..., :half].amax(-1, keepdim=True)
        first = torch.where(most > 0, p[..., :half] / most, 0)
        return first @ v[..., :half, :] + p[..., half:] @ v[..., half:, :]

    return _of_p(tensors, product, output_dtype, PARAMS | params)


source(
    *(OP, "triton", "gfx942", "the keys' scale in the place of the values'"),
    Edit(
        TRITON,
        "scale_of(v_scale_ptr, batch, kv_head, v_scale_batch, v_scale_head)",
        "scale_of(k_scale_ptr, batch, kv_head, k_scale_batch, k_scale_head)",
    ),
)
source(
    *(OP, "triton", "gfx942", "scales by query head"),
    Edit(
        TRITON,
        "scale_of(k_scale_ptr, batch, kv_head, k_scale_batch, k_scale_head)",
        "scale_of(k_scale_ptr, batch, head, k_scale_batch, k_scale_head)",
    ),
)
source(
    *(OP, "mfma", "gfx942", "k_scale left out"),
    Edit(HIP, "CODE_SCALE(k_scale).of(work.batch, kv_head)", "1.0f"),
)
source(
    *(OP, "mfma", "gfx942", "v_scale twice"),
    Edit(CODES, "value = v * CODE_FACTOR", "value = v * v * CODE_FACTOR"),
)
source(
    *(OP, "mfma", "gfx942", "P not scaled back"),
    Edit(HIP, "factor * Softmax::UNSCALE * rcp_fast(row_sum)", "factor * rcp_fast(row_sum)"),
)
source(
    *(OP, "mfma", "gfx942", "0x80 left to fnuz instructions"),
    Edit(FNUZ, "return (codes & sizes + SIZES) | sizes;", "return codes;"),
)
source(
    *(OP, "mfma", "gfx942", "OCP's NaN left to fnuz instructions"),
    Edit(CODES, "found |= not_finite<Format>(codes.w[i]);", ""),
)
source(
    *(OP, "mfma", "gfx942", "the half of fnuz codes made up for once"),
    Edit(CODES, "(CODE_FACTOR * CODE_FACTOR)", "CODE_FACTOR"),
)
source(
    *(OP, "mfma", "gfx950", "causal by one key more"),
    Edit(HIP, "if (at > last ||", "if (at > last + 1 ||"),
)
source(
    *(OP, "mfma", "gfx950", "keys of v's two tiles swapped"),
    Edit(CODES, "tile % 2 * 8", "(1 - tile % 2) * 8"),
)
source(
    *(OP, "wmma", "gfx1201", "P from 1 down"),
    Edit(CODES, "FNUZ_INSTRUCTIONS ? 7 : 8", "FNUZ_INSTRUCTIONS ? 7 : 0"),
)
source(
    *(OP, "wmma", "gfx1201", "the sign of the scales lost"),
    Edit(CODES, "HeadScales{-1.0f, -all, value}", "HeadScales{1.0f, -all, value}"),
)
source(
    *(OP, "wmma", "gfx1100", "NaN codes taken for 480"),
    Edit(CODES, "bits |= (bits + 0x00800080u) & 0x40004000u;", ""),
)
