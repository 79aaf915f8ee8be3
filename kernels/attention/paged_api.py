"""`portable.attention_paged`, over the op of paged.yaml."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_flag, documented
from portable.kernels._lib import cache_scales
from portable.kernels.attention.api import Window, cast_sinks, normalize_window

_op: Any = dispatcher.op("attention_paged")
_fp8: Any = dispatcher.op("attention_paged_fp8")


@documented
def attention_paged(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *,
    scale: float | None = None, window: Window = None, softcap: float | None = None,
    sinks: Tensor | None = None, k_scale: Tensor | None = None, v_scale: Tensor | None = None,
    return_lse: bool = False,
) -> Any:  # fmt: skip
    """attention of the last tokens of each sequence over a cache in pages.

    q is (sequences, queries, heads, dim), the caches (pages, page size, key heads, dim), block_table
    (sequences, pages of a sequence) and seq_lens (sequences), both int32; a length counts the queries' own
    keys, which are in the cache; the last query stands at the last key and sees none after its own. `window`
    is how many keys before its own a query sees. The rest is as in `attention`; gradients run torch. lse is
    (sequences, heads, queries).

    The caches have q's dtype; or beside q of bfloat16 or float16 both are float8_e4m3fn, float8_e5m2 or
    float8_e4m3fnuz, whose numbers times k_scale are the keys and times v_scale the values. Both scales are
    given then: float32, one element for all, or (key heads,); they are read on the GPU.

    Raises ShapeError, DtypeError or ParameterError that name the argument.
    """
    name = "attention_paged"
    check_flag(name, "return_lse", return_lse)
    left, _ = normalize_window(name, window, causal=True)
    params = {"scale": scale, "window_left": left, "softcap": softcap}
    sinks = cast_sinks(sinks, q)
    if scales := cache_scales.of_heads(name, k_cache, v_cache, k_scale, v_scale):
        o, lse = _fp8(q, k_cache, v_cache, block_table, seq_lens, *scales, sinks, **params)
    else:
        o, lse = _op(q, k_cache, v_cache, block_table, seq_lens, sinks, **params)
    return (o, lse) if return_lse else o
