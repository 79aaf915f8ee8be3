"""torch's operators of log_softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import portable
from portable.dispatch import dispatcher
from portable.kernels.softmax.aten import ROUNDED

_backward: Any = dispatcher.op("log_softmax_backward")


def forward(self: Tensor, dim: int, half_to_float: bool) -> Tensor | str:
    return ROUNDED if half_to_float else portable.log_softmax(self, dim)


def backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor | str:
    if input_dtype != output.dtype:
        return ROUNDED
    return _backward(grad_output, output, dim)


OVERRIDES = {"_log_softmax": forward, "_log_softmax_backward_data": backward}
