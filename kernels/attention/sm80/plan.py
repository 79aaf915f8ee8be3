"""Plans of the CUDA C++ kernels on mma.sync, sm_80 and later: attention, its gradients, varlen and decode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from portable.kernels.attention.params import (
    MAX_TOKENS,
    PARTIALS,
    Arguments,
    AttentionParams,
    Unsupported,
    require_decode,
)
from portable.kernels.attention.planning import (
    DK,
    DK_DV,
    DQ,
    DV,
    Accumulators,
    Tiled,
    decode_of,
    decode_plan,
    defines_of,
    finished,
    fitted,
    ints,
    native_kernel,
    planner,
    preprocess,
    tiled,
    tiled_plan,
)
from portable.kernels.attention.triton.plan import combine_launch
from portable.layout import ceil_div
from portable.plan import Call, Launch, NativeKernel, Plan, TensorMap

_HERE = Path(__file__).resolve().parent
HEAD_UNIT = 16  # of head sizes as kernels hold them: a matrix instruction's
_MAX_ROWS = 2**30 - 1024  # of the forward: a row number and a window's side are added in 32 bits
_RESERVED = 1024  # bytes of shared memory that each block of a multiprocessor takes besides its own


def _kernel(
    call: Call, p: AttentionParams, source: str, warps: int, defines: Mapping[str, Any], shared: int = 0,
    pdl: bool = False,
) -> NativeKernel:  # fmt: skip
    """The kernel of a source file."""
    entry = "attention_decode_tma" if defines.get("TMA") else f"attention_{source.removesuffix('.cu')}_sm80"
    return native_kernel(call.device, p, _HERE / source, entry, 32 * warps, defines, shared, pdl)


# --- attention and attention_varlen -------------------------------------------------------------------------

_FEW_QUERIES = 64  # which one m-tile of each warp takes


class Tile(NamedTuple):
    """Keys of a step, warps of a block, and m-tiles of 16 queries of a warp."""

    tile_n: int
    warps: int
    m_tiles: int

    @property
    def m(self) -> int:
        return self.warps * self.m_tiles * 16

    def shared(self, d: int, e: int) -> int:
        """Queries, keys and values, each row 16 bytes longer; o takes their place."""
        inputs = (self.m + self.tile_n) * (2 * d + 16) + self.tile_n * (2 * e + 16)
        return max(inputs, self.m * (2 * e + 16))


# By the larger padded head size up to: what registers hold without a spill (64 keys a step of heads of 128 do
# not), with shared memory for two blocks a multiprocessor. A second m-tile halves what a product reads of
# shared memory; it changes no row's bits. Measured 2026-11-22 on the H200, heads of 256, 32, 48 and 64 keys a
# step: 256, 278 and 297 TFLOP/s full, 243, 261 and 287 causal.
_TILES = {64: (Tile(64, 4, 2),), 128: (Tile(48, 4, 2),), 256: (Tile(64, 4, 1), Tile(32, 4, 1))}


def tile_for(p: AttentionParams, queries: int, call: Call) -> Tile:
    """The first tile of the table of which two blocks fit a multiprocessor, else the last."""
    d, e = p.padded(HEAD_UNIT)
    tiles = next(tiles for most, tiles in _TILES.items() if max(d, e) <= most)
    fitting = (t for t in tiles if 2 * (t.shared(d, e) + _RESERVED) <= call.device.shared_memory + _RESERVED)
    tile = next(fitting, tiles[-1])
    if queries <= _FEW_QUERIES:
        tile = tile._replace(m_tiles=1)
    return fitted(tile, call.config)


@planner
def forward(call: Call, p: AttentionParams) -> Plan:
    """o and lse: a block per tile of queries of a head; of varlen after the table of tiles."""
    p.require(_MAX_ROWS)
    if p.has("bias"):
        raise Unsupported("it adds no bias")
    queries = p.M // max(p.offsets - 1, 1) if p.is_varlen else p.M
    (d, e), tile = p.padded(HEAD_UNIT), tile_for(p, queries, call)
    defines = {
        "HEAD_D": d, "HEAD_E": e, **defines_of(tile),
        "COPY_BYTES": p.copy_bytes("q", "k", "v"), "STORE_BYTES": 2 if p.E % 8 else p.copy_bytes("o"),
        "SCALED": p.softcap is None and not p.scale > 0, **p.flags("LEFT RIGHT SOFTCAP SINKS VARLEN"),
    }  # fmt: skip
    kernel = _kernel(call, p, "fwd.cu", tile.warps, defines, tile.shared(d, e))
    return tiled_plan(call.device, p, [tiled(p, kernel, tile.m, "q k v o lse sinks", "tiles")])


# --- attention_backward and attention_varlen_backward -------------------------------------------------------

_FEW_ROWS = 64  # which one m-tile of each warp takes
_ACC_COLUMNS = 256  # of accumulators that a warp's registers hold for 16 rows
_REGISTERS = 200  # as `registers` counts: with more, kernels spill (sm_80, sm_90a, sm_100; 2026-11-22)


class BackwardTile(NamedTuple):
    """Rows that pass by at a time, warps of a block, and m-tiles of 16 own rows of a warp."""

    step: int
    warps: int
    m_tiles: int

    @property
    def rows(self) -> int:
        return self.warps * self.m_tiles * 16

    def shared(self, acc: Accumulators, d: int, e: int) -> int:
        """Own rows and two steps of the others, each row 16 bytes longer; results take their place."""
        own_d, own_e = 2 * d + 16, 2 * e + 16
        stage = self.step * (own_d + own_e + 8 * acc.owns_keys)
        own = self.rows * (own_d + own_e * acc.d + 8 * (not acc.owns_keys))
        return max(own + 2 * stage, self.rows * (own_d * acc.d + own_e * acc.e))


# With how many blocks a multiprocessor should have room for: while one waits the other multiplies. Measured
# 2026-11-22 (H200, 8192 queries and keys), of cuDNN. Heads of 128, full: dk and dv with 48 queries a step
# 0.402, 32 and 64 0.39; one block of 8 warps 0.347; dq by 16 rows a warp 0.346, not 0.393. Heads of 64,
# causal: dk and dv by 32 rows 0.508, by 16 at most 0.473; dq with 64, 48 and 32 keys 0.549, 0.527, 0.508.
_BACKWARD_TILES = (
    (BackwardTile(64, 4, 2), 2),
    (BackwardTile(48, 4, 2), 2),
    (BackwardTile(32, 4, 2), 2),
    (BackwardTile(48, 4, 1), 2),
    (BackwardTile(32, 4, 1), 2),
    (BackwardTile(16, 4, 1), 2),
    (BackwardTile(32, 4, 1), 1),
    (BackwardTile(16, 4, 1), 1),
    (BackwardTile(16, 2, 1), 1),
)


def registers(p: AttentionParams, acc: Accumulators, tile: BackwardTile) -> int:
    """Of a thread, about, what accumulators and scores take, and what more a call keeps over a step."""
    d, e = p.padded(HEAD_UNIT)
    columns = d * acc.d + e * acc.e
    scores = tile.step * (1 + acc.d + (acc.d and p.softcap is not None)) // 2
    more = 8 * acc.owns_keys + 8 * p.is_varlen + 16 * p.has("bias")
    return tile.m_tiles * (columns // 2 + scores) + more


def parts_of(p: AttentionParams) -> tuple[Accumulators, ...]:
    """dk and dv are computed apart, each with scores of its own, where registers do not hold both."""
    return (DK, DV, DQ) if sum(p.padded(HEAD_UNIT)) > _ACC_COLUMNS else (DK_DV, DQ)


def backward_tile_for(p: AttentionParams, acc: Accumulators, call: Call) -> BackwardTile:
    """The first tile that registers hold without a spill and shared memory as often as it should."""
    (d, e), few = p.padded(HEAD_UNIT), (p.N if acc.owns_keys else p.M) <= _FEW_ROWS
    tile = _BACKWARD_TILES[-1][0]
    for tile, resident in _BACKWARD_TILES:
        taken = resident * tile.shared(acc, d, e) + (resident - 1) * _RESERVED
        wide = registers(p, acc, tile) > _REGISTERS or (few and tile.m_tiles > 1)
        if taken <= call.device.shared_memory and not wide:
            break
    return fitted(tile, call.config, "" if acc.owns_keys else "DQ_")


@planner
def backward(call: Call, p: AttentionParams) -> Plan:
    """dq, dk and dv: each query's statistics, then dk and dv, then dq."""
    p.require(MAX_TOKENS)
    gradients = [_gradient(call, p, acc, backward_tile_for(p, acc, call)) for acc in parts_of(p)]
    return tiled_plan(call.device, p, gradients, preprocess(call.device, p))


def _gradient(call: Call, p: AttentionParams, acc: Accumulators, tile: BackwardTile) -> Tiled:
    d, e = p.padded(HEAD_UNIT)
    by_chunks = all(p.columns(name) % 8 == 0 for name in acc.written)
    defines = {
        "KEYS": acc.owns_keys, "HEAD_D": d, "HEAD_E": e, "SUM_D": acc.d, "SUM_E": acc.e, **defines_of(tile),
        "COPY_BYTES": p.copy_bytes("k", "v", "q", "do"),
        "STORE_BYTES": p.copy_bytes(*acc.written) if by_chunks else 2, **p.flags("SOFTCAP BIAS VARLEN"),
    }  # fmt: skip
    kernel = _kernel(call, p, "bwd.cu", tile.warps, defines, tile.shared(acc, d, e))
    pointers = f"q k v dout bias stats {' '.join(acc.written)}"
    return tiled(p, kernel, tile.rows, pointers, "lines tiles", acc.owns_keys)


# --- attention_dbias ----------------------------------------------------------------------------------------

_MAX_STEPS = 16
_BLOCKS = {1: 8, 2: 2}  # of a multiprocessor, by m-tiles, that more steps are not to take from it


class DbiasTile(Tile):
    """As Tile, with do beside the queries."""

    def shared(self, d: int, e: int) -> int:
        """Queries and do, keys and values, each row 16 bytes longer."""
        return (self.m + self.tile_n) * (2 * d + 16 + 2 * e + 16)


# Measured 2026-11-22 on the H200, 16 heads of 128, two m-tiles and one, us: 4096 full 566 and 664, causal 371
# and 398, 1024 full 44 and 64; heads of 64, 4096 causal 362 and 318. Eight warps of one m-tile: 796 and 491.
_DBIAS_TILES = (DbiasTile(64, 4, 2), DbiasTile(64, 4, 1), DbiasTile(32, 4, 1))


def dbias_tile_for(p: AttentionParams, call: Call, bias_bytes: int) -> DbiasTile:
    """The largest of which a multiprocessor holds two blocks, else of which it holds one. Two m-tiles leave
    no registers to read the bias by the element, and spill on sm_100."""
    device, (d, e) = call.device, p.padded(HEAD_UNIT)
    two = device.arch.startswith("sm_90") and max(d, e) > 64 and bias_bytes == 16
    tiles = _DBIAS_TILES if two else _DBIAS_TILES[1:]
    rooms = ((device.shared_memory - _RESERVED) // 2, device.shared_memory)
    fitting = (tile for room in rooms for tile in tiles if tile.shared(d, e) <= room)
    tile = next(fitting, tiles[-1])
    return fitted(tile, call.config)


def _steps(call: Call, tile: DbiasTile, tiles: int, steps: int) -> int:
    """Blocks of keys that a block of queries walks: many, so that queries are read once, but not so many that
    multiprocessors stand idle."""
    if call.config.get("STEPS"):
        return call.config["STEPS"]
    enough = ceil_div(tiles * steps, _BLOCKS.get(tile.m_tiles, 2) * call.device.multiprocessors)
    return min(_MAX_STEPS, 1 << max(enough - 1, 0).bit_length())


@planner
def dbias(call: Call, p: AttentionParams) -> Plan:
    """dbias: a block per tile of queries and chunk of keys of a head."""
    p.require(_MAX_ROWS)
    bias_bytes = 2 if p.N % 8 else p.copy_bytes("bias", "dbias")
    (d, e), tile = p.padded(HEAD_UNIT), dbias_tile_for(p, call, bias_bytes)
    tiles = ceil_div(p.M, tile.m)
    chunk = tile.tile_n * _steps(call, tile, tiles * p.B * p.H, ceil_div(p.N, tile.tile_n))
    chunks = ceil_div(p.N, chunk)
    defines = {
        "HEAD_D": d, "HEAD_E": e, **defines_of(tile),
        "COPY_BYTES": 2 if p.E % 8 else p.copy_bytes("q", "k", "v", "do", "o"), "BIAS_BYTES": bias_bytes,
        **p.flags("LEFT RIGHT SOFTCAP DLSE"),
    }  # fmt: skip
    kernel = _kernel(call, p, "dbias.cu", tile.warps, defines, tile.shared(d, e))
    args = p.struct("dout q k v o lse dlse bias dbias"), *ints(tiles=tiles, chunks=chunks, chunk=chunk)
    return finished(call.device, [Launch(kernel, (tiles * chunks * p.B * p.H, 1, 1), args)])


# --- decode: attention_paged, and attention with few queries ------------------------------------------------

DECODE_TILE_ROWS = 16
_CODES_TILE_ROWS = 8  # of a cache in 8 bits (kv_cache.h)
DECODE_KEYS = 16  # of a stage
_BESIDE = 3072  # most bytes beside the pipelines: 1024 that align them, row_max, row_sum, barriers


@planner
def decode(call: Call, p: AttentionParams) -> Plan:
    """The splits by cp.async, 16 bytes a lane."""
    require_decode(call, p)
    aligned = p.heads["q"].alignment >= 16 and p.heads["k"].aligned and p.heads["v"].aligned
    itemsize = p.heads["k"].itemsize
    if p.D * itemsize % 16 or p.E * itemsize % 16 or not aligned:
        raise Unsupported("rows of keys or values are not made of aligned pieces of 16 bytes")
    stage = DECODE_KEYS * sum(ceil_div(size * itemsize, 32) * 32 + 16 for size in (p.D, p.E))
    return _decode(call, p, stage)


@planner
def decode_tma(call: Call, p: AttentionParams) -> Plan:
    """The splits by TMA."""
    require_decode(call, p)
    if any(size == 0 for size, _ in p.dims("k")):
        raise Unsupported("no keys to copy")
    p.require_tma("k v")
    stage = DECODE_KEYS * 128 * sum(ceil_div(size * p.heads["k"].itemsize, 128) for size in (p.D, p.E))
    return _decode(call, p, stage, (("map_k", _tensor_map(p, "k")), ("map_v", _tensor_map(p, "v"))))


def _tensor_map(p: AttentionParams, name: str) -> TensorMap:
    """Boxes of 128 bytes of a stage's keys of one head in one page, or in one sequence.

    With a promotion of 256 bytes the copies of both halves of a row ask for all of it: 3 % slower over 64
    sequences, 5 % over one (H200, 2026-11-22).
    """
    rows, heads, batches = p.dims(name)
    return p.tensor_map(name, (heads, rows, batches), (1, DECODE_KEYS, 1), promotion=128)


def _decode(call: Call, p: AttentionParams, stage: int, maps: Arguments = ()) -> Plan:
    """A plan whose blocks hold `stage` bytes a warp and stage. Fewer stages, then fewer warps, where they
    do not fit; the keys are split where blocks of whole sequences leave multiprocessors idle."""
    q = p.heads["q"]
    if any(s % 2 for s in q.strides) or q.alignment < 4:
        raise Unsupported("rows of queries are not aligned to 4 bytes")
    if p.page % 16:
        raise Unsupported(f"pages of {p.page} keys are no multiple of 16")
    warps, space = call.config["WARPS"], call.device.shared_memory
    while warps > 1 and space - _BESIDE < 2 * warps * stage:
        warps //= 2
    stages = min(call.config["STAGES"], (space - _BESIDE) // (warps * stage))
    if stages < 2:
        raise Unsupported("two tiles do not fit shared memory")
    shared = warps * stages * stage
    resident = max(1, (space + _RESERVED) // (shared + _BESIDE + _RESERVED))
    cut = decode_of(call, p, _CODES_TILE_ROWS if p.codes else DECODE_TILE_ROWS, resident)
    # A paged cache's splits follow from its table's width, which is not to change a sequence's bits.
    direct = cut.splits == 1 and not p.page and not p.sinks
    defines = {
        **cut.native_defines(p), "WARPS": warps, "STAGES": stages, "DIRECT": direct, "TMA": bool(maps),
    }  # fmt: skip
    if maps:
        defines["FIRST_WAVE"] = call.device.multiprocessors * resident
    kernel = _kernel(call, p, "decode.cu", warps, defines, shared + 1024, pdl=True)
    pointers = f"{'' if maps else 'k v'} {'o lse' if direct else PARTIALS}"
    combine = None if direct else combine_launch(call, p, cut)
    return decode_plan(call, p, cut, cut.launch(p, kernel, pointers, maps), combine)
