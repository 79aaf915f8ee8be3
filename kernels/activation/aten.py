"""torch's operators of activations."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import portable
from portable.dispatch import dispatcher

_backward: Any = dispatcher.op("activation_backward")
_GELU = {"none": "gelu", "tanh": "gelu_tanh"}


def silu(self: Tensor) -> Tensor:
    return portable.activation(self, "silu")


def silu_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    return _backward(grad_output, self, activation="silu")


def gelu(self: Tensor, *, approximate: str = "none") -> Tensor:
    return portable.activation(self, _GELU[approximate])


def gelu_backward(grad_output: Tensor, self: Tensor, *, approximate: str = "none") -> Tensor:
    return _backward(grad_output, self, activation=_GELU[approximate])


OVERRIDES = {
    "silu": silu,
    "silu_backward": silu_backward,
    "gelu": gelu,
    "gelu_backward": gelu_backward,
}
