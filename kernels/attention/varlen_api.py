"""`portable.attention_varlen`, over the op of varlen.yaml."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_flag, documented
from portable.kernels.attention.api import Window, cast_sinks, normalize_window

_op: Any = dispatcher.op("attention_varlen")


@documented
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
    check_flag("attention_varlen", "return_lse", return_lse)
    left, right = normalize_window("attention_varlen", window, causal)
    o, lse = _op(
        q, k, v, cu_seqlens_q, cu_seqlens_k, cast_sinks(sinks, q), causal=causal, scale=scale,
        window_left=left, window_right=right, softcap=softcap,
    )  # fmt: skip
    return (o, lse) if return_lse else o
