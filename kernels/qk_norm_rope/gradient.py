"""The gradient of qk_norm_rope: of the gradients that there are, rotated back, rms_norm's, head by head.

What lies between the two is rounded to the type of q and k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import portable
from portable.kernels.rope import gradient as rope


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
    rotated = {name: needs[name] or needs[f"{name}_weight"] for name in ("q", "k")}
    turned = rope.backward(angles, params, rotated, dq, dk)
    for name, x, weight in (("q", q, q_weight), ("k", k, k_weight)):
        if turned[name] is not None:
            dx, dweight = portable.rms_norm_backward(turned[name], x, weight, eps=params["eps"])
            found |= {name: dx, f"{name}_weight": dweight}
    return {name: d if needs[name] else None for name, d in found.items()}
