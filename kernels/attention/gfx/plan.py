"""Plans of attention's HIP kernels, on MFMA (gfx9) and WMMA (gfx11, gfx12)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from portable.kernels.attention.params import (
    MAX_TOKENS,
    AttentionParams,
    Unsupported,
    require_decode,
)
from portable.kernels.attention.planning import (
    DK,
    DK_DV,
    DQ,
    DV,
    TABLES,
    Accumulators,
    Tiled,
    finished,
    ints,
    kv_splits,
    native_kernel,
    optional,
    partial_workspaces,
    planner,
    tiled_plan,
    tiles_of,
)
from portable.plan import Call, Device, Launch, Plan, Workspace

_HERE = Path(__file__).resolve().parent
HEAD_UNIT = 32  # of head sizes as kernels hold them: swizzle groups of four chunks of 16 bytes
_MAX_ROWS = 2**29  # of the forward: row numbers, and their sums with a window's side, are 32 bits


# --- tile choices -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForwardTile:
    """Keys of a step, waves of a block, 16-query tiles of a wave; whether Q lies in LDS; waves along E, which
    share their queries."""

    n: int
    waves: int
    tiles_per_wave: int
    q_in_lds: bool = False
    waves_e: int = 1

    @property
    def m(self) -> int:
        return self.waves // self.waves_e * self.tiles_per_wave * 16

    def shared(self, d: int, e: int) -> int:
        """Bytes of LDS for padded head sizes."""
        return 2 * (self.n * (d + e) + (self.m * d if self.q_in_lds else 0))


@dataclass(frozen=True, slots=True)
class BackwardTile:
    """Waves of a block; 16-row tiles that a wave owns, in registers or else in LDS; blocks that a compute
    unit holds; whether the next streamed rows are loaded under the products; streamed rows of a step."""

    waves: int
    tiles_per_wave: int
    own_in_registers: bool
    blocks_per_cu: int
    prefetch: bool
    stream_rows: int = 32  # what fits LDS twice, as rows and transposed

    @property
    def rows(self) -> int:
        return self.waves * self.tiles_per_wave * 16


TINY_FORWARD = ForwardTile(32, 1, 1)  # at most 16 queries and 32 keys: one step of one wave
FORWARD_TILES = {  # by family: (largest padded head size, tile, tile with a bias)
    "gfx9": (
        (64, ForwardTile(64, 4, 2), ForwardTile(64, 4, 2)),
        (128, ForwardTile(64, 4, 2), ForwardTile(32, 4, 2)),
        (256, ForwardTile(32, 4, 1), ForwardTile(32, 4, 1)),
    ),
    "gfx11": (  # its operands hold every element twice, so Q of larger heads lies in LDS
        (64, ForwardTile(64, 8, 1), ForwardTile(64, 8, 1)),
        (128, ForwardTile(32, 8, 1, q_in_lds=True), ForwardTile(32, 8, 1, q_in_lds=True)),
        (256, ForwardTile(32, 8, 1, True, waves_e=2), ForwardTile(32, 8, 1, True, waves_e=2)),
    ),
    "gfx12": (
        (64, ForwardTile(64, 8, 1), ForwardTile(64, 8, 1)),
        (128, ForwardTile(32, 8, 1), ForwardTile(32, 8, 1)),
        (256, ForwardTile(32, 8, 1, True, waves_e=2), ForwardTile(32, 8, 1, True, waves_e=2)),
    ),
}
"""What registers hold without a spill, and LDS twice per compute unit (compiled, never timed; 2026-11-22)."""

TINY_BACKWARD = BackwardTile(1, 1, True, 2, True)  # at most 16 own and 32 streamed rows, heads of at most 64
_OWN_IN_LDS = (
    (BackwardTile(4, 1, False, 1, True), 80, 512),
    (BackwardTile(4, 1, False, 1, False), 128, 512),
    (BackwardTile(4, 1, False, 1, True, 16), 112, 512),
    (BackwardTile(4, 1, False, 1, False, 16), 128, 512),
    (BackwardTile(2, 1, False, 1, False, 16), 128, 512),
)
BACKWARD_TILES = {  # by family: (tile, most registers for accumulators and own rows, most columns of rows)
    "gfx9": (
        (BackwardTile(4, 2, True, 2, True), 144, 512),
        (BackwardTile(4, 1, True, 2, True), 144, 512),
        (BackwardTile(8, 1, True, 1, True), 144, 512),
        (BackwardTile(4, 1, True, 1, True), 192, 512),
    ),
    "gfx11": (
        (BackwardTile(8, 1, True, 1, True), 128, 512),
        (BackwardTile(8, 1, True, 1, False), 152, 512),
        *_OWN_IN_LDS,
    ),
    "gfx12": (
        (BackwardTile(8, 1, True, 1, True), 160, 512),
        (BackwardTile(8, 1, True, 1, False), 192, 256),
        *_OWN_IN_LDS,
    ),
}
"""In order of preference; the limits are the largest without a spill (compiled, never timed; 2026-11-22)."""

DBIAS_TILE, DBIAS_TILE_K = 128, 64  # queries, and keys, of a block; columns of a head at a time
DBIAS_SMALL, DBIAS_SMALL_K = 64, 32  # where there are at most 64 of either
DBIAS_WAVE_QUERIES = 64

PREPROCESS_ROWS, PREPROCESS_THREADS = 16, 256

DECODE_COLUMNS = 16  # queries, times heads that share a KV head, of a block
DECODE_WAVES = 4
DECODE_BLOCKS_PER_CU = 2
COMBINE_THREADS, COMBINE_COLUMNS = 256, 32


def family(device: Device) -> str:
    return device.arch[:4] if device.arch.startswith("gfx9") else device.arch[:5]


def forward_tile(device: Device, d: int, e: int, bias: bool = False, tiny: bool = False) -> ForwardTile:
    """The tile for padded head sizes."""
    if tiny and max(d, e) <= 64:
        return TINY_FORWARD
    rows = FORWARD_TILES[family(device)]
    return next(with_bias if bias else plain for size, plain, with_bias in rows if max(d, e) <= size)


# --- attention and attention_varlen -----------------------------------------------------------------------


@planner
def forward(call: Call, p: AttentionParams) -> Plan:
    """o and lse: a block per tile of queries of a head; with varlen after the table of tiles."""
    p.require(MAX_TOKENS if p.is_varlen else _MAX_ROWS)
    d, e = p.padded(HEAD_UNIT)
    tile = forward_tile(call.device, d, e, p.has("bias"), p.M <= 16 and p.N <= 32)
    defines = {
        "HEAD_D": d, "HEAD_E": e, "EVEN_D": d == p.D, "EVEN_E": e == p.E, "TILE_N": tile.n,
        "WAVES": tile.waves, "TILES_PER_WAVE": tile.tiles_per_wave, "WAVES_E": tile.waves_e,
        "Q_IN_LDS": tile.q_in_lds, "SCALE_ONLY": p.softcap is None and not p.has("bias") and p.scale > 0,
        **p.flags("LEFT RIGHT SOFTCAP BIAS SINKS VARLEN"),
    }  # fmt: skip
    threads, tiles = tile.waves * call.device.warp_size, tiles_of(p, tile.m)
    kernel = native_kernel(call.device, p, _HERE / "fwd.hip", "attention_forward", threads, defines)
    args = p.struct(f"q k v bias sinks o lse {TABLES}"), *ints(tiles=tiles)
    launch = Launch(kernel, (tiles * p.B * p.H, 1, 1), args)
    return tiled_plan(call.device, p, (), [Tiled(launch, tile.m)])


# --- the gradients ----------------------------------------------------------------------------------------

_STATISTICS = optional(lse_log2=True, delta=True)


@planner
def backward(call: Call, p: AttentionParams) -> Plan:
    """dq, dk and dv: lse_log2 and delta, then dk and dv, then dq."""
    p.require(MAX_TOKENS)
    tiled = [_gradient(p, call.device, *chosen) for chosen in backward_tiles(p, call.device)]
    return tiled_plan(call.device, p, [_preprocess(p, call.device)], tiled, _statistics(p))


def backward_heads(p: AttentionParams, device: Device) -> tuple[int, int]:
    """The head sizes as bwd.hip holds them. With waves of 32 the largest are held as 256 and 256: those in
    between, where threads share the copies of rows unevenly, spill."""
    d, e = p.padded(HEAD_UNIT)
    return (256, 256) if device.warp_size == 32 and d + e > 384 else (d, e)


def backward_tiles(p: AttentionParams, device: Device) -> list[tuple[Accumulators, BackwardTile]]:
    """The launches, over keys and then over queries. dk and dv share one where one block holds both."""
    for launches in ((DK_DV, DQ), (DK, DV, DQ)):
        chosen = [(acc, tile) for acc in launches if (tile := _backward_tile(p, device, acc)) is not None]
        if len(chosen) == len(launches):
            return chosen
    raise Unsupported(f"{device.arch} has too few registers and LDS for heads of {p.D} and {p.E}")


def _backward_tile(p: AttentionParams, device: Device, acc: Accumulators) -> BackwardTile | None:
    """The first tile whose registers and LDS suffice; where one wave owns all rows, one wave.

    A lane holds 8 accumulators of each 16 rows by 32 columns (waves of 32: 16 columns), and of own rows in
    registers 16 bytes as often, or 32 where both halves of a wave hold an operand (gfx11). dv alone needs no
    dS: neither own nor streamed rows of E columns.
    """
    d, e = backward_heads(p, device)
    wave64, twice = device.warp_size == 64, family(device) == "gfx11"
    owned, streamed = (p.N, p.M) if acc.owns_keys else (p.M, p.N)
    if owned <= 16 and streamed <= TINY_BACKWARD.stream_rows and max(d, e) <= 64:
        return TINY_BACKWARD
    accumulators, columns = d * acc.d + e * acc.e, d + e * acc.d
    for tile, max_registers, max_columns in BACKWARD_TILES[family(device)]:
        registers = tile.tiles_per_wave * accumulators // (4 if wave64 else 2)
        if tile.own_in_registers:
            registers += tile.tiles_per_wave * columns // (8 if wave64 else 2 if twice else 4)
        own = 0 if tile.own_in_registers else tile.rows * 2 * columns
        lds = 2 * tile.stream_rows * (columns + accumulators) + own
        fits = lds * tile.blocks_per_cu <= device.shared_memory
        if registers <= max_registers and columns <= max_columns and fits:
            return tile
    return None


def _preprocess(p: AttentionParams, device: Device) -> Launch:
    source, entry, tiles = (
        _HERE / "bwd_preprocess.hip",
        "attention_bwd_preprocess",
        -(-p.M // PREPROCESS_ROWS),
    )
    kernel = native_kernel(device, p, source, entry, PREPROCESS_THREADS, p.flags("DLSE"))
    args = p.struct("dout o lse dlse"), *_STATISTICS, *ints(tiles=tiles)
    return Launch(kernel, (tiles * p.B * p.H, 1, 1), args)


def _statistics(p: AttentionParams) -> list[Workspace]:
    """What bwd_preprocess.hip writes for each query; a step of 32 reads past the last."""
    return [Workspace(name, (p.B * p.H * p.M + 32,), "float32") for name, _ in _STATISTICS]


def _gradient(p: AttentionParams, device: Device, acc: Accumulators, tile: BackwardTile) -> Tiled:
    """dk and dv by blocks of keys, or dq by blocks of queries."""
    d, e = backward_heads(p, device)
    defines = {
        "OWNS_KEYS": acc.owns_keys, "HEAD_D": d, "HEAD_E": e, "EVEN_D": d == p.D,
        "EVEN_E": e == p.E, "ACC_D": acc.d, "ACC_E": acc.e, "STREAM_ROWS": tile.stream_rows,
        "WAVES": tile.waves, "TILES_PER_WAVE": tile.tiles_per_wave, "OWN_IN_REGISTERS": tile.own_in_registers,
        "BLOCKS_PER_CU": tile.blocks_per_cu, "PREFETCH": tile.prefetch, **p.flags("SOFTCAP BIAS VARLEN"),
    }  # fmt: skip
    entry = "attention_bwd_dkdv" if acc.owns_keys else "attention_bwd_dq"
    kernel = native_kernel(device, p, _HERE / "bwd.hip", entry, tile.waves * device.warp_size, defines)
    tiles = tiles_of(p, tile.rows, acc.owns_keys)
    blocks = tiles * p.B * (p.G if acc.owns_keys else p.H)
    struct = p.struct(f"dout q k v bias {' '.join(acc.written)} {TABLES}")
    args = struct, *_STATISTICS, *ints(tiles=tiles, blocks=blocks)
    return Tiled(Launch(kernel, (blocks, 1, 1), args), tile.rows, acc.owns_keys)


@planner
def dbias(call: Call, p: AttentionParams) -> Plan:
    """dbias of heads of any size: lse_log2 and delta, then each tile of scores alone."""
    p.require(MAX_TOKENS)
    small = max(p.M, p.N) <= DBIAS_SMALL
    tile, tile_k = (DBIAS_SMALL, DBIAS_SMALL_K) if small else (DBIAS_TILE, DBIAS_TILE_K)
    wave_keys, warp = (64 if call.device.warp_size == 64 else 32), call.device.warp_size
    threads = tile // DBIAS_WAVE_QUERIES * (tile // wave_keys) * warp
    even = p.D % tile_k == p.E % tile_k == 0
    defines = {"TILE": tile, "TILE_K": tile_k, "EVEN_HEADS": even, **p.flags("SOFTCAP")}
    key_tiles = -(-p.N // tile)
    tiles = -(-p.M // tile) * key_tiles
    blocks = tiles * p.B * p.H
    struct = p.struct("dout q k v bias dbias")
    args = struct, *_STATISTICS, *ints(key_tiles=key_tiles, tiles=tiles, blocks=blocks)
    kernel = native_kernel(call.device, p, _HERE / "dbias.hip", "attention_dbias", threads, defines)
    launches = _preprocess(p, call.device), Launch(kernel, (blocks, 1, 1), args)
    return finished(call.device, launches, _statistics(p))


# --- decode: attention_paged, and attention with few queries ----------------------------------------------


@planner
def decode(call: Call, p: AttentionParams) -> Plan:
    """The splits of all sequences' keys, and their combination. How many keys a split has follows from the
    sequence's length and the GPU, so that it gets the same bits whatever the rest of the batch is."""
    require_decode(call, p)
    tiles, chunk = -(-p.M * p.qheads_per_kvhead // DECODE_COLUMNS), call.config["CHUNK"]
    splits = kv_splits(call, p, tiles, DECODE_BLOCKS_PER_CU, chunk)
    defines = {
        "D": p.D, "E": p.E, "PAGE": p.page, "CHUNK": chunk, **p.flags("LEFT RIGHT SINKS"),
        "CAP": p.softcap is not None,
    }  # fmt: skip
    source, threads = _HERE / "decode.hip", DECODE_WAVES * call.device.warp_size
    split = native_kernel(call.device, p, source, "attention_decode", threads, defines)
    combine = native_kernel(call.device, p, source, "attention_decode_combine", COMBINE_THREADS, defines)
    partial, counts = (
        "seq_lens o_partial max_partial sum_partial",
        {"splits": splits.count, "max_splits": splits.most},
    )
    pages = call[p.heads["k"].tensor].shape[0]
    args = p.struct(f"q k v block_table {partial}"), *ints(pages=pages, tiles=tiles, **counts)
    first = Launch(split, (p.B * p.G * tiles * splits.count, 1, 1), args)
    args = p.struct(f"o lse sinks {partial}"), *ints(**counts)
    last = Launch(combine, (p.B * p.M * p.H, -(-p.E // COMBINE_COLUMNS), 1), args)
    return finished(call.device, (first, last), partial_workspaces(p, splits.count))
