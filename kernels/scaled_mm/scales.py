"""What the public functions over scaled products check of recipes and scales."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.dispatch.arguments import check_tensor
from portable.errors import DtypeError, ShapeError
from portable.layout import ceil_div

NAME = "scaled_mm"


def as_list(value: Any) -> list[Any]:
    """torch takes lists of recipes and scales for formats of two levels, or one alone."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def one(value: Any) -> Any:
    """The one of a list of one."""
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value


def member(value: Any) -> Any:
    """The name of an enum's member, or the word itself."""
    return value if isinstance(value, str) else getattr(value, "name", value)


def check_scale(name: str, given: Any, kind: torch.dtype) -> Tensor:
    """A tensor of scales of this dtype. Raises NotATensorError or DtypeError."""
    scale = check_tensor(NAME, name, one(given))
    if scale.dtype != kind:
        remedy = f"Convert it with {name}.float()"
        if kind != torch.float32:
            remedy = f"Bytes of such numbers become that with {name}.view({kind})"
        raise DtypeError(NAME, name, scale.dtype, f"{kind}, as its recipe says", remedy)
    return scale


def check_groups(
    name: str, scale: Tensor, axis: str, lines: int, length: int, size: int, recipe: str
) -> Tensor:
    """Scales of `size` neighbours along k, a row of them for each row of mat_a or column of mat_b. Raises
    ShapeError."""
    wanted = (lines, ceil_div(length, size))
    if tuple(scale.shape) != wanted:
        expected = f"{wanted}, ({axis}, ceil(K / {size})), as its recipe is {recipe}"
        raise ShapeError(NAME, name, tuple(scale.shape), expected, "Swizzled scales go in as rows")
    return scale


def expanded(op: str, name: str, given: Any, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """A number for every row or column: one expanded, with strides of 0. Raises NotATensorError, DtypeError
    or ShapeError."""
    if check_tensor(op, name, given).dtype != dtype:
        raise DtypeError(op, name, given.dtype, str(dtype), f"Convert it with {name}.to({dtype})")
    if tuple(given.shape) == shape:
        return given
    if given.numel() != 1:
        raise ShapeError(op, name, tuple(given.shape), f"{shape}, or one number")
    return given.reshape(1, 1).expand(shape)
