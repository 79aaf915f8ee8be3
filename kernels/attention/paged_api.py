"""`portable.attention_paged`, over the op of paged.yaml."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_flag, documented
from portable.kernels.attention.api import Window, cast_sinks, normalize_window

_op: Any = dispatcher.op("attention_paged")


@documented
def attention_paged(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *,
    scale: float | None = None, window: Window = None, softcap: float | None = None,
    sinks: Tensor | None = None, return_lse: bool = False,
) -> Any:  # fmt: skip
    """attention of the last tokens of each sequence over a cache in pages.

    q is (sequences, queries, heads, dim), the caches (pages, page size, key heads, dim), block_table
    (sequences, pages of a sequence) and seq_lens (sequences), both int32; a length counts the queries' own
    keys, which are in the cache; the last query stands at the last key and sees none after its own. `window`
    is how many keys before its own a query sees. The rest is as in `attention`; gradients run torch. lse is
    (sequences, heads, queries).

    Raises ShapeError, DtypeError or ParameterError that name the argument.
    """
    check_flag("attention_paged", "return_lse", return_lse)
    left, _ = normalize_window("attention_paged", window, causal=True)
    o, lse = _op(
        q, k_cache, v_cache, block_table, seq_lens, cast_sinks(sinks, q), scale=scale, window_left=left,
        softcap=softcap,
    )  # fmt: skip
    return (o, lse) if return_lse else o
