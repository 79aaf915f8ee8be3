"""Arrays that are not torch's: taken through DLPack, and results given back as their own kind."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from portable.dispatch import arguments
from portable.errors import NotATensorError, PortableError


def is_foreign(value: Any) -> bool:
    """Whether `value` is an array of another library that speaks DLPack."""
    try:
        return not isinstance(value, torch.Tensor) and hasattr(value, "__dlpack__")
    except Exception:  # an attribute that raises: `to_torch` says so
        return True


def to_torch(op: str, name: str, array: Any, *, written: bool = False) -> torch.Tensor:
    """A tensor over the array's own memory; a copy where torch cannot take that and it is only read.

    Raises NotATensorError with the library's reason, which is its cause.
    """
    try:
        return _to_torch(array, written)
    except Exception as error:  # whatever another library's array raises
        expected = f"an array that torch can take through DLPack ({_reason(error)})"
        raise NotATensorError(op, name, type(array).__name__, expected) from error


def _to_torch(array: Any, written: bool) -> torch.Tensor:
    if written and _is_readonly(array):
        raise BufferError("it is read-only")
    reversed_ = _has_negative_stride(array)
    try:
        if reversed_:
            raise BufferError("a stride is negative")
        return torch.from_dlpack(array)
    except Exception:
        if written or not hasattr(array, "copy") or not (_is_readonly(array) or reversed_):
            raise
    return _to_torch(array.copy(), True)


def _reason(error: Exception) -> str:
    """An error of a library's as a clause; of Python's own kinds only the name may say what it is."""
    plain = isinstance(error, (RuntimeError, BufferError, TypeError, ValueError)) and str(error)
    return str(error) if plain else f"{type(error).__name__}: {error}"


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
    except PortableError:
        raise
    except Exception as error:
        what = f"cannot return a {tensor.dtype} result as a {type(like).__name__}: {_reason(error)}"
        raise PortableError(f"{what} Pass torch tensors instead.") from error


def _namespace(array: Any) -> Any:
    """The array's library: by the array API's own method, else the package its type comes from."""
    method = getattr(array, "__array_namespace__", None)
    if method is not None:
        return method()
    package = sys.modules.get(type(array).__module__.partition(".")[0])
    if not hasattr(package, "from_dlpack"):
        raise PortableError(f"cannot return a {type(array).__name__}: its library has no from_dlpack")
    return package


def convert(
    op: str, names: Sequence[str], values: Sequence[Any], mutated: Sequence[str] = ()
) -> tuple[Sequence[Any], Any]:
    """Foreign arrays in `values` as tensors, and the first of them (None where there is none). Beside one a
    tensor that torch would negate late is negated, where that can be. Those of the names `mutated` are to be
    written."""
    like = next((value for value in values if is_foreign(value)), None)
    if like is None:
        return values, None
    tensors = [
        to_torch(op, name, value, written=name in mutated) if is_foreign(value) else value
        for name, value in zip(names, values, strict=True)
    ]
    late = [
        isinstance(t, torch.Tensor) and t.is_neg() and name not in mutated and arguments.can_negate(t)
        for name, t in zip(names, tensors, strict=True)
    ]
    return [t.resolve_neg() if is_late else t for t, is_late in zip(tensors, late, strict=True)], like
