"""torch's own attention kernels, selected by name, as baselines: cuDNN's, flash's, FlexAttention compiled.

torch takes one of the first two for `scaled_dot_product_attention`; which one depends on its version.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.conformance.perf.libraries import Call, Params, Tensors, Unsupported, given


def _plain(tensors: Tensors, params: Params) -> None:
    """Raises Unsupported for what both kernels lack."""
    lacking = [name for name in ("bias", "sinks", "dlse") if tensors.get(name) is not None]
    lacking += [name for name in ("window_left", "window_right", "softcap") if params[name] is not None]
    if lacking:
        raise Unsupported(f"has no {lacking[0]}")
    q, k = given(tensors, "q"), given(tensors, "k")
    if params["causal"] and q.shape[-2] not in (1, k.shape[-2]):
        raise Unsupported("aligns a causal mask at the first key where lengths differ")


def _forward(backend: str, tensors: Tensors, params: Params) -> Call:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    _plain(tensors, params)
    q, k, v = (given(tensors, name) for name in ("q", "k", "v"))
    function = functools.partial(
        torch.nn.functional.scaled_dot_product_attention, q, k, v, scale=params["scale"],
        is_causal=params["causal"] and q.shape[-2] > 1, enable_gqa=q.shape[-3] != k.shape[-3],
    )  # fmt: skip
    kernel = getattr(SDPBackend, backend)

    def call() -> tuple[Tensor, None]:
        with sdpa_kernel(kernel):
            return function(), None

    return call


def _cudnn_backward(tensors: Tensors, params: Params) -> Call:
    """The backward kernel alone: what the forward pass saves is computed first."""
    _plain(tensors, params)
    do, q, k, v = (given(tensors, name) for name in ("do", "q", "k", "v"))
    aten, causal, scale = torch.ops.aten, params["causal"], params["scale"]
    made = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False, scale=scale)
    o, lse, *rest = made
    starts_q, starts_k, most_q, most_k, seed, offset, _ = rest
    return lambda: aten._scaled_dot_product_cudnn_attention_backward(
        do, q, k, v, o, lse, seed, offset, None, starts_q, starts_k, most_q, most_k, 0.0, causal, scale=scale
    )


def _flash_backward(tensors: Tensors, params: Params) -> Call:
    _plain(tensors, params)
    do, q, k, v = (given(tensors, name) for name in ("do", "q", "k", "v"))
    if q.shape[-3] != k.shape[-3]:
        raise Unsupported("has no shared key heads in its backward pass")
    aten, causal, scale = torch.ops.aten, params["causal"], params["scale"]
    o, lse, *rest = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
    starts_q, starts_k, most_q, most_k, seed, offset, _ = rest
    return lambda: aten._scaled_dot_product_flash_attention_backward(
        do, q, k, v, o, lse, starts_q, starts_k, most_q, most_k, 0.0, causal, seed, offset, scale=scale
    )


def _flex(tensors: Tensors, params: Params) -> Call:
    """FlexAttention under torch.compile, its mask of blocks made beforehand."""
    from torch.nn.attention.flex_attention import create_block_mask

    for name in ("bias", "sinks"):
        if tensors.get(name) is not None:
            raise Unsupported(f"has no {name}")
    q, k, v = (given(tensors, name) for name in ("q", "k", "v"))
    shift = k.shape[-2] - q.shape[-2]
    left, right, cap = params["window_left"], params["window_right"], params["softcap"]
    right = min(right or 0, 0) if params["causal"] else right

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        ahead = j - i - shift
        inside = ahead == ahead if right is None else ahead <= right
        return inside if left is None else inside & (ahead >= -left)

    def capped(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return cap * torch.tanh(score / cap)

    mask = None
    if left is not None or right is not None:
        mask = create_block_mask(seen, None, None, q.shape[-2], k.shape[-2], device=str(q.device))
    function = _compiled_flex()
    return lambda: (
        function(
            q, k, v, score_mod=None if cap is None else capped, block_mask=mask, scale=params["scale"],
            enable_gqa=q.shape[-3] != k.shape[-3],
        ),
        None,
    )  # fmt: skip


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


CUDNN = {"attention": functools.partial(_forward, "CUDNN_ATTENTION"), "attention_backward": _cudnn_backward}
FLASH = {"attention": functools.partial(_forward, "FLASH_ATTENTION"), "attention_backward": _flash_backward}
FLEX = {"attention": _flex}
