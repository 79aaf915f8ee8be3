"""What a user of torch alone would call: the baseline of qk_norm_rope_kv_write's throughput."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from portable.kernels.kv_cache_write import baseline as cache
from portable.kernels.qk_norm_rope import baseline as rotary
from portable.kernels.rope import baseline as rope


def qk_norm_rope_kv_write(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, k_cache: Tensor, v_cache: Tensor,
    slots: Tensor, positions: Tensor | None = None, q_weight: Tensor | None = None,
    k_weight: Tensor | None = None, *, eps: float = 1e-6, interleaved: bool = False,
) -> Tensor:  # fmt: skip
    """Two norms where there are weights, the rotations, and assignment by slots."""
    if q_weight is None or k_weight is None:
        rotated, keys = rope.rope(q, k, cos, sin, positions, interleaved=interleaved)
    else:
        settings: dict[str, Any] = {"eps": eps, "interleaved": interleaved}
        rotated, keys = rotary.qk_norm_rope(q, k, q_weight, k_weight, cos, sin, positions, **settings)
    cache.kv_cache_write(keys.flatten(0, 1), v.flatten(0, 1), k_cache, v_cache, slots.flatten())
    return rotated


def derived(given: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Tensor]:
    """kv_cache_write's slots, by sequence."""
    sizes = {"M": facts["Z"] * facts["M"], "P": facts["N"], "S": facts["S"], "I": facts["I"]}
    return {"slots": cache.derived(given, sizes)["slots"].view(facts["Z"], facts["M"])}
