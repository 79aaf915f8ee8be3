"""The gradient formula of linear_with_preactivation: linear's, through a z that is there."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from portable.kernels.linear.gradient import through_activation, through_product


def save(
    inputs: dict[str, Tensor | None], outputs: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[Any, ...]:
    return inputs["x"], inputs["weight"], inputs["bias"], outputs[1]


def backward(
    saved: tuple[Any, ...],
    params: dict[str, Any],
    needs: dict[str, bool],
    dy: Tensor | None,
    dz: Tensor | None,
) -> dict[str, Tensor | None]:
    """The gradients of x, weight and bias from those of y and z, each of which may be absent."""
    x, weight, bias, z = saved
    if dy is None:
        return {} if dz is None else through_product(x, weight, bias, dz, None, needs)
    dpre, dbias = through_activation(dy, z, params["activation"], dz is None and needs["bias"])
    return through_product(x, weight, bias, dpre if dz is None else dpre + dz, dbias, needs)
