"""Device functions that attention's Triton kernels share: the tile scheduler, varlen's tables of tiles, tiles
of a head's rows, softcap, bias and mask of a block.

Scores are in base 2: `exp2(score)` is what the spec calls `exp(score)`. Query i sees key j where j - i lies
between `low` and `high`, which count from key 0 and hold the difference of the lengths.

Packed sequences follow each other: sequence z has the tokens between its bounds, and a table made on the GPU
has an entry for every VARLEN_TILE of them. Sequence 0 is what lies before the first offset, the last one what
lies after the last; their tokens see no key, and no query sees them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.triton.rows import divisible

VARLEN_TILE: tl.constexpr = tl.constexpr(128)
ENTRY_WORDS: tl.constexpr = tl.constexpr(8)
FAR: tl.constexpr = tl.constexpr(2**30)


@triton.jit
def work_tile(
    pid, tiles_ptr, tiles, heads, M, N,
    OF_KEYS: tl.constexpr, LAST_FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(tile, head, batch, q_start, k_start, M, N, diagonal) of program `pid`: its tile of BLOCK rows, its
    head and batch; the index of the batch among queries and among keys; the lengths; what is added to the
    window's bounds.

    With varlen the batch is the sequence's first tile of `statistics_row`, and q_start and k_start are its
    first tokens, where a batch stride is a row stride. The heads of a tile are neighbours, and a tile may
    lie outside its sequence.
    """
    if tiles_ptr is None:
        batch = pid // tiles // heads
        tile = pid % tiles
        if LAST_FIRST:
            tile = tiles - 1 - tile
        return tile, pid // tiles % heads, batch, batch, batch, M, N, 0
    else:
        TILES_PER_ENTRY: tl.constexpr = VARLEN_TILE // BLOCK
        entry = tiles_ptr + (pid // heads // TILES_PER_ENTRY).to(tl.int64) * ENTRY_WORDS
        number, batch = tl.load(entry), tl.load(entry + 1)
        q_start, M = tl.load(entry + 2), tl.load(entry + 3)
        k_start, N = tl.load(entry + 4), tl.load(entry + 5)
        tile = number * TILES_PER_ENTRY + pid // heads % TILES_PER_ENTRY
        if LAST_FIRST:
            tile = tl.cdiv(N if OF_KEYS else M, BLOCK) - 1 - tile
        return tl.where(number < 0, -1, tile), pid % heads, batch, q_start, k_start, M, N, N - M


@triton.jit
def statistics_row(tiles_ptr, batch, head, heads, padded):
    """Where a head's lse_log2 and delta begin: whole tiles, so that no block reads those of the next head."""
    if tiles_ptr is None:
        return (batch * heads + head).to(tl.int64) * padded
    else:
        return head.to(tl.int64) * padded + batch * VARLEN_TILE


# --- tiles of rows ---


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


# --- varlen: the tables of tiles ---


@triton.jit
def sequence_start(ptr, z, count, total, BLOCK: tl.constexpr):
    """Where sequence z begins: the largest of the offsets up to its own, each clamped to 0..total."""
    running_max = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, tl.minimum(z, count), BLOCK):
        at = start + tl.arange(0, BLOCK)
        running_max = tl.maximum(running_max, tl.load(ptr + at, mask=at < tl.minimum(z, count), other=0))
    return tl.where(z > count, total, tl.minimum(tl.max(running_max, 0), total))


@triton.jit
def varlen_bounds(q_offsets_ptr, k_offsets_ptr, bounds_ptr, count, M, N, BLOCK: tl.constexpr):
    """Where sequence z begins and ends among the queries and among the keys: four numbers."""
    z = tl.program_id(0)
    bounds_ptr += 4 * z
    tl.store(bounds_ptr, sequence_start(q_offsets_ptr, z, count, M, BLOCK))
    tl.store(bounds_ptr + 1, sequence_start(q_offsets_ptr, z + 1, count, M, BLOCK))
    tl.store(bounds_ptr + 2, sequence_start(k_offsets_ptr, z, count, N, BLOCK))
    tl.store(bounds_ptr + 3, sequence_start(k_offsets_ptr, z + 1, count, N, BLOCK))


@triton.jit
def varlen_tiles(bounds_ptr, q_tiles_ptr, k_tiles_ptr, sequences, q_entries, k_entries, BLOCK: tl.constexpr):
    """Writes the entries of sequence z to the tables of query tiles and of key tiles."""
    if tl.program_id(1) == 0:
        fill_tiles(q_tiles_ptr, bounds_ptr, sequences, q_entries, False, BLOCK)
    if k_tiles_ptr is not None and tl.program_id(1) == 1:
        fill_tiles(k_tiles_ptr, bounds_ptr, sequences, k_entries, True, BLOCK)


@triton.jit
def fill_tiles(tiles_ptr, bounds_ptr, sequences, entries, OF_KEYS: tl.constexpr, BLOCK: tl.constexpr):
    """An entry: the tile's index in its sequence, or -1; the sequence's first tile of `statistics_row`; its
    first query and the number of queries; the same for keys. Tokens of no sequence have no queries, or -1
    keys: no sink either. The sequences whose tiles meet the most come first, so that the last programs are
    short."""
    z = tl.program_id(0)
    q_start, M, k_start, N = sequence(bounds_ptr, z, z >= 0, sequences, OF_KEYS)  # pyright: ignore[reportGeneralTypeIssues]
    rows, cost = (N, M) if OF_KEYS else (M, N)
    before = tl.zeros((BLOCK,), tl.int32)
    every = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, sequences, BLOCK):
        other = start + tl.arange(0, BLOCK)
        _, its_M, _, its_N = sequence(bounds_ptr, other, other < sequences, sequences, OF_KEYS)
        its_rows, its_cost = (its_N, its_M) if OF_KEYS else (its_M, its_N)
        its_tiles = tl.cdiv(its_rows, VARLEN_TILE)
        every += its_tiles
        before += tl.where((its_cost > cost) | ((its_cost == cost) & (other < z)), its_tiles, 0)
    tiles, first = tl.cdiv(rows, VARLEN_TILE), tl.sum(before, 0)
    for start in range(0, tiles, BLOCK):
        tile = start + tl.arange(0, BLOCK)
        entry = tiles_ptr + (first + tile).to(tl.int64) * ENTRY_WORDS
        inside = tile < tiles
        tl.store(entry, tile, mask=inside)
        tl.store(entry + 1, q_start // VARLEN_TILE + z, mask=inside)
        tl.store(entry + 2, q_start, mask=inside)
        tl.store(entry + 3, M, mask=inside)
        tl.store(entry + 4, k_start, mask=inside)
        tl.store(entry + 5, N, mask=inside)
    if z == sequences - 1:
        for start in range(tl.sum(every, 0), entries, BLOCK):
            number = start + tl.arange(0, BLOCK)
            tl.store(tiles_ptr + number.to(tl.int64) * ENTRY_WORDS, -1, mask=number < entries)


@triton.jit
def sequence(bounds_ptr, z, exists, sequences, OF_KEYS: tl.constexpr):
    """(first query, queries, first key, keys) of sequence z, as entries have them; zeros unless `exists`."""
    own = bounds_ptr + 4 * z
    q_start = tl.load(own, mask=exists, other=0)
    k_start = tl.load(own + 2, mask=exists, other=0)
    M = tl.load(own + 1, mask=exists, other=0) - q_start
    N = tl.load(own + 3, mask=exists, other=0) - k_start
    outside = (z == 0) | (z == sequences - 1)
    if OF_KEYS:
        M = tl.where(outside, 0, M)
    else:
        N = tl.where(outside, -1, N)
    return q_start, M, k_start, N
