"""Plans of the CUDA C++ kernels on wgmma and TMA, Hopper: attention, its gradients, and both of varlen."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from portable.kernels.attention import params
from portable.kernels.attention.params import DEFINES, ELEMENTS, AttentionParams, ints
from portable.plan import Call, Launch, NativeKernel, Plan, Rejected, TensorMap

_HERE = Path(__file__).resolve().parent

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


def _configured(tile: Tile, call: Call) -> Tile:
    named = {"n": "TILE_N", "consumers": "CONSUMERS", "pingpong": "PINGPONG"}
    found = {field: call.config.get(name) for field, name in named.items()}
    return tile._replace(**{field: value for field, value in found.items() if value is not None})


def _dense_tile(call: Call, p: AttentionParams) -> Tile:
    """The tile that takes the least time on a full GPU, so that a row's result does not depend on how many
    batches there are."""

    def time(tile: Tile) -> float:
        costs = _costs(p, tile)
        return costs.tiles * (costs.mean * tile.block + tile.rest)

    return _configured(min(_tiles(call, p), key=time), call)


def _varlen_tile(call: Call, p: AttentionParams) -> Tile:
    """One tile for all lengths, which are not known here: a sequence's bits do not depend on its neighbours'.
    Measured 2026-11-22 on a long tail of 74 lengths, of the dense kernel for the same work, full and causal:
    heads of 64 by 3 consumers 0.993 and 0.927, by 2 0.842 and 0.867; heads of 128 by 2 0.946 and 0.986, by 3
    0.923 and (another run) 0.898; ping-pong gains 1 to 3 %."""
    large, *others = _tiles(call, p)
    tile = others[0] if others and padded(p.E) == 128 else large
    return _configured(tile._replace(pingpong=1), call)


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


def _forward_unsupported(p: AttentionParams) -> Rejected | None:
    if (reason := p.unsupported(_MAX_ROWS)) is not None:
        return reason
    if p.has("bias"):
        return Rejected("it adds no bias")
    if p.N == 0:
        return Rejected("no keys to copy")
    for name, size in (("q and k", p.D), ("v", p.E)):
        if size % 8:
            return Rejected(f"the head size of {name}, {size}, is no multiple of 8")
    if p.softcap is None and not p.scale > 0:
        return Rejected(f"a scale of {p.scale} is not positive")
    return next((reason for name in "qkvo" if (reason := p.tma_unsupported(name)) is not None), None)


def _descriptor(p: AttentionParams, name: str, columns: int, rows: int, heads_of_box: int = 1) -> TensorMap:
    """Boxes of 64 columns of `rows` rows. Dimensions that do not step have size 1."""
    heads, (own, *sizes) = p.heads[name], p.rows_of(name)
    steps = (heads.row, heads.head, heads.batch)
    walked = tuple(size if step else 1 for size, step in zip(sizes, steps, strict=True))
    strides = tuple(2 * (step if size > 1 else columns) for size, step in zip(walked, steps, strict=True))
    return TensorMap(name, p.dtype, (own, *walked), strides, (64, rows, heads_of_box, 1))


def _forward_launch(call: Call, p: AttentionParams, tile: Tile, pack: int = 1) -> Launch | Rejected:
    """The kernel for a tile of queries of `pack` heads."""
    d, e = padded(p.D), padded(p.E)
    extra = _VARLEN_BARRIERS if p.is_varlen else 0
    q_stages = 2 if tile.shared(d, e, 2) + extra <= call.device.shared_memory else 1
    shared = tile.shared(d, e, q_stages) + extra
    if shared > call.device.shared_memory:
        return Rejected(f"{tile.m} queries and {tile.n} keys a block take {shared} bytes of shared memory")
    queries = tile.m // pack
    tiles = params.max_tiles(p.M, p.offsets, queries) if p.is_varlen else -(-p.M // queries) * p.B
    tiles *= p.H // pack
    if tiles > _MAX_TILES:
        return Rejected(f"{tiles} tiles exceed {_MAX_TILES}")
    band = 0 if p.is_varlen else _heads_per_band(call, p, tile)
    blocks = min(tiles if band or p.is_varlen else tiles // 2, call.device.multiprocessors) if p.M else 0
    steps = [bool(getattr(p.heads[name], side)) for name in "qkv" for side in ("head", "batch")]
    defines = {
        "HEAD_D": d, "HEAD_E": e, "TILE_N": tile.n, "CONSUMERS": tile.consumers, "Q_STAGES": q_stages,
        "STAGES": tile.stages, "PINGPONG": tile.pingpong, "LEFT": p.left is not None,
        "RIGHT": p.right is not None, "SOFTCAP": p.softcap is not None, "SINKS": call.has("sinks"),
        "VARLEN": p.is_varlen, "PACK_GQA": pack,
    }  # fmt: skip
    kernel = NativeKernel(
        _HERE / "fwd.cu",
        "attention_fwd_sm90",
        128 * (1 + tile.consumers),
        (("ELEMENT", ELEMENTS[p.dtype]), *((name, int(value)) for name, value in defines.items()), *DEFINES),
        shared,
        pdl=p.is_varlen,
    )
    pointers = ["o", "lse"] + ["sinks"] * call.has("sinks")
    pointers += ["bounds", "tile_list", "tile_counts"] * p.is_varlen
    args = (
        ("map_q", _descriptor(p, "q", d, queries, pack)),
        ("map_k", _descriptor(p, "k", d, tile.n)),
        ("map_v", _descriptor(p, "v", e, tile.n)),
        p.struct(*pointers),
        *ints(
            heads_per_band=band, all_heads=p.B * p.H, tma_steps=sum(bit << i for i, bit in enumerate(steps))
        ),
    )
    return Launch(kernel, (blocks, 1, 1), args)


def plan_forward(call: Call) -> Plan | Rejected:
    """o and lse: persistent blocks."""
    p = params.dense(call)
    if isinstance(p, Rejected) or (reason := _forward_unsupported(p)) is not None:
        return p if isinstance(p, Rejected) else reason
    launch = _forward_launch(call, p, _dense_tile(call, p))
    return launch if isinstance(launch, Rejected) else Plan((launch,))


def plan_varlen(call: Call) -> Plan | Rejected:
    """o and lse of varlen: the table of tiles, then blocks that claim them."""
    p = params.varlen(call, params.MAX_TOKENS)
    if isinstance(p, Rejected) or (reason := _forward_unsupported(p)) is not None:
        return p if isinstance(p, Rejected) else reason
    tile = _varlen_tile(call, p)
    pack = _pack_gqa(p, tile)
    launch = _forward_launch(call, p, tile, pack)
    if isinstance(launch, Rejected):
        return launch
    backwards = p.right is not None and p.left is None  # a sequence's last queries see most keys
    table = params.tile_table(p, tile.m // pack, of_keys=False, backwards=backwards)
    return Plan((table, launch), params.tile_workspaces(p, p.M, tile.m // pack))
