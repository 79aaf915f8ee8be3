"""`portable.kv_cache_write`, over the ops of spec.yaml and fp8.yaml."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import documented
from portable.kernels._lib import cache_scales

_op: Any = dispatcher.op("kv_cache_write")
_fp8: Any = dispatcher.op("kv_cache_write_fp8")


@documented
def kv_cache_write(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, *,
    k_scale: Tensor | None = None, v_scale: Tensor | None = None,
) -> None:  # fmt: skip
    """Keys and values of new tokens written into a cache of pages, in place, in one launch.

    k is (tokens, key heads, dim), v as well, the caches (pages, page size, key heads, dim), slots (tokens),
    int64 or int32: token i goes to page slots[i] // page size at slots[i] % page size; one that is not
    within the cache, as -1, is skipped. The cache is that of `portable.attention_paged`, and the arguments
    are in the order of vLLM's reshape_and_cache_flash.

    The caches have k's dtype; or beside k of bfloat16 or float16 both are float8_e4m3fn, float8_e5m2 or
    float8_e4m3fnuz, and k over k_scale and v over v_scale are quantised, as `portable.quantize_fp8` does
    with a given scale. Both scales are given then: float32, one element for all, or (key heads,).

    Raises ShapeError, DtypeError, ParameterError or NotATensorError that name the argument.
    """
    if scales := cache_scales.of_heads("kv_cache_write", k_cache, v_cache, k_scale, v_scale):
        return _fp8(k, v, k_cache, v_cache, slots, *scales)
    return _op(k, v, k_cache, v_cache, slots)
