"""What people call for packed sequences and for a paged cache, over the ops."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from portable.dispatch import dispatcher

from .words import Window, sides, statistics


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, *, causal: bool = False,
    scale: float | None = None, window: Window = None, softcap: float | None = None,
    sinks: Tensor | None = None, return_lse: bool = False,
) -> Any:  # fmt: skip
    """attention over packed sequences: q (tokens, heads, dim), k and v (tokens, key heads, dim).

    Sequence z has the queries from cu_seqlens_q[z] to cu_seqlens_q[z + 1], int32, and keys likewise. The
    largest lengths are taken as other libraries take them, and not needed. The rest is as in `attention`,
    for each sequence by itself; lse is (heads, tokens). Tokens of no sequence get zeros, and -inf.

    Raises ShapeError, DtypeError or ParameterError that name the argument.
    """
    left, right = sides("attention_varlen", window, causal)
    o, lse = dispatcher.op("attention_varlen")(
        q, k, v, cu_seqlens_q, cu_seqlens_k, statistics(sinks, q), causal=causal, scale=scale,
        window_left=left, window_right=right, softcap=softcap,
    )  # fmt: skip
    return (o, lse) if return_lse else o


def attention_paged(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, *,
    scale: float | None = None, window: Window = None, softcap: float | None = None,
    sinks: Tensor | None = None, return_lse: bool = False,
) -> Any:  # fmt: skip
    """attention of the last tokens of each sequence over a cache in pages.

    q is (sequences, queries, heads, dim), the caches (pages, page size, key heads, dim), block_table
    (sequences, pages of a sequence) and seq_lens (sequences), both int32; a length counts the queries' own
    keys, which are in the cache; the last query stands at the last key and sees none after its own. `window`
    is how many keys before its own a query sees. The rest is as in `attention`; there is no gradient. lse is
    (sequences, heads, queries).

    Raises ShapeError, DtypeError or ParameterError that name the argument.
    """
    left, _ = sides("attention_paged", window, causal=True)
    o, lse = dispatcher.op("attention_paged")(
        q, k_cache, v_cache, block_table, seq_lens, statistics(sinks, q), scale=scale, window_left=left,
        softcap=softcap,
    )  # fmt: skip
    return (o, lse) if return_lse else o
