"""Norms, softmax, gated activations and rotation with the arguments of Liger's ops.

Where Liger rounds in between, such as silu before its product, these round once. `in_place` and `row_mode`
tell Liger's kernels where to write a gradient and how to launch; they change no result, and are not read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import portable
from portable.integrations.liger.handing import NotTaken

_NARROW = (torch.float16, torch.bfloat16)


def rms_norm(
    x: Tensor, weight: Tensor | None, eps: float, offset: float = 0.0, casting_mode: Any = "llama",
    in_place: bool = False, row_mode: bool | None = None,
) -> Tensor:  # fmt: skip
    cast = _cast_before_weight(x, casting_mode)
    _hold_dtypes(x, weight=weight)
    return portable.rms_norm(x, weight, eps=eps, weight_offset=offset, cast_before_weight=cast)


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0, casting_mode: Any = "llama",
    in_place: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    cast = _cast_before_weight(x, casting_mode)
    _hold_dtypes(x, weight=weight)
    _hold_alike(x, residual)
    y, total = portable.fused_add_rms_norm(
        x, residual, weight, eps=eps, weight_offset=offset, cast_before_weight=cast
    )
    return y, total


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    _hold_dtypes(x, weight=weight, bias=bias)
    return portable.layer_norm(x, weight, bias, eps=eps)


def softmax(x: Tensor) -> Tensor:
    return portable.softmax(x, -1)


def swiglu(a: Tensor, b: Tensor, gate_multiplier: float = 1.0, down_multiplier: float = 1.0) -> Tensor:
    if gate_multiplier != 1.0:  # within silu: of float32, not rounded
        raise NotTaken(f"gate_multiplier={gate_multiplier}")
    _hold_alike(a, b)
    y = portable.swiglu(a, b)
    return y if down_multiplier == 1.0 else y * down_multiplier  # as Liger has it, after the rounding


def geglu(a: Tensor, b: Tensor) -> Tensor:
    _hold_alike(a, b)
    return portable.gelu_tanh(a) * b


def rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Any = None, unsqueeze_dim: int = 1, *,
    rotary_dim: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q and k of (batch, heads, tokens, D), for any unsqueeze_dim, as in Liger; cos and sin of (1 or batch,
    tokens, columns), without the first dimension, or with one of 1 more. Liger does not read position_ids."""
    if cos.dim() == 4:
        dim = next((dim for dim in (unsqueeze_dim, 1) if cos.shape[dim] == 1), None)
        if dim is None:
            raise NotTaken(f"cos of {tuple(cos.shape)}")
        cos, sin = cos.squeeze(dim), sin.squeeze(dim)
    if cos.dim() == 2:
        cos, sin = cos[None], sin[None]
    if not q.dim() == k.dim() == 4 or cos.dim() != 3 or cos.shape != sin.shape:
        raise NotTaken(
            f"q, k, cos and sin of {', '.join(str(tuple(each.shape)) for each in (q, k, cos, sin))}"
        )
    tokens, width = q.shape[2:]
    if len(cos) not in (1, len(q)) or cos.shape[1] < tokens or (len(cos) > 1 and cos.shape[1] != tokens):
        raise NotTaken(f"tables of {tuple(cos.shape[:2])} for {len(q)} sequences of {tokens} tokens")
    if not (q.dtype == k.dtype and cos.dtype == sin.dtype and _pair(q.dtype, cos.dtype)):
        raise NotTaken(f"q of {q.dtype}, k of {k.dtype}, cos of {cos.dtype} and sin of {sin.dtype}")
    rotated = min(cos.shape[-1], width) if rotary_dim is None else rotary_dim
    if not 1 < rotated <= min(width, 1024) or width > 1024 or cos.shape[-1] < rotated // 2:
        raise NotTaken(f"rotary_dim={rotary_dim}, heads of {width} columns and tables of {cos.shape[-1]}")
    if rotary_dim is not None and rotary_dim % 2:
        raise NotTaken(f"rotary_dim={rotary_dim}")
    if len(cos) == 1:
        cos, sin = cos[0], sin[0]
    tables = [each.detach()[..., : rotated // 2] for each in (cos, sin)]  # Liger gives them no gradient
    both = portable.rope(*(_unit(each.transpose(1, 2)) for each in (q, k)), *map(_unit, tables))
    return both[0].transpose(1, 2), both[1].transpose(1, 2)


def _cast_before_weight(x: Tensor, casting_mode: Any) -> bool:
    if casting_mode in ("llama", "gemma"):
        return casting_mode == "llama"
    if casting_mode == "none" and x.dtype not in _NARROW:
        return False
    raise NotTaken(f"casting_mode={casting_mode!r} of {x.dtype}")


def _pair(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether the ops take a weight or table of `other` beside `dtype`."""
    return other == dtype or (dtype in _NARROW and other == torch.float32)


def _hold_dtypes(x: Tensor, **parameters: Tensor | None) -> None:
    given = {name: each.dtype for name, each in parameters.items() if each is not None}
    if not all(_pair(x.dtype, each) for each in given.values()) or len({*given.values()}) > 1:
        raise NotTaken(", ".join(f"{name} of {each}" for name, each in given.items()) + f" beside {x.dtype}")


def _hold_alike(a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape or a.dtype != b.dtype:
        raise NotTaken(f"{tuple(a.shape)} of {a.dtype} beside {tuple(b.shape)} of {b.dtype}")


def _unit(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
