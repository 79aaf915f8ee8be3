"""torch's `normalized_shape`, which the ops over the last dimension read from the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from portable.dispatch.arguments import check_tensor
from portable.errors import ParameterError


def check_normalized_shape(op: str, input: Any, normalized_shape: Sequence[int]) -> None:
    """It is the last dimension. Raises ParameterError, or NotATensorError for the input."""
    last = tuple(check_tensor(op, "input", input).shape[-1:])
    several = isinstance(normalized_shape, (tuple, list))
    if (
        not several
        or any(isinstance(size, float) for size in normalized_shape)
        or tuple(normalized_shape) != last
    ):
        remedy = "Flatten the dimensions with x.flatten(-k)" if several and len(normalized_shape) > 1 else ""
        expected = f"{last}, the last dimension alone"
        raise ParameterError(op, "normalized_shape", normalized_shape, expected, remedy)
