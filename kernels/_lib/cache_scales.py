"""Scales per key head: k_scale and v_scale of a KV cache in 8 bits, as the ops over it take them, and the
scales of attention in 8 bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.dispatch.arguments import check_tensor
from portable.errors import ParameterError, ShapeError

FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz)
"""The dtypes of such a cache."""
_EXPECTED = "a float32 tensor of one element, or of one for each key head"


def of_heads(op: str, k_cache: Any, v_cache: Any, k_scale: Any, v_scale: Any) -> tuple[Tensor, ...]:
    """Both scales as (G,), one for all heads with a stride of 0; none where neither cache has 8 bits.

    Raises ParameterError for scales without such a cache and the reverse, ShapeError or NotATensorError.
    """
    given = {"k_scale": k_scale, "v_scale": v_scale}
    if not any(getattr(cache, "dtype", None) in FORMATS for cache in (k_cache, v_cache)):
        for name, scale in given.items():
            if scale is not None:
                raise ParameterError(op, name, scale, "None, as the caches have no type of 8 bits")
        return ()
    heads = tuple(check_tensor(op, "k_cache", k_cache).shape[-2:-1])
    for name, scale in given.items():
        if scale is None:
            raise ParameterError(op, name, scale, f"{_EXPECTED}: the caches have 8 bits")
    return tuple(one_or_of_heads(op, name, scale, heads, _EXPECTED) for name, scale in given.items())


def one_or_of_heads(op: str, name: str, scale: Any, heads: tuple[int, ...], expected: str) -> Tensor:
    """A scale of the shape `heads`, one for all with strides of 0. Raises ShapeError or NotATensorError."""
    shape = tuple(check_tensor(op, name, scale, expected).shape)
    if scale.numel() == 1:
        return scale.reshape(()).expand(heads)
    if shape != heads:
        raise ShapeError(op, name, shape, f"one element, or {heads}")
    return scale
