"""Plans of attention's HIP kernels, on MFMA (gfx9) and WMMA (gfx11, gfx12)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from portable.kernels.attention.params import (
    MAX_TOKENS,
    PARTIALS,
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
    ints,
    native_kernel,
    planner,
    preprocess,
    tiled,
    tiled_plan,
)
from portable.layout import ceil_div
from portable.plan import Call, Device, Launch, Plan

_HERE = Path(__file__).resolve().parent
HEAD_UNIT = 32  # of head sizes as kernels hold them: swizzle groups of four chunks of 16 bytes
MAX_ROWS = 2**29  # of the forward: row numbers, and their sums with a window's side, are 32 bits


# --- tile choices -----------------------------------------------------------------------------------------


class ForwardTile(NamedTuple):
    """Keys of a step, waves of a block, 16-query tiles of a wave; whether Q lies in LDS; waves along E, which
    share their queries."""

    tile_n: int
    waves: int
    tiles_per_wave: int
    q_in_lds: bool = False
    waves_e: int = 1

    @property
    def m(self) -> int:
        return self.waves // self.waves_e * self.tiles_per_wave * 16

    def shared(self, d: int, e: int) -> int:
        """Bytes of LDS for padded head sizes."""
        return 2 * (self.tile_n * (d + e) + (self.m * d if self.q_in_lds else 0))


class BackwardTile(NamedTuple):
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
FORWARD_TILES = {  # by family: (tile, largest padded head size, and with a bias)
    "gfx9": (
        (ForwardTile(64, 4, 2), 128, 64),
        (ForwardTile(32, 4, 2), 128, 128),
        (ForwardTile(32, 4, 1), 256, 256),
    ),
    "gfx11": (  # its operands hold every element twice, so Q of larger heads lies in LDS
        (ForwardTile(64, 8, 1), 64, 64),
        (ForwardTile(32, 8, 1, q_in_lds=True), 128, 128),
        (ForwardTile(32, 8, 1, q_in_lds=True, waves_e=2), 256, 256),
    ),
    "gfx12": (
        (ForwardTile(64, 8, 1), 64, 64),
        (ForwardTile(32, 8, 1), 128, 128),
        (ForwardTile(32, 8, 1, q_in_lds=True, waves_e=2), 256, 256),
    ),
}
"""In order of preference: what registers hold without a spill, and LDS twice per compute unit (compiled,
never timed; 2026-11-22)."""

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
PLAIN_BACKWARD_TILES = {"gfx9": ((BackwardTile(4, 2, True, 2, True), 192, 512),)}
"""Before those, where rows come by buffer descriptors and scores are products times a scale (2026-11-23)."""

DBIAS_TILE = 128, 64  # queries, and keys, of a block; columns of a head at a time
DBIAS_SMALL = 64, 32  # where there are at most 64 of either
DBIAS_WAVE_QUERIES = 64

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
    return next(tile for tile, plain, with_bias in rows if max(d, e) <= (with_bias if bias else plain))


# --- attention and attention_varlen -----------------------------------------------------------------------


@planner
def forward(call: Call, p: AttentionParams) -> Plan:
    """o and lse: a block per tile of queries of a head; with varlen after the table of tiles."""
    p.require(MAX_TOKENS if p.is_varlen else MAX_ROWS)
    d, e = p.padded(HEAD_UNIT)
    tile = forward_tile(call.device, d, e, p.has("bias"), p.M <= 16 and p.N <= 32)
    defines = {
        "HEAD_D": d, "HEAD_E": e, "EVEN_D": d == p.D, "EVEN_E": e == p.E, **defines_of(tile),
        "SCALE_ONLY": p.softcap is None and not p.has("bias") and p.scale > 0,
        "BUFFER_LOADS": takes_buffers(call.device, p, k=p.D, v=p.E),
        **p.flags("LEFT RIGHT SOFTCAP BIAS SINKS VARLEN"),
    }  # fmt: skip
    threads = tile.waves * call.device.warp_size
    kernel = native_kernel(call.device, p, _HERE / "fwd.hip", "attention_forward", threads, defines)
    return tiled_plan(call.device, p, [tiled(p, kernel, tile.m, "q k v bias sinks o lse", "tiles")])


def takes_buffers(device: Device, p: AttentionParams, **widths: int) -> bool:
    """Whether these tensors' heads can be loaded through buffer descriptors (stream.h): chunks of eight
    numbers end with the rows, which do not overlap; a tile of rows spans less than 2^31 bytes; rows begin at
    whole words, as the ISA guides want it of buffers."""
    return family(device) == "gfx9" and all(
        width % 8 == 0
        and width <= (heads := p.heads[name]).row < 2**24
        and heads.alignment >= 4
        and all(stride * heads.itemsize % 4 == 0 for stride in heads.strides)
        for name, width in widths.items()
    )


# --- the gradients ----------------------------------------------------------------------------------------


@planner
def backward(call: Call, p: AttentionParams) -> Plan:
    """dq, dk and dv: lse_log2 and delta, then dk and dv, then dq."""
    p.require(MAX_TOKENS)
    gradients = [_gradient(p, call.device, *chosen) for chosen in backward_tiles(p, call.device)]
    return tiled_plan(call.device, p, gradients, preprocess(call.device, p))


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
    plain = p.softcap is None and not p.has("bias") and max(d, e) <= 128
    plain = plain and _streams_by_buffers(p, device, acc)
    tiles = PLAIN_BACKWARD_TILES.get(family(device), ()) if plain else ()
    for tile, max_registers, max_columns in (*tiles, *BACKWARD_TILES[family(device)]):
        registers = tile.tiles_per_wave * accumulators // (4 if wave64 else 2)
        if tile.own_in_registers:
            registers += tile.tiles_per_wave * columns // (8 if wave64 else 2 if twice else 4)
        own = 0 if tile.own_in_registers else tile.rows * 2 * columns
        lds = 2 * tile.stream_rows * (columns + accumulators) + own
        fits = lds * tile.blocks_per_cu <= device.shared_memory
        if registers <= max_registers and columns <= max_columns and fits:
            return tile
    return None


def _streams_by_buffers(p: AttentionParams, device: Device, acc: Accumulators) -> bool:
    streamed = {"q": p.D, "do": p.E} if acc.owns_keys else {"k": p.D, "v": p.E}
    return takes_buffers(device, p, **streamed)


def _gradient(p: AttentionParams, device: Device, acc: Accumulators, tile: BackwardTile) -> Tiled:
    """dk and dv by blocks of keys, or dq by blocks of queries."""
    d, e = backward_heads(p, device)
    defines = {
        "OWNS_KEYS": acc.owns_keys, "HEAD_D": d, "HEAD_E": e, "EVEN_D": d == p.D,
        "EVEN_E": e == p.E, "ACC_D": acc.d, "ACC_E": acc.e, **defines_of(tile),
        "BUFFER_LOADS": _streams_by_buffers(p, device, acc),
        **p.flags("SOFTCAP BIAS VARLEN"),
    }  # fmt: skip
    entry = "attention_bwd_dkdv" if acc.owns_keys else "attention_bwd_dq"
    kernel = native_kernel(device, p, _HERE / "bwd.hip", entry, tile.waves * device.warp_size, defines)
    pointers = f"dout q k v bias stats {' '.join(acc.written)}"
    return tiled(p, kernel, tile.rows, pointers, "tiles blocks", acc.owns_keys)


@planner
def dbias(call: Call, p: AttentionParams) -> Plan:
    """dbias of heads of any size: lse_log2 and delta, then each tile of scores alone."""
    p.require(MAX_TOKENS)
    tile, tile_k = DBIAS_SMALL if max(p.M, p.N) <= DBIAS_SMALL[0] else DBIAS_TILE
    wave_keys, warp = (64 if call.device.warp_size == 64 else 32), call.device.warp_size
    threads = tile // DBIAS_WAVE_QUERIES * (tile // wave_keys) * warp
    even = p.D % tile_k == p.E % tile_k == 0
    defines = {"TILE": tile, "TILE_K": tile_k, "EVEN_HEADS": even, **p.flags("SOFTCAP")}
    key_tiles = ceil_div(p.N, tile)
    tiles = ceil_div(p.M, tile) * key_tiles
    blocks = tiles * p.B * p.H
    args = p.struct("dout q k v bias stats dbias"), *ints(key_tiles=key_tiles, tiles=tiles, blocks=blocks)
    kernel = native_kernel(call.device, p, _HERE / "dbias.hip", "attention_dbias", threads, defines)
    first, stats = preprocess(call.device, p)
    return finished(call.device, [first, Launch(kernel, (blocks, 1, 1), args)], [stats])


# --- decode: attention_paged, and attention with few queries ----------------------------------------------


@planner
def decode(call: Call, p: AttentionParams) -> Plan:
    """The splits of all sequences' keys, and their combination. How many keys a split has follows from the
    sequence's length and the GPU, so that it gets the same bits whatever the rest of the batch is."""
    require_decode(call, p)
    cut = decode_of(call, p, DECODE_COLUMNS, DECODE_BLOCKS_PER_CU)
    scale_only = p.softcap is None and p.scale > 0 and not p.codes  # k_scale may be anything
    defines = {**cut.native_defines(p), **p.flags("SINKS"), "SCALE_ONLY": scale_only}
    source, threads = _HERE / "decode.hip", DECODE_WAVES * call.device.warp_size
    split = native_kernel(call.device, p, source, "attention_decode", threads, defines)
    combine = native_kernel(call.device, p, source, "attention_decode_combine", COMBINE_THREADS, defines)
    args = p.struct(f"o lse sinks seq_lens {PARTIALS}"), *ints(splits=cut.splits, max_splits=cut.max_splits)
    last = Launch(combine, (p.B * p.M * p.H, ceil_div(p.E, COMBINE_COLUMNS), 1), args)
    return decode_plan(call, p, cut, cut.launch(p, split, f"k v {PARTIALS}"), last)
