"""Views of a tensor's metadata that planning functions share."""

from __future__ import annotations

from typing import NamedTuple

from portable.plan import TensorInfo


class Rows(NamedTuple):
    """A tensor seen as `count` rows of `length` elements, `stride` elements from row to row. One row has the
    stride of its last dimension: a kernel that goes by alignment then takes x[:1] as it takes x."""

    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    length: int
    stride: int


def ceil_div(count: int, size: int) -> int:
    """count / size rounded up."""
    return -(-count // size)


def next_power_of_2(count: int) -> int:
    """The least power of two that is not below `count`; 0 of 0."""
    return 1 << (count - 1).bit_length() if count > 0 else 0


def collapsible(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """The one stride that visits all of `shape`'s indices in order, or None where there is none.

    Dimensions of size 1 do not count; an empty or one-element shape gives 0.
    """
    inner = None
    expected = 0
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 0:
            return 0
        if size == 1:
            continue
        if inner is None:
            inner = stride
        elif stride != expected:
            return None
        expected = stride * size
    return 0 if inner is None else inner


def _row_stride(info: TensorInfo) -> int | None:
    """Elements from one row along the last dimension to the next; None where it does not lie in such rows."""
    unit = info.shape[-1] <= 1 or info.strides[-1] == 1
    return collapsible(info.shape[:-1], info.strides[:-1]) if unit else None


def are_rows(info: TensorInfo) -> bool:
    """Whether `rows` takes it."""
    return info.numel == 0 or _row_stride(info) is not None


def rows(info: TensorInfo) -> Rows:
    """`info` as rows along its last dimension; the dispatcher has made it fit (`layout: rows`)."""
    length = info.shape[-1]
    count = 1
    for size in info.shape[:-1]:
        count *= size
    if info.numel == 0:
        return Rows(count, length, length)  # nothing is read; torch's strides of it mean nothing
    stride = _row_stride(info)
    if stride is None:
        raise ValueError(f"not a row layout: shape {info.shape}, strides {info.strides}")
    if count == 1 and len(info.shape) > 1:
        stride = info.strides[-2]
    return Rows(count, length, stride)
