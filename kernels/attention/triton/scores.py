"""Device functions of attention's Triton kernels: tiles of a head's rows, softcap, bias and mask of a block.

Scores are in base 2: `exp2(score)` is what the spec calls `exp(score)`. Query i sees key j where j - i lies
between `low` and `high`, which count from key 0 and hold the difference of the lengths.
"""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.triton.rows import divisible
from portable.kernels.attention.triton.varlen import FAR


@triton.jit
def head_start(ptr, batch, head, batch_stride, head_stride, UNIT: tl.constexpr):
    """The first element of a head."""
    to_batch = batch.to(tl.int64) * divisible(batch_stride, UNIT)
    return ptr + (to_batch + head.to(tl.int64) * divisible(head_stride, UNIT))


@triton.jit
def tile_offsets(stride, ROWS: tl.constexpr, COLS: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr):
    """Offsets [ROWS, COLS] of a tile's elements from its first; 64 bits only where a stride needs them."""
    rows = tl.arange(0, ROWS)
    if WIDE:
        rows = rows.to(tl.int64) * divisible(stride, UNIT)
    else:
        rows = rows * tl.cast(divisible(stride, UNIT), tl.int32)
    return rows[:, None] + tl.arange(0, COLS)[None, :]


@triton.jit
def tile_coordinates(desc, batch, head, start, rows, FIRST: tl.constexpr = 0):  # pyright: ignore[reportArgumentType]
    """A tile's descriptor coordinates. With varlen the row after a sequence's last is row FAR, where the
    descriptors (`operands.py`) end, so that TMA bounds-checks the sequence; the addresses wrap around."""
    if len(desc.shape) == 5:
        return FAR, batch + rows, head, FAR - rows + start, FIRST
    else:
        return batch, head, start, FIRST


@triton.jit
def load_tile(
    desc, ptr, stride, batch, head, start, rows, CHECK: tl.constexpr,
    SIZE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    FIRST: tl.constexpr = 0,  # pyright: ignore[reportArgumentType]
):  # fmt: skip
    """Rows from `start` on of a head, columns from FIRST on, [ROWS, COLS]; zeros beyond the last of `rows`
    (unless not CHECK) and beyond SIZE columns. By descriptor, or from `ptr` to the head's first element."""
    if desc is not None:
        return desc.load(tile_coordinates(desc, batch, head, start, rows, FIRST)).reshape(ROWS, COLS)
    else:
        ptrs = (
            ptr
            + tl.cast(start, tl.int64) * divisible(stride, UNIT)
            + tile_offsets(stride, ROWS, COLS, UNIT, WIDE)
        )
        ptrs += FIRST
        REMAINING: tl.constexpr = SIZE - FIRST
        if CHECK and REMAINING < COLS:
            inside = (tl.arange(0, ROWS) < rows - start)[:, None] & (tl.arange(0, COLS) < REMAINING)[None, :]
            return tl.load(ptrs, mask=inside, other=0.0)
        elif CHECK:
            return tl.load(ptrs, mask=(tl.arange(0, ROWS) < rows - start)[:, None], other=0.0)
        elif REMAINING < COLS:
            return tl.load(ptrs, mask=(tl.arange(0, COLS) < REMAINING)[None, :], other=0.0)
        else:
            return tl.load(ptrs)


@triton.jit
def store_tile(
    desc, ptr, stride, batch, head, start, rows, value,
    SIZE: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Stores value [ROWS, COLS] where `load_tile` would read it."""
    ROWS: tl.constexpr = value.shape[0]
    COLS: tl.constexpr = value.shape[1]
    if desc is not None:
        tile = value.to(desc.dtype).reshape(desc.block_shape)
        desc.store(tile_coordinates(desc, batch, head, start, rows), tile)
    else:
        ptrs = (
            ptr
            + tl.cast(start, tl.int64) * divisible(stride, UNIT)
            + tile_offsets(stride, ROWS, COLS, UNIT, WIDE)
        )
        inside = (tl.arange(0, ROWS) < rows - start)[:, None]
        if SIZE < COLS:
            inside = inside & (tl.arange(0, COLS) < SIZE)[None, :]
        tl.store(ptrs, value.to(ptr.dtype.element_ty), mask=inside)


@triton.jit
def apply_softcap(s, scale, cap, SOFTCAP: tl.constexpr):
    """(scores, derivative of the softcap) of the products s. With SOFTCAP, `scale` is 2 * log2(e) * scale /
    softcap and `cap` is log2(e) * softcap: tanh(x) = 1 - 2 / (1 + exp(2 * x))."""
    if SOFTCAP:
        tanh = 1.0 - 2.0 / (1.0 + tl.exp2(s * scale))
        return cap * tanh, 1.0 - tanh * tanh
    else:
        return s * scale, 1.0


@triton.jit
def load_bias(ptr, stride, start_m, start_n, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A block [BLOCK_M, BLOCK_N] of a head's bias, in base 2."""
    rows = start_m + tl.arange(0, BLOCK_M)
    cols = start_n + tl.arange(0, BLOCK_N)
    ptrs = ptr + (rows.to(tl.int64) * stride)[:, None] + cols[None, :]
    bias = tl.load(ptrs, mask=(rows < M)[:, None] & (cols < N)[None, :], other=0.0)
    return bias.to(tl.float32) * 1.4426950408889634


@triton.jit
def attention_mask(i, j, N, low, high, LOW: tl.constexpr, HIGH: tl.constexpr):
    """Whether query i sees key j, for i and j that broadcast; of j's shape where there is no window."""
    inside = j <= tl.minimum(i + high, N - 1) if HIGH else j < N
    if LOW:
        inside = inside & (j >= i + low)
    return inside


@triton.jit
def window_mask(i, j, low, high, LOW: tl.constexpr, HIGH: tl.constexpr):
    """The window alone, for keys that exist or whose rows are not stored."""
    if HIGH and LOW:
        return (i >= j - high) & (i <= j - low)
    elif HIGH:
        return i >= j - high
    else:
        return i <= j - low
