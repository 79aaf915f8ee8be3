"""`portable.attention` behind transformers' AttentionInterface and AttentionMaskInterface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function, sdpa_mask

import portable

NAME = "portable"
"""What `attn_implementation` is called."""


def attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    *, scaling: float | None = None, dropout: float = 0.0, sliding_window: int | None = None,
    softcap: float | None = None, s_aux: Tensor | None = None, is_causal: bool | None = None,
    position_bias: Tensor | None = None, cache: Any = None, cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """(batch, heads, queries, size) in, (batch, queries, heads, size) out, as transformers asks.

    attention_mask: None, where causality and the window are the whole mask; boolean, True for the keys that a
    query sees; or what is added to the scores. Both of the latter hold causality and window. With
    cu_seq_lens_q and cu_seq_lens_k the batch is one row of sequences, one after another, and their lengths
    take the mask's place. s_aux: a sink for each head. There are no weights to return.

    Raises ValueError for dropout, and for the paged cache of continuous batching.
    """
    name = type(module).__name__
    if dropout:
        raise ValueError(
            f"portable.attention has no dropout, and {name} asks for {dropout}. "
            "Set attention_dropout=0.0 in the model's config, or another attn_implementation"
        )
    if cache is not None:
        raise ValueError(
            f"portable.attention does not read the paged cache of continuous batching that {name} was given. "
            "Use another attn_implementation there"
        )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    window = None if sliding_window is None else (sliding_window - 1, 0 if causal else sliding_window - 1)
    common: dict[str, Any] = {"scale": scaling, "softcap": softcap, "sinks": s_aux}
    if cu_seq_lens_q is not None and cu_seq_lens_k is not None and len(query) == 1 and position_bias is None:
        rows = (each[0].transpose(0, 1) for each in (query, key, value))
        o = portable.attention_varlen(
            *rows, cu_seq_lens_q.int(), cu_seq_lens_k.int(), causal=causal, window=window, **common
        )
        return o[None], None
    bias = None if position_bias is None else position_bias.to(query.dtype)
    if attention_mask is not None:
        causal, window = False, None
        bias = _added(attention_mask, bias, query)
    o = portable.attention(query, key, value, causal=causal, window=window, bias=bias, **common)
    return o.transpose(1, 2).contiguous(), None


def _added(mask: Tensor, bias: Tensor | None, query: Tensor) -> Tensor:
    """A mask as what is added to the scores, beside `bias`."""
    if mask.dtype != torch.bool:
        return mask.to(query.dtype) if bias is None else mask.to(query.dtype) + bias
    if bias is None:
        bias = torch.zeros((), dtype=query.dtype, device=query.device)
    return bias.where(mask, -torch.inf)


def mask(
    *, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0, config: Any = None,
    mask_function: Callable[..., Any] = causal_mask_function, attention_mask: Tensor | None = None,
    local_size: int | None = None, allow_is_causal_skip: bool = True, **rest: Any,
) -> Tensor | None:  # fmt: skip
    """None where the last query sees the last key, nothing is padded, and causality with a sliding window
    says the rest; else the boolean mask.

    Under torch.compile no value of a tensor is read: a padding mask, or a static cache's offset, gives the
    boolean mask.
    """
    sliding = local_size is not None and local_size == getattr(config, "sliding_window", None)
    plain = mask_function is causal_mask_function or sliding
    if allow_is_causal_skip and plain and _joined(q_offset, q_length, kv_offset, kv_length):
        if attention_mask is None:
            return None
        if not torch.compiler.is_compiling() and bool(attention_mask.all()):
            return None
    return sdpa_mask(
        q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        mask_function=mask_function, attention_mask=attention_mask, local_size=local_size,
        allow_is_causal_skip=False, **rest,
    )  # fmt: skip


def _joined(q_offset: Any, q_length: int, kv_offset: int, kv_length: int) -> bool:
    if isinstance(q_offset, Tensor) and torch.compiler.is_compiling():
        return False
    return bool(q_offset + q_length == kv_offset + kv_length)


def register() -> None:
    """Make `attn_implementation="portable"` known to transformers."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, mask)


def unregister() -> None:
    """Take it back; models that still name it raise transformers' own error."""
    for interface in (AttentionInterface, AttentionMaskInterface):
        interface._global_mapping.pop(NAME, None)  # it has register alone
