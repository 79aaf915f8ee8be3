"""The gradient of qk_norm_rope: of the gradients that there are, rotated back, rms_norm's, head by head.

What lies between the two is rounded to the type of q and k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import portable


def save(inputs: Mapping[str, Any], outputs: Sequence[Any], params: Mapping[str, Any]) -> tuple[Any, ...]:
    """What goes in."""
    names = ("q", "k", "q_weight", "k_weight", "cos", "sin", "positions")
    return tuple(inputs[name] for name in names)


def backward(
    saved: Sequence[Any], params: Mapping[str, Any], needs: Mapping[str, bool], dq: Any, dk: Any
) -> dict[str, Any]:
    """Those of q, k and their weights from those of the results, which are None where a result has none."""
    q, k, q_weight, k_weight, *angles = saved
    found: dict[str, Any] = dict.fromkeys(needs)
    given = {
        name: d
        for name, d in (("q", dq), ("k", dk))
        if d is not None and (needs[name] or needs[f"{name}_weight"])
    }
    some = next(iter(given.values()), None)
    if some is None:
        return found
    both = [given.get(name, some[:, :, :0]) for name in ("q", "k")]
    turned = portable.rope_backward(*both, *angles, interleaved=params["interleaved"])
    for name, x, weight, dy in zip(("q", "k"), (q, k), (q_weight, k_weight), turned, strict=True):
        if name in given:
            dx, dweight = portable.rms_norm_backward(dy, x, weight, eps=params["eps"])
            found |= {name: dx, f"{name}_weight": dweight}
    return {name: d if needs[name] else None for name, d in found.items()}
