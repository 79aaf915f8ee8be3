"""Plans of the CUDA C++ kernels on wgmma and TMA, Hopper: attention, its gradients, and both of varlen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from portable.kernels.attention.params import (
    MAX_TOKENS,
    TABLES,
    Arguments,
    AttentionParams,
    Unsupported,
)
from portable.kernels.attention.planning import (
    Tiled,
    finished,
    fitted,
    ints,
    max_tiles,
    native_kernel,
    optional,
    planner,
    tile_table,
    tile_workspaces,
    tiled_plan,
    tiles_of,
    workspace,
)
from portable.layout import ceil_div
from portable.plan import Call, Device, Launch, NativeKernel, Plan, Scalar, Workspace

_HERE = Path(__file__).resolve().parent
HEAD_UNIT = 64  # of head sizes as kernels hold them: 128-byte swizzle rows


def tensor_maps(p: AttentionParams, rows: Mapping[str, int], q_heads: int = 1) -> Arguments:
    """Of tensors in boxes of so many rows, and `q_heads` heads of q."""
    boxes = {name: (each, q_heads if name == "q" else 1, 1) for name, each in rows.items()}
    maps = {name: p.tensor_map(name, p.dims(name), box) for name, box in boxes.items()}
    return tuple((f"map_{'dout' if name == 'do' else name}", each) for name, each in maps.items())


# --- attention and attention_varlen -------------------------------------------------------------------------

MAX_ROWS = 2**30 - 1024  # a row number and a window's side are added in 32 bits
MAX_TILES = 2**30
_REGISTERS = 190  # of a consumer's 232, for acc_o, scores and P
_VARLEN_BARRIERS = 64  # bytes: the next tile, its barriers, and those of values that cross an end


class Tile(NamedTuple):
    """Keys a block, consumer warpgroups of 64 queries, and whether consumers ping-pong. Then microseconds
    of a block of keys, and of the rest of a tile, where tiles are compared; and blocks of keys in
    flight."""

    tile_n: int
    consumers: int
    pingpong: int
    block: float = 1.0
    rest: float = 1.0
    stages: int = 2

    @property
    def m(self) -> int:
        return 64 * self.consumers

    def fits(self, d: int, e: int, shared: int) -> bool:
        """Whether a consumer's registers and the block's shared memory hold it."""
        return e // 2 + self.tile_n * 3 // 4 <= _REGISTERS and self.shared(d, e, 1) <= shared

    def shared(self, d: int, e: int, q_stages: int) -> int:
        barriers = 16 * (q_stages + 2 * self.stages)
        return 1024 + 2 * (q_stages * self.m * d + self.stages * self.tile_n * (d + e)) + barriers


# By padded head sizes, from sequences of 512 and 8192 on one H200, 2026-11-21 and 22. Other head sizes take
# the first that fits.
_TILES = {
    (64, 64): (Tile(128, 3, 0, 1.541, 2.8), Tile(64, 4, 1, 1.06, 2.2, 4), Tile(128, 2, 0, 1.207, 1.24)),
    (128, 128): (Tile(80, 3, 1, 1.42, 3.57), Tile(128, 2, 0, 1.623, 1.72)),
    (256, 256): (Tile(80, 2, 0, 1.742, 4.2), Tile(64, 2, 0, 1.52, 3.9)),
}
_OTHER_TILES = tuple(Tile(n, 2, 1) for n in (128, 112, 96, 80, 64))
_UNEVEN = 1.02  # the last multiprocessor's time over the mean, where heads go in bands
_BYTES_PER_US = 3e6  # of keys and values from memory


class Costs(NamedTuple):
    """Of a head's tiles: how many, and the mean and most blocks of keys."""

    tiles: int
    mean: float
    most: int


def _costs(p: AttentionParams, tile: Tile) -> Costs:
    def blocks(row: int) -> int:
        first = 0 if p.left is None else min(max(row + p.N - p.M - p.left, 0), p.N - 1) // tile.tile_n
        end = p.N if p.right is None else min(row + tile.m + p.N - p.M + p.right, p.N)
        return max(ceil_div(end, tile.tile_n) - first, 1)

    tiles = ceil_div(p.M, tile.m)
    rows = range(0, tiles * tile.m, tile.m * max(tiles // 64, 1)) or range(1)  # a sample will do
    counts = [blocks(row) for row in rows]
    return Costs(tiles, sum(counts) / len(counts), max(counts))


def _tiles(call: Call, p: AttentionParams) -> tuple[Tile, ...]:
    """The tiles to choose from: for long sequences first."""
    d, e = p.padded(HEAD_UNIT)
    fitting = (tile for tile in _OTHER_TILES if tile.fits(d, e, call.device.shared_memory))
    return _TILES.get((d, e)) or (next(fitting),)


def _dense_tile(call: Call, p: AttentionParams) -> Tile:
    """The tile that takes the least time on a full GPU, so that a row's result does not depend on how many
    batches there are."""

    def time(tile: Tile) -> float:
        costs = _costs(p, tile)
        return costs.tiles * (costs.mean * tile.block + tile.rest)

    return fitted(min(_tiles(call, p), key=time), call.config)


def _varlen_tile(call: Call, p: AttentionParams) -> Tile:
    """One tile for all lengths, which are not known here: a sequence's bits do not depend on its neighbours'.
    Measured 2026-11-22 on a long tail of 74 lengths, of the dense kernel for the same work, full and causal:
    heads of 64 by 3 consumers 0.993 and 0.927, by 2 0.842 and 0.867; heads of 128 by 2 0.946 and 0.986, by 3
    0.923 and (another run) 0.898; ping-pong gains 1 to 3 %."""
    large, *others = _tiles(call, p)
    tile = others[0] if others and p.padded(HEAD_UNIT)[1] == 128 else large
    return fitted(tile._replace(pingpong=1), call.config)


def _pack_gqa(p: AttentionParams, tile: Tile) -> int:
    """Query heads of one key head that share a tile, so that the end of a sequence wastes less of it. A
    warp's 16 rows are of one head; heads that do not step are one in the descriptor: no box brings a second.
    Measured 2026-11-22, one and four, of the dense kernel for the same work, full and causal: a long tail
    0.948, 0.960 and 0.992, 1.014; 223 sequences 0.888, 0.917 and 0.879, 0.925; 8 x 4096 1.002, 1.000 and
    1.050, 1.048; heads of 64, a long tail 0.990, 1.031 and 0.930, 1.028."""
    fitting = (n for n in (4, 2) if p.qheads_per_kvhead % n == 0 and tile.m % (16 * n) == 0)
    return next(fitting, 1) if p.heads["q"].head else 1


def heads_per_band(call: Call, p: AttentionParams, tile: Tile) -> int:
    """Tiles that cost the same go in order, 1. Where costs fall: a dear tile and a cheap one as a pair,
    head after head, 0; or all heads' dearest tiles first, which is more even, but brings keys and values
    from memory again and again where they exceed L2 (2026-11-21, pairs and all heads, us: heads of 128, 512
    99, 126; 2048 244, 302; 8192 927, 913; heads of 256, 2048 230, 258; 8192 825, 807)."""
    if call.config.get("HEADS_PER_BAND"):
        return call.config["HEADS_PER_BAND"]
    if p.right is None or p.left is not None:
        return 1
    costs, heads, multiprocessors = _costs(p, tile), p.B * p.H, call.device.multiprocessors
    if costs.tiles % 2 or not heads:
        return heads
    cost, tiles = costs.mean * tile.block + tile.rest, costs.tiles * heads
    busy, streamed = tiles / multiprocessors * cost, 0.0
    all_keys = 2 * p.B * p.G * p.N * (p.D + p.E)
    if all_keys > call.device.l2_bytes / 2:
        sharing = p.qheads_per_kvhead * max(1.0, multiprocessors / heads)
        streamed = 2 * tiles * costs.mean * tile.tile_n * (p.D + p.E) / sharing / _BYTES_PER_US
    bands = max(_UNEVEN * busy, costs.most * tile.block + tile.rest)
    pairs = ceil_div(tiles, 2 * multiprocessors) * 2 * cost
    return 0 if pairs < bands or streamed > busy / 4 else heads


def _require_forward(p: AttentionParams) -> None:
    p.require(MAX_ROWS)
    if p.has("bias"):
        raise Unsupported("it adds no bias")
    if p.N == 0:
        raise Unsupported("no keys to copy")
    for name, size in (("q and k", p.D), ("v", p.E)):
        if size % 8:
            raise Unsupported(f"the head size of {name}, {size}, is no multiple of 8")
    if p.softcap is None and not p.scale > 0:
        raise Unsupported(f"a scale of {p.scale} is not positive")
    p.require_tma("q k v o", repeats=True)


@planner
def forward(call: Call, p: AttentionParams) -> Plan:
    """o and lse: persistent blocks. Of varlen after the table of tiles, which they claim; a tile has queries
    of `pack` heads."""
    _require_forward(p)
    tile = _varlen_tile(call, p) if p.is_varlen else _dense_tile(call, p)
    pack = _pack_gqa(p, tile) if p.is_varlen else 1
    d, e = p.padded(HEAD_UNIT)
    extra = _VARLEN_BARRIERS if p.is_varlen else 0
    q_stages = 2 if tile.shared(d, e, 2) + extra <= call.device.shared_memory else 1
    shared = tile.shared(d, e, q_stages) + extra
    queries = tile.m // pack
    tiles = tiles_of(p, queries) * p.B * (p.H // pack)
    if tiles > MAX_TILES:
        raise Unsupported(f"{tiles} tiles exceed {MAX_TILES}")
    band = 0 if p.is_varlen else heads_per_band(call, p, tile)
    blocks = min(tiles if band or p.is_varlen else tiles // 2, call.device.multiprocessors)
    steps = [bool(getattr(p.heads[name], side)) for name in "qkv" for side in ("head", "batch")]
    defines = {
        "HEAD_D": d, "HEAD_E": e, "TILE_N": tile.tile_n, "CONSUMERS": tile.consumers, "Q_STAGES": q_stages,
        "STAGES": tile.stages, "PINGPONG": tile.pingpong, "PACK_GQA": pack,
        **p.flags("LEFT RIGHT SOFTCAP SINKS VARLEN"),
    }  # fmt: skip
    args = (
        *tensor_maps(p, {"q": queries, "k": tile.tile_n, "v": tile.tile_n}, pack),
        p.struct(f"o lse sinks {TABLES}"),
        *ints(heads_per_band=band, all_heads=p.B * p.H),
        *ints(tma_steps=sum(bit << i for i, bit in enumerate(steps))),
    )
    threads = 128 * (1 + tile.consumers)
    source, entry = _HERE / "fwd.cu", "attention_fwd_sm90"
    main = native_kernel(call.device, p, source, entry, threads, defines, shared, pdl=p.is_varlen)
    return tiled_plan(call.device, p, [Tiled(Launch(main, (blocks, 1, 1), args), queries)])


# --- attention_backward and attention_varlen_backward, heads up to 128 --------------------------------------

KEYS = 128  # of a block's tile
QUERIES = {64: 128, 128: 64}  # of a step, by head size as the kernel holds it: what the registers hold
_BWD_STAGES = 2
_DQ_PART = 64 * 64  # a step's dq is two blocks of as many
_BWD_VARLEN_BARRIERS = 48  # bytes: of what crosses a sequence's end
_FEW_ROWS = 8192
# Key heads of sequences of about one length that go in a band. Measured 2026-11-22, 8, 16 and 32, of the
# dense kernel for the same work: a long tail full 0.997, 0.997, 0.971, causal 0.963, 0.970, 0.954; 8 x 4096
# 1.091, 1.108, 0.988, and 0.998, 0.966, 0.978; 223 sequences 0.936, -, 0.853, and 0.857, -, 0.799.
_VARLEN_KV_HEADS = 8


def _require_backward(p: AttentionParams) -> None:
    if max(p.D, p.E) > 256 or p.D % 8 or p.E % 8:
        raise Unsupported(f"heads of {p.D} and {p.E}, not multiples of 8 up to 256")
    if p.has("bias"):
        raise Unsupported("it adds no bias")
    if not 0 < p.M <= MAX_TOKENS or not 0 < p.N <= MAX_TOKENS:
        raise Unsupported(f"{p.M} queries and {p.N} keys; it takes 1 to {MAX_TOKENS} of each")
    if 0 in (p.B, p.H):
        raise Unsupported("no heads")
    p.require(MAX_TOKENS)
    p.require_tma("q k v do o dq dk dv")


def _kv_heads_per_band(call: Call, p: AttentionParams) -> int:
    """The fewer blocks of keys of one head run at a time, the less they wait for each other; the more, the
    more they share through L2. Measured 2026-11-21 on 8192 queries and keys, 4, 8, 16 and 32 in a band, of
    cuDNN: causal 0.97, 1.03, 1.06, 1.07 (heads of 64: 0.93, 1.06, 1.12, 1.16), full the same. And
    2026-11-22, full, 8, 16 and 32, us: 8 x 4096, 32 heads on 8, 10969, 10776, 11011; 16 x 4096, 32 on 4,
    21668, 21793, 25352; others within 2 %."""
    return call.config.get("KV_HEADS_PER_BAND") or (16 if p.right is None else 32)


def _heads_inside(p: AttentionParams) -> bool:
    """Whether a block of keys walks all heads of a block of queries before the next block of queries. Where
    the right is bounded, later blocks of keys then wait less; but more rows are under way. Measured
    2026-11-22, causal, query heads on a key head and queries, gain: 4, 512 15 % (heads of 64 10 %); 8, 512
    13 %; 8, 1024 4 %; 4, 2048 2 % (7 %); 4, 4096 0; 8, 4096 -3 to -15 %. Full mostly loses, up to 3 %."""
    many = p.qheads_per_kvhead > 1 and p.qheads_per_kvhead * p.M <= _FEW_ROWS
    return p.is_varlen or (p.right is not None and many)


def small_kernel(
    call: Call, p: AttentionParams, entry: str, defines: Mapping[str, Any], dq_accum: bool
) -> NativeKernel:
    """One of bwd_pre_postprocess.cu."""
    own = {**defines, "HEADS_INSIDE": 0, **p.flags("DLSE"), "DQ_ACCUM": dq_accum}
    return native_kernel(call.device, p, _HERE / "bwd_pre_postprocess.cu", entry, 256, own)


def preprocess(
    call: Call, p: AttentionParams, defines: Mapping[str, Any], lines: int, claimed: str = ""
) -> Launch:
    """Statistics of the queries; with `claimed`, the counter of tiles, also cleared semaphores of dq. A
    head has `lines` blocks of queries."""
    main = small_kernel(call, p, "attention_bwd_preprocess_sm90", defines, bool(claimed))
    counter = workspace(claimed) if claimed else Scalar("i64", 0)
    args = (
        p.struct("dout o lse dlse stats bounds"),
        *optional(semaphore=bool(claimed)),
        ("claimed", counter),
    )
    return Launch(main, (lines * p.B * p.H, 1, 1), (*args, *ints(lines=lines)))


def varlen_kv_heads_per_band(call: Call, p: AttentionParams) -> int:
    return max(1, (call.config.get("KV_HEADS_PER_BAND") or _VARLEN_KV_HEADS) // p.G)


@planner
def backward(call: Call, p: AttentionParams) -> Plan:
    """dq, dk and dv of heads of up to 256 without a bias: preprocess, the main kernel, and postprocess; of
    varlen after the table of blocks of keys."""
    _require_backward(p)
    if max(p.D, p.E) > 128:
        return _hdim256_varlen(call, p) if p.is_varlen else _hdim256_dense(call, p)
    head = 64 if max(p.D, p.E) <= 64 else 128
    queries = QUERIES[head]
    shared = _backward_shared(head, queries) + (_BWD_VARLEN_BARRIERS if p.is_varlen else 0)
    # Measured 2026-11-21: heads of 64 gain 5 to 8 % by claiming tiles; with heads of 128 a claimed tile,
    # unlike a block's own, takes registers that are not there (15 % slower).
    persistent = head == 64 and not p.is_varlen
    lines, blocks = tiles_of(p, queries), tiles_of(p, KEYS, of_keys=True) * p.B * p.G
    defines = {"HEAD": head, "KEYS": KEYS, "QUERIES": queries, **p.flags("VARLEN")}
    of_main = {
        **defines, "STAGES": _BWD_STAGES, "PERSISTENT": persistent, **p.flags("SOFTCAP"),
        "HEADS_INSIDE": _heads_inside(p),
    }  # fmt: skip
    claimed = "tile_counts" if p.is_varlen else "claimed"
    accum = optional(dq_accum=True, semaphore=True)
    main_args = (
        *tensor_maps(p, {"q": queries, "k": KEYS, "v": KEYS, "do": queries, "dk": 64, "dv": 64}),
        p.struct(f"stats dk dv {TABLES}"),
        *accum,
        ("claimed", workspace(claimed)),
        *ints(kv_heads_per_band=_kv_heads_per_band(call, p)),
        ("tiles_of_keys", Scalar("u32", blocks)),
        *ints(lines=lines),
    )
    main = native_kernel(call.device, p, _HERE / "bwd.cu", "attention_bwd_sm90", 512, of_main, shared)
    finish = small_kernel(call, p, "attention_bwd_postprocess_sm90", defines, True)
    grid = min(blocks, call.device.multiprocessors) if persistent else blocks
    launches = [
        preprocess(call, p, defines, lines, claimed),
        Launch(main, (grid, 1, 1), main_args),
        Launch(finish, (lines * p.B * p.H, 1, 1), (p.struct("dq bounds"), *accum, *ints(lines=lines))),
    ]
    spaces = [
        Workspace("stats", (p.B * p.H, lines, queries * 2), "float32"),
        Workspace("semaphore", (p.B * p.H, lines), "int32"),
        Workspace("dq_accum", (p.B * p.H, lines, 2 * _DQ_PART), "float32"),
    ]
    if not p.is_varlen:
        return finished(call.device, launches, [*spaces, Workspace("claimed", (1,), "int32")])
    # A block of keys waits for those before it, so they come first.
    table = tile_table(p, KEYS, of_keys=True, kv_heads_per_band=varlen_kv_heads_per_band(call, p))
    return finished(call.device, [table, *launches], [*spaces, *tile_workspaces(p, p.N, KEYS)])


def _backward_shared(head: int, queries: int) -> int:
    """K, v, the stages of q, do and statistics, two buffers of dS and of dq's parts, barriers."""
    stage = 2 * queries * head * 2 + queries * 8 + 32
    return 2 * KEYS * head * 2 + _BWD_STAGES * stage + 2 * queries * KEYS * 2 + 2 * 2 * _DQ_PART * 4 + 144


# --- the gradients of heads above 128 -----------------------------------------------------------------------
#
# bwd_hdim256.cu writes dS to memory in chunks, and bwd_dq_hdim256.cu makes dq of it. A chunk's blocks are
# planned here, or for varlen found on the GPU.

TILE = 64  # keys of a block, and queries of a step
DS_ELEMENTS = TILE * TILE  # of a block of scores
# Of dS in memory at a time. Measured 2026-11-22 on 2 x 8 heads of 256 and 8192: half as much is 6 % slower
# causal, a quarter 13 %; full attention is within 2 %.
_DS_BYTES = 1 << 30
_FEWEST_BLOCKS = 128  # of keys in a chunk that does not take all: about as many as there are multiprocessors
_DQ_STAGES = 4
CONSUMERS = 2
# Of a thread's 240, for accumulators and for rows of k or v. Measured 2026-11-22 against no rows: heads of
# 192 and 128 are 3 to 7 % faster, of 256 with 64 columns 1 to 3 %, with 128 columns -1 to 2 %.
_HELD_REGISTERS = 144
_KV_HEADS = 8  # key heads in a band; 1 to 16 are within 3 %
# Varlen: those of a query head over 32768 tokens, causal, in one sequence. Measured 2026-11-22 on a long
# tail of 74 lengths in 32768 tokens, 1, 1.125, 2 and 4 GiB, of the dense kernel for the same work: heads of
# 192 and 128, causal 0.86, 0.87, 0.85, 0.87, full 0.86, 0.90, 0.87, 0.85; of 256, causal 0.91, 0.91, 0.91,
# 0.92, full 0.86, 0.88, 0.94, 0.95.
_VARLEN_DS_BYTES = 9 << 27
_MAX_DS_BLOCKS = 2**30  # blocks of scores of a head are counted in 32 bits
# Varlen: of keys in a part of a head, at the longest lengths. Measured 2026-11-22, 8 heads of 256 on one,
# 32768 tokens causal, of which 36 blocks are a part: one sequence 0.89 of Triton, a long tail 1.77; 72
# blocks, one sequence of 65536, 1.49.
_VARLEN_FEWEST_BLOCKS = 32
_MAX_CHUNKS = 512  # of which most are empty where sequences are short: 6 us each


class Chunk(NamedTuple):
    """What is in memory at a time: the blocks of keys of some key heads, counted over all batches."""

    line: int
    lines: int
    block: int
    blocks: int


def _hdim256_dense(call: Call, p: AttentionParams) -> Plan:
    """Statistics; then per chunk dk, dv and dS, and dq."""
    blocks, key_blocks = ceil_div(p.M, TILE), ceil_div(p.N, TILE)
    lines, most = p.B * p.G, most_blocks(p)
    each = p.qheads_per_kvhead * most * DS_ELEMENTS * 2
    chunks = tuple(chunks_of(lines, key_blocks, _DS_BYTES // each))
    if not chunks:
        raise Unsupported(f"gradients of scores take {each} bytes a block of keys")
    accumulated = chunks[0].blocks < key_blocks
    launches = _ChunkLaunches(call, p, accumulated, call.config.get("KV_HEADS_PER_BAND") or _KV_HEADS)
    found = [preprocess(call, p, _hdim256_defines(p), blocks)]
    for chunk in chunks:
        dq_blocks = chunk.lines * p.qheads_per_kvhead * ceil_div(blocks, CONSUMERS)
        found += launches.of(chunk.lines * chunk.blocks, dq_blocks, chunk, most=most)
    heads, rows = chunks[0].lines * p.qheads_per_kvhead, ceil_div(blocks, CONSUMERS) * CONSUMERS * TILE
    spaces = [
        Workspace("stats", (p.B * p.H, blocks, TILE * 2), "float32"),
        Workspace("ds_workspace", (heads, chunks[0].blocks, most, DS_ELEMENTS), p.dtype),
    ]
    if accumulated:
        spaces.append(Workspace("dq_accum", (heads * rows * p.padded(HEAD_UNIT)[0],), "float32"))
    return finished(call.device, found, spaces)


def _hdim256_varlen(call: Call, p: AttentionParams) -> Plan:
    """Tables of tiles, offsets into the dS workspace, statistics; then as without it. Lengths are not known
    here: there are as many chunks as any lengths may need, of which those that the GPU finds no work for
    end at once."""
    share, reach = p.qheads_per_kvhead, most_blocks(p)
    most = most_ds_blocks(p, reach)
    if most > _MAX_DS_BLOCKS:
        raise Unsupported(f"up to {most} blocks of scores a head exceed {_MAX_DS_BLOCKS}")
    slots = min(_VARLEN_DS_BYTES // (DS_ELEMENTS * 2), most * share * p.G)
    chunks = varlen_chunks(p.G, share, most, reach, slots)
    if chunks is None:
        size = share * reach * DS_ELEMENTS * 2
        raise Unsupported(f"gradients of scores take up to {size} bytes a block of keys")
    if chunks > _MAX_CHUNKS:
        raise Unsupported(f"gradients of scores may take {chunks} chunks")
    rows, tiles = (max_tiles(p.M, p.offsets, tile) for tile in (TILE, CONSUMERS * TILE))
    key_blocks = tiles_of(p, TILE, of_keys=True)
    accumulated = most * share > slots
    band = varlen_kv_heads_per_band(call, p)
    launches = _ChunkLaunches(call, p, accumulated, band)
    found = [
        tile_table(p, TILE, of_keys=True, kv_heads_per_band=band),
        _workspace_offsets(call, p, reach, slots),
        preprocess(call, p, _hdim256_defines(p), rows),
    ]
    for number in range(chunks):
        key_heads = max(1, p.G // (number + 1))  # as many as are left to the number-th of equal chunks
        found += launches.of(
            key_blocks * key_heads, tiles * key_heads * share, number=number, rows=rows, tiles=tiles,
            reach=reach,
        )  # fmt: skip
    spaces = [
        Workspace("stats", (p.H, rows, TILE * 2), "float32"),
        Workspace("ds_workspace", (slots, DS_ELEMENTS), p.dtype),
        Workspace("workspace_offsets", (p.offsets + 1,), "int32"),
        Workspace("chunk_layout", (4,), "int32"),
        *tile_workspaces(p, p.N, TILE),
    ]
    if accumulated:
        held = share * tiles * CONSUMERS * TILE * p.padded(HEAD_UNIT)[0]
        spaces.append(Workspace("dq_accum", (held,), "float32"))
    return finished(call.device, found, spaces)


class _ChunkLaunches:
    """The launches of a chunk: dk, dv and dS, then dq. All of a call share their kernels and most of their
    arguments."""

    def __init__(self, call: Call, p: AttentionParams, accumulated: bool, band: int) -> None:
        self.kernels, self.band = _hdim256_kernels(p, call.device), band
        maps = tensor_maps(p, dict.fromkeys(("q", "k", "v", "do", "dk", "dv"), TILE))
        offsets = optional(workspace_offsets=p.is_varlen, chunk_layout=p.is_varlen)
        ds, accum = optional(ds_workspace=True), optional(dq_accum=accumulated)
        self.main: Arguments = (*maps, p.struct(f"stats dk dv {TABLES}"), *ds, *offsets)
        maps = tensor_maps(p, {"k": TILE, "dq": TILE})
        self.dq: Arguments = (*maps, p.struct("dq bounds"), *ds, *accum, *offsets)

    def of(
        self, blocks: int, dq_blocks: int, chunk: Chunk | None = None, *, most: int = 0,
        number: int = 0, rows: int = 0, tiles: int = 0, reach: int = 0,
    ) -> tuple[Launch, Launch]:  # fmt: skip
        """Dense calls say which `chunk`, varlen its `number`."""
        last = ints(**(chunk or Chunk(0, 0, 0, 0))._asdict(), most=most)
        main = ints(kv_heads_per_band=self.band, number=number, rows=rows, reach=reach)
        dq = ints(number=number, tiles=tiles, reach=reach)
        return (
            Launch(self.kernels[0], (blocks, 1, 1), (*self.main, *main, *last)),
            Launch(self.kernels[1], (dq_blocks, 1, 1), (*self.dq, *dq, *last)),
        )


def _workspace_offsets(call: Call, p: AttentionParams, reach: int, slots: int) -> Launch:
    made = small_kernel(call, p, "attention_varlen_workspace_offsets", _hdim256_defines(p), False)
    written = optional(workspace_offsets=True, chunk_layout=True)
    return Launch(made, (1, 1, 1), (p.struct("bounds"), *written, *ints(reach=reach, slots=slots)))


def _hdim256_defines(p: AttentionParams) -> dict[str, Any]:
    """What all kernels of a plan are compiled for."""
    head = next(size for size in (64, 128, 256) if size >= p.E)
    return {"HEAD": head, "KEYS": TILE, "QUERIES": TILE, **p.flags("VARLEN")}


def _hdim256_kernels(p: AttentionParams, device: Device) -> tuple[NativeKernel, NativeKernel]:
    """The main kernel, with as many stages as fit, and dq's. Varlen takes further barriers."""
    d, e = p.padded(HEAD_UNIT)
    stages = 3 if _hdim256_shared(d, e, 3) <= device.shared_memory else 2
    columns = {**_hdim256_defines(p), "HEADS_INSIDE": 0, "HEAD_D": d, "HEAD_E": e}
    of_main = {"HELD_D": held(d, e), "HELD_E": held(e, d), "STAGES": stages, **p.flags("SOFTCAP")}
    dq_shared = _DQ_STAGES * (TILE * d * 2 + CONSUMERS * DS_ELEMENTS * 2 + 16) + 8 * p.is_varlen
    shared = _hdim256_shared(d, e, stages) + (16 + stages * 16) * p.is_varlen
    source, entry = _HERE / "bwd_hdim256.cu", "attention_bwd_hdim256"
    main = native_kernel(device, p, source, entry, 384, columns | of_main, shared)
    of_dq, threads = columns | {"STAGES": _DQ_STAGES}, (1 + CONSUMERS) * 128
    source, entry = _HERE / "bwd_dq_hdim256.cu", "attention_bwd_dq_hdim256"
    return main, native_kernel(device, p, source, entry, threads, of_dq, dq_shared)


def chunks_of(lines: int, key_blocks: int, slots: int) -> Iterator[Chunk]:
    """All key heads with all blocks of keys, in chunks of about one size of at most `slots` blocks; none
    where chunks would be too small."""
    if slots >= key_blocks:
        count = ceil_div(lines, slots // key_blocks)
        each = ceil_div(lines, count)
        for line in range(0, lines, each):
            yield Chunk(line, min(each, lines - line), 0, key_blocks)
    elif slots >= _FEWEST_BLOCKS:
        each = ceil_div(key_blocks, ceil_div(key_blocks, slots))
        for line in range(lines):
            for block in range(0, key_blocks, each):
                yield Chunk(line, 1, block, min(each, key_blocks - block))


def varlen_chunks(kv_heads: int, share: int, most: int, reach: int, slots: int) -> int | None:
    """The most chunks of `slots` blocks of scores; None where those of a part of a head would be too
    small."""
    room = slots // share
    if most <= room:
        return ceil_div(kv_heads, min(kv_heads, room // most))
    if room < _VARLEN_FEWEST_BLOCKS * reach:
        return None
    return kv_heads * ceil_div(most, room - reach)


def most_blocks(p: AttentionParams) -> int:
    """The most blocks of queries that see a block of keys."""
    whole = ceil_div(p.M, TILE)
    if p.left is None or p.right is None:
        return whole
    return min(whole, (p.left + p.right + 2 * TILE - 2) // TILE + 1)


def most_ds_blocks(p: AttentionParams, reach: int) -> int:
    """The most blocks of scores of a query head that any offsets lead to."""
    M, N, sequences = p.M, p.N, max(p.offsets - 1, 0)
    rest, blocks = TILE - 1, N // TILE + sequences
    bounds = [reach * blocks, (M * N + rest * (M + N) + rest * rest * sequences) // (TILE * TILE)]
    if p.left is None and p.right is not None:
        # Of a row after the first seen by all, one block less than of the one before it; at its end 2, and
        # what the right shows beyond the diagonal. No cut of M x N into sequences leaves more than one does.
        seen = M * N - M * M // 2 if M <= N else N * N // 2
        beside = blocks * (2 - (-p.right // TILE))
        bounds.append((seen + rest * N) // (TILE * TILE) + sequences + 2 + beside)
    return max(1, min(bounds))


def held(columns: int, accumulated: int) -> int:
    """How many columns of k, or of v, a warpgroup's registers hold beside its accumulator, dv or dk."""
    return min(columns, (_HELD_REGISTERS - accumulated // 2) * 4)


def _hdim256_shared(columns_d: int, columns_e: int, stages: int) -> int:
    """K, v, the stages of q, do and statistics, two buffers of P and of dS, barriers."""
    rows = TILE * (columns_d + columns_e) * 2
    return rows + stages * (rows + TILE * 8 + 32) + 4 * DS_ELEMENTS * 2 + 48
