"""Arrays that are not torch's: taken through DLPack, and results given back as their own kind."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from portable.errors import NotATensorError, PortableError


def is_foreign(value: Any) -> bool:
    """Whether `value` is an array of another library that speaks DLPack."""
    return not isinstance(value, torch.Tensor) and hasattr(value, "__dlpack__")


def to_torch(op: str, name: str, array: Any, *, written: bool = False) -> torch.Tensor:
    """A tensor over the array's own memory; a copy where torch cannot take that and it is only read.

    Raises NotATensorError with the library's reason.
    """
    reason: Any = "a stride is negative"
    if written and _is_readonly(array):
        reason = "it is read-only"
    elif not _has_negative_stride(array):
        try:
            return torch.from_dlpack(array)
        except (RuntimeError, BufferError, TypeError, ValueError) as error:
            reason = error
    if not written and hasattr(array, "copy") and (_is_readonly(array) or _has_negative_stride(array)):
        return to_torch(op, name, array.copy(), written=True)
    expected = f"an array that torch can take through DLPack ({reason})"
    raise NotATensorError(op, name, type(array).__name__, expected)


def _is_readonly(array: Any) -> bool:
    """Some versions of DLPack refuse such an array, some forget that it is one."""
    return not getattr(getattr(array, "flags", None), "writeable", True)


def _has_negative_stride(array: Any) -> bool:
    """torch has no such tensors: its from_dlpack ends the process on one (torch 2.13)."""
    return any(stride < 0 for stride in getattr(array, "strides", None) or ())


def from_torch(tensor: torch.Tensor, like: Any) -> Any:
    """`tensor` as the kind of array that `like` is, over the same memory.

    Raises PortableError where that library has no such dtype.
    """
    try:
        return _namespace(like).from_dlpack(tensor.detach())
    except (RuntimeError, BufferError, TypeError, ValueError) as error:
        kind = type(like).__name__
        raise PortableError(
            f"cannot return a {tensor.dtype} result as a {kind}: {error} Pass torch tensors instead."
        ) from None


def _namespace(array: Any) -> Any:
    """The array's library: by the array API's own method, else the package its type comes from."""
    method = getattr(array, "__array_namespace__", None)
    if method is not None:
        return method()
    package = sys.modules.get(type(array).__module__.partition(".")[0])
    if not hasattr(package, "from_dlpack"):
        raise PortableError(f"cannot return a {type(array).__name__}: its library has no from_dlpack")
    return package


def convert(op: str, names: Sequence[str], values: Sequence[Any]) -> tuple[Sequence[Any], Any]:
    """Foreign arrays in `values` as tensors, and the first of them (None where there is none)."""
    like = next((value for value in values if is_foreign(value)), None)
    if like is None:
        return values, None
    return [
        to_torch(op, name, value) if is_foreign(value) else value
        for name, value in zip(names, values, strict=True)
    ], like
