"""The gradient formula of swiglu."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import portable


def save(
    inputs: dict[str, Tensor | None], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Any, ...]:
    """What the backward pass needs: gate and up."""
    return inputs["gate"], inputs["up"]


def backward(
    saved: tuple[Any, ...], params: dict[str, Any], needs: dict[str, bool], dy: Tensor
) -> dict[str, Tensor | None]:
    """The gradients of gate and up."""
    dgate, dup = portable.swiglu_backward(dy, *saved)
    return {"gate": dgate if needs["gate"] else None, "up": dup if needs["up"] else None}
