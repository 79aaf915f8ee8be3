"""`portable.attention_fp8`, over the op of fp8.yaml."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_flag, check_tensor, documented
from portable.errors import ParameterError
from portable.kernels._lib.cache_scales import one_or_of_heads
from portable.kernels.attention.api import Window, normalize_window

_NAME = "attention_fp8"
_op: Any = dispatcher.op(_NAME)
_RESULTS = (torch.bfloat16, torch.float16)
_EXPECTED = "a float32 tensor of one element, or of one for each batch and key head"
_HINTS = {
    "q_descale": " It is q_scale here.",
    "k_descale": " It is k_scale here.",
    "v_descale": " It is v_scale here.",
    "softmax_scale": " It is scale here.",
    "window_size": " It is window here.",
    "out_dtype": " It is output_dtype here.",
    "dtype": " It is output_dtype here.",
}


@partial(documented, hints=_HINTS)
def attention_fp8(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: Window = None,
    softcap: float | None = None,
    output_dtype: torch.dtype = torch.bfloat16,
    return_lse: bool = False,
) -> Any:
    """attention of queries, keys and values in 8 bits, for inference.

    q is (..., heads, queries, D), k (..., key heads, keys, D) and v (..., key heads, keys, E), all
    float8_e4m3fn, or all float8_e4m3fnuz. q_scale, k_scale and v_scale are what their numbers are multiplied
    by, float32: one element for all, or (..., key heads), as FlashAttention 3 shapes its q_descale, k_descale
    and v_descale: query heads share a scale as they share keys. They are read on the GPU. `causal`, `scale`,
    `window` and `softcap` are as in `attention`.

    Answers (..., heads, queries, E) in output_dtype, bfloat16 or float16; with `return_lse` also
    log(sum(exp(scores))), (..., heads, queries) in float32. The weights may be rounded to e4m3 once before
    they are multiplied with the values, as FlashAttention 3 does: an error of up to 2^-4 of each term. There
    is no gradient: one that is asked for is an UnsupportedGradientError.

    Raises ShapeError, DtypeError or ParameterError that name the argument.
    """
    check_flag(_NAME, "return_lse", return_lse)
    left, right = normalize_window(_NAME, window, causal)
    if output_dtype not in _RESULTS:
        raise ParameterError(_NAME, "output_dtype", output_dtype, "torch.bfloat16 or torch.float16")
    heads = tuple(check_tensor(_NAME, "k", k).shape[:-2])
    given = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
    scales = (one_or_of_heads(_NAME, name, each, heads, _EXPECTED) for name, each in given.items())
    params = {"causal": causal, "scale": scale, "window_left": left, "window_right": right}
    o, lse = _op(q, k, v, *scales, output_dtype=output_dtype, softcap=softcap, **params)
    return (o, lse) if return_lse else o
