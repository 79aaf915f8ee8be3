"""Wrong attention_paged_fp8 and kv_cache_write_fp8: scales and codes."""

from __future__ import annotations

import torch

from .registry import Edit, mutant, source
from .tools import right

READ, WRITE = "attention_paged_fp8", "kv_cache_write_fp8"
HIP, TRITON = "attention/gfx/decode.hip", "attention/triton/decode.py"
COPY, TRITON_COPY = "kv_cache_write/kv_cache_write.cu", "kv_cache_write/triton_impl.py"


def _read(q, k_cache, v_cache, table, lens, k_scale, v_scale, sinks=None, **params):
    return right(READ)(q, k_cache, v_cache, table, lens, k_scale, v_scale, sinks, **params)


@mutant(READ, "the keys' scale for values")
def keys_scale(q, k_cache, v_cache, table, lens, k_scale, v_scale, sinks=None, **params):
    return _read(q, k_cache, v_cache, table, lens, k_scale, k_scale, sinks, **params)


@mutant(READ, "the scales of the next head")
def next_head(q, k_cache, v_cache, table, lens, k_scale, v_scale, sinks=None, **params):
    scales = k_scale.roll(-1), v_scale.roll(-1)
    return _read(q, k_cache, v_cache, table, lens, *scales, sinks, **params)


@mutant(READ, "the first head's scales for all")
def first_head(q, k_cache, v_cache, table, lens, k_scale, v_scale, sinks=None, **params):
    own_k, own_v = (scale[:1].expand(scale.shape) for scale in (k_scale, v_scale))
    return _read(q, k_cache, v_cache, table, lens, own_k, own_v, sinks, **params)


@mutant(READ, "k_scale left out")
def no_k_scale(q, k_cache, v_cache, table, lens, k_scale, v_scale, sinks=None, **params):
    return _read(q, k_cache, v_cache, table, lens, torch.ones_like(k_scale), v_scale, sinks, **params)


@mutant(READ, "v_scale left out")
def no_v_scale(q, k_cache, v_cache, table, lens, k_scale, v_scale, sinks=None, **params):
    return _read(q, k_cache, v_cache, table, lens, k_scale, torch.ones_like(v_scale), sinks, **params)


@mutant(READ, "a scale with a stride of 0 walked as if contiguous")
def walked_scale(q, k_cache, v_cache, table, lens, k_scale, v_scale, sinks=None, **params):
    def walked(scale):
        wrong = torch.full_like(scale, 7.0)
        wrong[:1] = scale[:1]
        return wrong if scale.stride(0) == 0 and len(scale) > 1 else scale

    return _read(q, k_cache, v_cache, table, lens, walked(k_scale), walked(v_scale), sinks, **params)


def _as_ocp(k_cache, v_cache):
    """Caches whose fnuz codes are taken for OCP's."""
    if k_cache.dtype == torch.float8_e4m3fnuz:
        k_cache, v_cache = (cache.view(torch.float8_e4m3fn) for cache in (k_cache, v_cache))
    return k_cache, v_cache


@mutant(READ, "fnuz codes taken for OCP's")
def fnuz_misread(q, k_cache, v_cache, *rest, **params):
    return _read(q, *_as_ocp(k_cache, v_cache), *rest, **params)


@mutant(READ, "NaN codes taken for 480")
def no_nan(q, k_cache, v_cache, table, lens, k_scale, v_scale, sinks=None, **params):
    def finite(cache):
        codes = cache.view(torch.uint8).clone()
        if cache.dtype == torch.float8_e4m3fn:
            codes[codes & 0x7F == 0x7F] -= 1
        return codes.view(cache.dtype)

    return _read(q, finite(k_cache), finite(v_cache), table, lens, k_scale, v_scale, sinks, **params)


@mutant(READ, "subnormal codes taken for 0")
def no_subnormals(q, k_cache, v_cache, table, lens, k_scale, v_scale, sinks=None, **params):
    def flushed(cache):
        codes, small = cache.view(torch.uint8).clone(), 4 if cache.dtype == torch.float8_e5m2 else 8
        codes[(codes & 0x7F) < small] = 0
        return codes.view(cache.dtype)

    return _read(q, flushed(k_cache), flushed(v_cache), table, lens, k_scale, v_scale, sinks, **params)


@mutant(READ, "queries rounded to the cache's type")
def narrow_queries(q, k_cache, *rest, **params):
    return _read(q.float().clamp(-240, 240).to(k_cache.dtype).to(q.dtype), k_cache, *rest, **params)


@mutant(READ, "queries through float16 as they are")
def queries_in_float16(q, *rest, **params):
    return _read(q.to(torch.float16).to(q.dtype), *rest, **params)


source(
    *(READ, "mfma", "gfx942", "the keys' scale in the place of the values'"),
    Edit(HIP, "#define V_SCALE v_scale[work.kv_head * v_scale_head]", "#define V_SCALE K_SCALE"),
)
source(
    *(READ, "mfma", "gfx942", "codes' pairs swapped"),
    Edit(HIP, "decode_pair<T, FORMAT>(first | second << 8)", "decode_pair<T, FORMAT>(second | first << 8)"),
)
source(
    *(READ, "triton", "gfx942", "the first head's v_scale for all"),
    Edit(TRITON, "tl.load(v_scale_ptr + g * v_scale_head)", "tl.load(v_scale_ptr)"),
)


def _write(k, v, k_cache, v_cache, slots, k_scale, v_scale):
    right(WRITE)(k, v, k_cache, v_cache, slots, k_scale, v_scale)


@mutant(WRITE, "the keys' scale for values")
def write_keys_scale(k, v, k_cache, v_cache, slots, k_scale, v_scale):
    _write(k, v, k_cache, v_cache, slots, k_scale, k_scale)


@mutant(WRITE, "the scales of the next head")
def write_next_head(k, v, k_cache, v_cache, slots, k_scale, v_scale):
    _write(k, v, k_cache, v_cache, slots, k_scale.roll(-1), v_scale.roll(-1))


@mutant(WRITE, "scales left out")
def write_unscaled(k, v, k_cache, v_cache, slots, k_scale, v_scale):
    _write(k, v, k_cache, v_cache, slots, torch.ones_like(k_scale), torch.ones_like(v_scale))


@mutant(WRITE, "multiplied by the scale")
def write_multiplied(k, v, k_cache, v_cache, slots, k_scale, v_scale):
    _write(k, v, k_cache, v_cache, slots, 1 / k_scale, 1 / v_scale)


@mutant(WRITE, "fnuz codes written as OCP's")
def write_fnuz(k, v, k_cache, v_cache, slots, k_scale, v_scale):
    _write(k, v, *_as_ocp(k_cache, v_cache), slots, k_scale, v_scale)


def _quantised(given, change):
    """The right write, then `change` of numbers, codes and their type where rows were written."""
    k, v, k_cache, v_cache, slots, k_scale, v_scale = given
    _write(*given)
    page, inside = k_cache.shape[1], (slots >= 0) & (slots < k_cache.shape[0] * k_cache.shape[1])
    at = slots[inside].long()
    for rows, scale, cache in ((k, k_scale, k_cache), (v, v_scale, v_cache)):
        codes = cache.view(torch.uint8)
        where = (at // page, at % page)
        codes[where] = change(rows[inside].float() / scale[:, None], codes[where], cache.dtype)


@mutant(WRITE, "NaN saturated")
def nan_saturated(*given):
    def change(numbers, codes, kind):
        most = torch.tensor(torch.finfo(kind).max).to(kind).view(torch.uint8)
        return torch.where(numbers.isnan(), most, codes)

    _quantised(given, change)


@mutant(WRITE, "what is too large made NaN")
def not_saturated(*given):
    def change(numbers, codes, kind):
        nan = 0x80 if kind == torch.float8_e4m3fnuz else 0x7F
        return torch.where(numbers.abs() > torch.finfo(kind).max * 1.04, nan, codes)

    _quantised(given, change)


@mutant(WRITE, "cut towards zero")
def cut(*given):
    def change(numbers, codes, kind):
        made = codes.view(kind).float()
        return torch.where((made.abs() > numbers.abs()) & (codes & 0x7F > 0), codes - 1, codes)

    _quantised(given, change)


source(
    *(WRITE, "cpp", "gfx942", "the first head's scale for all"),
    Edit(COPY, "static_cast<unsigned>(unit) / K_UNITS * k_scale_head", "0 * k_scale_head"),
)
source(
    *(WRITE, "triton", "gfx942", "the keys' scale for values"),
    Edit(TRITON_COPY, "v_scale, v_scale_head, FORMAT, CONVERT,", "k_scale, v_scale_head, FORMAT, CONVERT,"),
)
