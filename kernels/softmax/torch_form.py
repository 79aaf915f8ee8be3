"""The arguments of torch.nn.functional.softmax and torch.softmax as this op's."""

from __future__ import annotations

from typing import Any

import torch

from portable.dispatch.arguments import check_tensor
from portable.errors import ParameterError


def softmax(input: Any, dim: int = -1, _stacklevel: int = 3, dtype: Any = None) -> dict[str, Any]:
    """`dtype` converts the input first, as in torch; a `dim` must be given where it is not the last."""
    return converted("softmax", input, dim, dtype)


def converted(op: str, input: Any, dim: int, dtype: Any) -> dict[str, Any]:
    if dtype is None:
        return {"x": input, "dim": dim}
    if not isinstance(dtype, torch.dtype):
        raise ParameterError(op, "dtype", dtype, "a torch.dtype or None")
    return {"x": check_tensor(op, "input", input).to(dtype), "dim": dim}
