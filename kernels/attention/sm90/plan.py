"""Plans of the CUDA C++ kernels on wgmma and TMA, Hopper: attention, its gradients, and both of varlen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from portable.kernels.attention.params import ELEMENTS, LAYOUT, MAX_TOKENS, AttentionParams, Unsupported
from portable.kernels.attention.planning import (
    Tiled,
    finished,
    fitted,
    ints,
    native_kernel,
    planner,
    tile_table,
    tile_workspaces,
    tiled_plan,
    tiles_of,
    workspace,
)
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Scalar, TensorMap, Workspace

_HERE = Path(__file__).resolve().parent

TABLES = "bounds tile_list tile_counts"


def kernel(
    p: AttentionParams, source: str, entry: str, threads: int, defines: Mapping[str, Any], shared: int = 0,
    pdl: bool = False,
) -> NativeKernel:  # fmt: skip
    own = {"ELEMENT": ELEMENTS[p.dtype], **defines, **p.flags("VARLEN"), "PARAMS_LAYOUT": LAYOUT}
    return native_kernel(_HERE / source, entry, threads, own, shared, pdl)


# --- attention and attention_varlen -------------------------------------------------------------------------

_MAX_ROWS = 2**30 - 1024  # a row number and a window's side are added in 32 bits
_MAX_TILES = 2**30
_REGISTERS = 190  # of a consumer's 232, for acc_o, scores and P
_VARLEN_BARRIERS = 64  # bytes: the next tile, its barriers, and those of values that cross an end


class Tile(NamedTuple):
    """Keys a block, consumer warpgroups of 64 queries, and whether consumers ping-pong. Then microseconds
    of a block of keys, and of the rest of a tile, where tiles are compared; and blocks of keys in
    flight."""

    n: int
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
        return e // 2 + self.n * 3 // 4 <= _REGISTERS and self.shared(d, e, 1) <= shared

    def shared(self, d: int, e: int, q_stages: int) -> int:
        barriers = 16 * (q_stages + 2 * self.stages)
        return 1024 + 2 * (q_stages * self.m * d + self.stages * self.n * (d + e)) + barriers


# By padded head sizes, from sequences of 512 and 8192 on one H200, 2026-11-21 and 22. Other head sizes take
# the first that fits.
_TILES = {
    (64, 64): (Tile(128, 3, 0, 1.541, 2.8), Tile(64, 4, 1, 1.06, 2.2, 4), Tile(128, 2, 0, 1.207, 1.24)),
    (128, 128): (Tile(80, 3, 1, 1.42, 3.57), Tile(128, 2, 0, 1.623, 1.72)),
    (256, 256): (Tile(80, 2, 0, 1.742, 4.2), Tile(64, 2, 0, 1.52, 3.9)),
}
_TUNABLES = {"n": "TILE_N", "consumers": "CONSUMERS", "pingpong": "PINGPONG"}
_OTHER_TILES = tuple(Tile(n, 2, 1) for n in (128, 112, 96, 80, 64))
_UNEVEN = 1.02  # the last multiprocessor's time over the mean, where heads go in bands
_BYTES_PER_US = 3e6  # of keys and values from memory


def padded(size: int) -> int:
    """A head size as the kernels hold it: whole 128-byte swizzle rows."""
    return -(-size // 64) * 64


class Costs(NamedTuple):
    """Of a head's tiles: how many, and the mean and most blocks of keys."""

    tiles: int
    mean: float
    most: int


def _costs(p: AttentionParams, tile: Tile) -> Costs:
    def blocks(row: int) -> int:
        first = 0 if p.left is None else min(max(row + p.N - p.M - p.left, 0), p.N - 1) // tile.n
        end = p.N if p.right is None else min(row + tile.m + p.N - p.M + p.right, p.N)
        return max(-(-end // tile.n) - first, 1)

    tiles = -(-p.M // tile.m)
    rows = range(0, tiles * tile.m, tile.m * max(tiles // 64, 1)) or range(1)  # a sample will do
    counts = [blocks(row) for row in rows]
    return Costs(tiles, sum(counts) / len(counts), max(counts))


def _tiles(call: Call, p: AttentionParams) -> tuple[Tile, ...]:
    """The tiles to choose from: for long sequences first."""
    d, e = padded(p.D), padded(p.E)
    fitting = (tile for tile in _OTHER_TILES if tile.fits(d, e, call.device.shared_memory))
    return _TILES.get((d, e)) or (next(fitting),)


def _dense_tile(call: Call, p: AttentionParams) -> Tile:
    """The tile that takes the least time on a full GPU, so that a row's result does not depend on how many
    batches there are."""

    def time(tile: Tile) -> float:
        costs = _costs(p, tile)
        return costs.tiles * (costs.mean * tile.block + tile.rest)

    return fitted(min(_tiles(call, p), key=time), call.config, **_TUNABLES)


def _varlen_tile(call: Call, p: AttentionParams) -> Tile:
    """One tile for all lengths, which are not known here: a sequence's bits do not depend on its neighbours'.
    Measured 2026-11-22 on a long tail of 74 lengths, of the dense kernel for the same work, full and causal:
    heads of 64 by 3 consumers 0.993 and 0.927, by 2 0.842 and 0.867; heads of 128 by 2 0.946 and 0.986, by 3
    0.923 and (another run) 0.898; ping-pong gains 1 to 3 %."""
    large, *others = _tiles(call, p)
    tile = others[0] if others and padded(p.E) == 128 else large
    return fitted(tile._replace(pingpong=1), call.config, **_TUNABLES)


def _pack_gqa(p: AttentionParams, tile: Tile) -> int:
    """Query heads of one key head that share a tile, so that the end of a sequence wastes less of it. A
    warp's 16 rows are of one head; heads that do not step are one in the descriptor: no box brings a second.
    Measured 2026-11-22, one and four, of the dense kernel for the same work, full and causal: a long tail
    0.948, 0.960 and 0.992, 1.014; 223 sequences 0.888, 0.917 and 0.879, 0.925; 8 x 4096 1.002, 1.000 and
    1.050, 1.048; heads of 64, a long tail 0.990, 1.031 and 0.930, 1.028."""
    fitting = (n for n in (4, 2) if p.qheads_per_kvhead % n == 0 and tile.m % (16 * n) == 0)
    return next(fitting, 1) if p.heads["q"].head else 1


def _heads_per_band(call: Call, p: AttentionParams, tile: Tile) -> int:
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
        streamed = 2 * tiles * costs.mean * tile.n * (p.D + p.E) / sharing / _BYTES_PER_US
    bands = max(_UNEVEN * busy, costs.most * tile.block + tile.rest)
    pairs = -(-tiles // 2 // multiprocessors) * 2 * cost
    return 0 if pairs < bands or streamed > busy / 4 else heads


def _require_forward(p: AttentionParams) -> None:
    p.require(_MAX_ROWS)
    if p.has("bias"):
        raise Unsupported("it adds no bias")
    if p.N == 0:
        raise Unsupported("no keys to copy")
    for name, size in (("q and k", p.D), ("v", p.E)):
        if size % 8:
            raise Unsupported(f"the head size of {name}, {size}, is no multiple of 8")
    if p.softcap is None and not p.scale > 0:
        raise Unsupported(f"a scale of {p.scale} is not positive")
    p.require_tma("q k v o")


@planner
def forward(call: Call, p: AttentionParams) -> Plan:
    """o and lse: persistent blocks. Of varlen after the table of tiles, which they claim; a tile has queries
    of `pack` heads."""
    _require_forward(p)
    tile = _varlen_tile(call, p) if p.is_varlen else _dense_tile(call, p)
    pack = _pack_gqa(p, tile) if p.is_varlen else 1
    d, e = padded(p.D), padded(p.E)
    extra = _VARLEN_BARRIERS if p.is_varlen else 0
    q_stages = 2 if tile.shared(d, e, 2) + extra <= call.device.shared_memory else 1
    shared = tile.shared(d, e, q_stages) + extra
    if shared > call.device.shared_memory:
        raise Unsupported(f"{tile.m} queries and {tile.n} keys a block take {shared} bytes of shared memory")
    queries = tile.m // pack
    tiles = tiles_of(p, queries) * p.B * (p.H // pack)
    if tiles > _MAX_TILES:
        raise Unsupported(f"{tiles} tiles exceed {_MAX_TILES}")
    band = 0 if p.is_varlen else _heads_per_band(call, p, tile)
    blocks = min(tiles if band or p.is_varlen else tiles // 2, call.device.multiprocessors)
    steps = [bool(getattr(p.heads[name], side)) for name in "qkv" for side in ("head", "batch")]
    defines = {
        "HEAD_D": d, "HEAD_E": e, "TILE_N": tile.n, "CONSUMERS": tile.consumers, "Q_STAGES": q_stages,
        "STAGES": tile.stages, "PINGPONG": tile.pingpong, "PACK_GQA": pack,
        **p.flags("LEFT RIGHT SOFTCAP SINKS"),
    }  # fmt: skip
    args = (
        ("map_q", p.tma_descriptor("q", queries, pack)),
        ("map_k", p.tma_descriptor("k", tile.n)),
        ("map_v", p.tma_descriptor("v", tile.n)),
        p.struct(f"o lse sinks {TABLES}"),
        *ints(heads_per_band=band, all_heads=p.B * p.H),
        *ints(tma_steps=sum(bit << i for i, bit in enumerate(steps))),
    )
    threads = 128 * (1 + tile.consumers)
    main = kernel(p, "fwd.cu", "attention_fwd_sm90", threads, defines, shared, pdl=p.is_varlen)
    return tiled_plan(call.device, p, (), [Tiled(Launch(main, (blocks, 1, 1), args), queries)])


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
    names = "q k v do o dq dk dv"
    p.require_tma(names)
    for name in names.split():
        heads, (_, *sizes) = p.heads[name], p.rows_of(name)
        if any(size > 1 and not step for size, step in zip(reversed(sizes), heads.strides, strict=True)):
            raise Unsupported(f"{name} has a stride of 0")


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


def descriptors(p: AttentionParams, rows: Mapping[str, int]) -> tuple[tuple[str, TensorMap], ...]:
    """Of tensors in tiles of so many rows."""
    return tuple(
        (f"map_{'dout' if name == 'do' else name}", p.tma_descriptor(name, n)) for name, n in rows.items()
    )


def optional(**spaces: bool) -> tuple[tuple[str, Argument], ...]:
    """Workspaces, null where they are not there."""
    null = Scalar("i64", 0)
    return tuple((name, workspace(name) if there else null) for name, there in spaces.items())


def small_kernel(p: AttentionParams, entry: str, defines: Mapping[str, Any], dq_accum: bool) -> NativeKernel:
    """One of bwd_pre_postprocess.cu."""
    defines = {**defines, "HEADS_INSIDE": 0, **p.flags("DLSE"), "DQ_ACCUM": dq_accum}
    return kernel(p, "bwd_pre_postprocess.cu", entry, 256, defines)


def preprocess(p: AttentionParams, defines: Mapping[str, Any], lines: int, claimed: str = "") -> Launch:
    """Statistics of the queries; with `claimed`, the counter of tiles, also cleared semaphores of dq. A
    head has `lines` blocks of queries."""
    main = small_kernel(p, "attention_bwd_preprocess_sm90", defines, bool(claimed))
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
        from portable.kernels.attention.sm90 import plan_hdim256

        return plan_hdim256.varlen(call, p) if p.is_varlen else plan_hdim256.dense(call, p)
    head = 64 if max(p.D, p.E) <= 64 else 128
    queries = QUERIES[head]
    shared = _backward_shared(head, queries) + (_BWD_VARLEN_BARRIERS if p.is_varlen else 0)
    if shared > call.device.shared_memory:
        raise Unsupported(f"it takes {shared} bytes of shared memory")
    # Measured 2026-11-21: heads of 64 gain 5 to 8 % by claiming tiles; with heads of 128 a claimed tile,
    # unlike a block's own, takes registers that are not there (15 % slower).
    persistent = head == 64 and not p.is_varlen
    lines, blocks = tiles_of(p, queries), tiles_of(p, KEYS, of_keys=True) * p.B * p.G
    defines = {"HEAD": head, "KEYS": KEYS, "QUERIES": queries, "HEADS_INSIDE": 0}
    of_main = {
        **defines, "STAGES": _BWD_STAGES, "PERSISTENT": persistent, **p.flags("SOFTCAP"),
        "HEADS_INSIDE": _heads_inside(p),
    }  # fmt: skip
    claimed = "counts" if p.is_varlen else "claimed"
    accum = optional(dq_accum=True, semaphore=True)
    main_args = (
        *descriptors(p, {"q": queries, "k": KEYS, "v": KEYS, "do": queries, "dk": 64, "dv": 64}),
        p.struct(f"stats dk dv {TABLES}"),
        *accum,
        ("claimed", workspace(claimed)),
        *ints(kv_heads_per_band=_kv_heads_per_band(call, p)),
        ("tiles_of_keys", Scalar("u32", blocks)),
        *ints(lines=lines),
    )
    main = kernel(p, "bwd.cu", "attention_bwd_sm90", 512, of_main, shared)
    finish = small_kernel(p, "attention_bwd_postprocess_sm90", defines, True)
    grid = min(blocks, call.device.multiprocessors) if persistent else blocks
    launches = [
        preprocess(p, defines, lines, claimed),
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
