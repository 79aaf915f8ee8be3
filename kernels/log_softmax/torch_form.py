"""The arguments of torch.nn.functional.log_softmax and torch.log_softmax as this op's."""

from __future__ import annotations

from typing import Any

from portable.kernels.softmax.torch_form import converted


def log_softmax(input: Any, dim: int = -1, _stacklevel: int = 3, dtype: Any = None) -> dict[str, Any]:
    """`dtype` converts the input first, as in torch; a `dim` must be given where it is not the last."""
    return converted("log_softmax", input, dim, dtype)
