"""The meaning of qk_norm_rope_kv_write, in float64 on the CPU: qk_norm_rope or rope, then kv_cache_write."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.kernels.kv_cache_write import reference as cache
from portable.kernels.qk_norm_rope import reference as rotary
from portable.kernels.rope import reference as rope


def _written(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    return cache.kv_cache_write(k.flatten(0, 1), v.flatten(0, 1), k_cache, v_cache, slots.flatten())


def rotated(
    q: Tensor, k: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor, sin: Tensor,
    positions: Tensor | None, *, eps: float, interleaved: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """qk_norm_rope, or without weights rope."""
    if q_weight is None or k_weight is None:
        return rope.rope(q, k, cos, sin, positions, interleaved=interleaved)
    return rotary.qk_norm_rope(
        q, k, q_weight, k_weight, cos, sin, positions, eps=eps, interleaved=interleaved
    )


def qk_norm_rope_kv_write(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, k_cache: Tensor, v_cache: Tensor,
    slots: Tensor, positions: Tensor | None = None, q_weight: Tensor | None = None,
    k_weight: Tensor | None = None, *, eps: float = 1e-6, interleaved: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """q rotated, and the caches with k rotated and v in them."""
    q, k = rotated(q, k, q_weight, k_weight, cos, sin, positions, eps=eps, interleaved=interleaved)
    return q, *_written(k, v, k_cache, v_cache, slots)


def error_scale(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, k_cache: Tensor, v_cache: Tensor,
    slots: Tensor, positions: Tensor | None = None, q_weight: Tensor | None = None,
    k_weight: Tensor | None = None, *, eps: float = 1e-6, interleaved: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    """qk_norm_rope's; nothing is added up in the values, nor in the rest of the caches."""
    if q_weight is None or k_weight is None:
        own = rope.error_scale(q, k, cos, sin, positions, interleaved=interleaved)
    else:
        settings: dict[str, Any] = {"eps": eps, "interleaved": interleaved}
        own = rotary.error_scale(q, k, q_weight, k_weight, cos, sin, positions, **settings)
    none = torch.zeros_like(k_cache), torch.zeros_like(v_cache)
    k_scale, v_scale = _written(own["k_rotated"], torch.zeros_like(v), *none, slots)
    return {"q_rotated": own["q_rotated"], "k_cache": k_scale, "v_cache": v_scale}


def slots(axes: dict[str, int], bits: Any) -> dict[str, Tensor]:
    """kv_cache_write's, by sequence."""
    sizes = {"M": axes["Z"] * axes["M"], "P": axes["N"], "S": axes["S"]}
    return {"slots": cache.slots(sizes, bits)["slots"].view(axes["Z"], axes["M"])}
