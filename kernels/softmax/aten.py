"""torch's operators of softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import portable
from portable.dispatch import dispatcher

_backward: Any = dispatcher.op("softmax_backward")
ROUNDED = "the result has another dtype than the input"


def forward(self: Tensor, dim: int, half_to_float: bool) -> Tensor | str:
    return ROUNDED if half_to_float else portable.softmax(self, dim)


def backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor | str:
    if input_dtype != output.dtype:
        return ROUNDED
    return _backward(grad_output, output, dim)


OVERRIDES = {"_softmax": forward, "_softmax_backward_data": backward}
