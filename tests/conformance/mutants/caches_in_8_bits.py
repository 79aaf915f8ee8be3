"""Wrong attention_paged_fp8 and kv_cache_write_fp8: scales and codes."""

from __future__ import annotations

import torch

from .registry import Edit, mutant, source
from .tools import right

READ, WRITE = "attention_paged_fp8", "kv_cache_write_fp8"
HIP, TRITON = "attention/gfx/decode.hip", "attention/triton/decode.py"
COPY, TRITON_COPY = "kv_cache_write/kv_cache_write.cu", "kv_cache_write/triton_impl.py"


def _reads(name):
    """A mutant whose decode gets the arguments that the decorated function returns, in place of its own."""

    def add(change):
        mutant(READ, name)(lambda **given: right(READ)(**{**given, **change(given)}))
        return change

    return add


def _of_scales(name):
    """The same of a function of k_scale and v_scale."""

    def add(change):
        def changed(given):
            return dict(zip(("k_scale", "v_scale"), change(given["k_scale"], given["v_scale"]), strict=True))

        _reads(name)(changed)
        return change

    return add


def _of_cache(name):
    """The same of a function of a cache, of keys' and of values'."""

    def add(change):
        _reads(name)(lambda given: {each: change(given[each]) for each in ("k_cache", "v_cache")})
        return change

    return add


@_of_scales("the keys' scale for values")
def keys_scale(k_scale, v_scale):
    return k_scale, k_scale


@_of_scales("the scales of the next head")
def next_head(k_scale, v_scale):
    return k_scale.roll(-1), v_scale.roll(-1)


@_of_scales("the first head's scales for all")
def first_head(*scales):
    return [scale[:1].expand(scale.shape) for scale in scales]


@_of_scales("k_scale left out")
def no_k_scale(k_scale, v_scale):
    return torch.ones_like(k_scale), v_scale


@_of_scales("v_scale left out")
def no_v_scale(k_scale, v_scale):
    return k_scale, torch.ones_like(v_scale)


@_of_scales("a scale with a stride of 0 walked as if contiguous")
def walked_scale(*scales):
    def walked(scale):
        wrong = torch.full_like(scale, 7.0)
        wrong[:1] = scale[:1]
        return wrong if scale.stride(0) == 0 and len(scale) > 1 else scale

    return [walked(scale) for scale in scales]


@_of_cache("fnuz codes taken for OCP's")
def _as_ocp(cache):
    return cache.view(torch.float8_e4m3fn) if cache.dtype == torch.float8_e4m3fnuz else cache


@_of_cache("NaN codes taken for 480")
def no_nan(cache):
    codes = cache.view(torch.uint8).clone()
    if cache.dtype == torch.float8_e4m3fn:
        codes[codes & 0x7F == 0x7F] -= 1
    return codes.view(cache.dtype)


@_of_cache("subnormal codes taken for 0")
def no_subnormals(cache):
    codes, small = cache.view(torch.uint8).clone(), 4 if cache.dtype == torch.float8_e5m2 else 8
    codes[(codes & 0x7F) < small] = 0
    return codes.view(cache.dtype)


@_reads("queries rounded to the cache's type")
def narrow_queries(given):
    q = given["q"]
    return {"q": q.float().clamp(-240, 240).to(given["k_cache"].dtype).to(q.dtype)}


@_reads("queries through float16 as they are")
def queries_in_float16(given):
    return {"q": given["q"].to(torch.float16).to(given["q"].dtype)}


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
    _write(k, v, _as_ocp(k_cache), _as_ocp(v_cache), slots, k_scale, v_scale)


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
