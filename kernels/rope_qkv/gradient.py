"""The gradient of rope_qkv: views of rope_qkv_backward's one tensor. Neither q, k nor v is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import portable
from portable.kernels.rope import gradient as rope


def save(inputs: Mapping[str, Any], outputs: Sequence[Any], params: Mapping[str, Any]) -> tuple[Any, ...]:
    """The angles."""
    return rope.save(inputs, outputs, params)


def backward(
    saved: Sequence[Any], params: Mapping[str, Any], needs: Mapping[str, bool], dq: Any, dk: Any, dv: Any
) -> dict[str, Any]:
    """Those of q, k and v, side by side in one tensor where all three results have one."""
    found: dict[str, Any] = dict.fromkeys(needs)
    if dq is None or dk is None or dv is None:
        own = {name: needs[name] for name in ("q", "k")}
        turned = rope.backward(saved, params, own, dq, dk)
        return found | turned | {"v": dv if needs["v"] else None}
    joined = portable.rope_qkv_backward(dq, dk, dv, *saved, **params)
    parts = joined.split([each.shape[2] for each in (dq, dk, dv)], 2)
    return found | {name: d for name, d in zip("qkv", parts, strict=True) if needs[name]}
