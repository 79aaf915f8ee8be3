"""Plans of the CUDA C++ kernels on mma.sync, sm_80 and later: attention, its gradients, varlen and decode."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from portable.kernels.attention import params
from portable.kernels.attention.params import DEFINES, ELEMENTS, AttentionParams, ints
from portable.kernels.attention.triton.decode_plan import combine_launch
from portable.layout import ceil_div
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, TensorMap, Workspace

_HERE = Path(__file__).resolve().parent
_MAX_ROWS = 2**30 - 1024  # of the forward: a row number and a window's side are added in 32 bits
_RESERVED = 1024  # bytes of shared memory that each block of a multiprocessor takes besides its own

Defines = tuple[tuple[str, int | str], ...]


def padded(size: int) -> int:
    """A head size as the kernels hold it: whole matrix instructions."""
    return -(-size // 16) * 16


def _kernel(
    source: str, entry: str, warps: int, p: AttentionParams, defines: dict[str, Any], shared: int
) -> NativeKernel:
    own = {"ELEMENT": ELEMENTS[p.dtype], **{name: int(value) for name, value in defines.items()}}
    return NativeKernel(_HERE / source, entry, 32 * warps, (*own.items(), *DEFINES), shared)


def _configured(tile: Any, config: Any, **named: str) -> Any:
    """The tile with the config's values over it."""
    return tile._replace(**{field: config[name] for field, name in named.items() if config.get(name)})


def _few_blocks(*launches: Launch) -> Rejected | None:
    for launch in launches:
        if launch.grid[0] > params.MAX_BLOCKS:
            return Rejected(f"{launch.grid[0]} blocks are more than one launch takes ({params.MAX_BLOCKS})")
    return None


# --- attention and attention_varlen -------------------------------------------------------------------------

_FEW_QUERIES = 64  # which one m-tile of each warp takes


class Tile(NamedTuple):
    """Keys of a step, warps of a block, and m-tiles of 16 queries of a warp."""

    n: int
    warps: int
    m_tiles: int

    @property
    def m(self) -> int:
        return self.warps * self.m_tiles * 16

    def shared(self, d: int, e: int) -> int:
        """Queries, keys and values, each row 16 bytes longer; o takes their place."""
        inputs = (self.m + self.n) * (2 * d + 16) + self.n * (2 * e + 16)
        return max(inputs, self.m * (2 * e + 16))


# By the larger padded head size up to: what registers hold without a spill (64 keys a step of heads of 128 do
# not), with shared memory for two blocks a multiprocessor. A second m-tile halves what a product reads of
# shared memory; it changes no row's bits. Measured 2026-11-22 on the H200, heads of 256, 32, 48 and 64 keys a
# step: 256, 278 and 297 TFLOP/s full, 243, 261 and 287 causal.
_TILES = {64: (Tile(64, 4, 2),), 128: (Tile(48, 4, 2),), 256: (Tile(64, 4, 1), Tile(32, 4, 1))}


def tile_for(p: AttentionParams, queries: int, call: Call) -> Tile:
    """The first tile of the table of which two blocks fit a multiprocessor, else the last."""
    d, e = padded(p.D), padded(p.E)
    tiles = next(tiles for most, tiles in _TILES.items() if max(d, e) <= most)
    fitting = (t for t in tiles if 2 * (t.shared(d, e) + _RESERVED) <= call.device.shared_memory + _RESERVED)
    tile = next(fitting, tiles[-1])
    if queries <= _FEW_QUERIES:
        tile = tile._replace(m_tiles=1)
    return _configured(tile, call.config, n="TILE_N", warps="WARPS", m_tiles="M_TILES")


def plan_forward(call: Call) -> Plan | Rejected:
    """o and lse of `attention`: a block per tile of queries of a head."""
    p = params.dense(call)
    return p if isinstance(p, Rejected) else _forward(call, p, p.M)


def plan_varlen(call: Call) -> Plan | Rejected:
    """o and lse of `attention_varlen`: the table of tiles, then a block for each that there may be."""
    p = params.varlen(call, params.MAX_TOKENS)
    return p if isinstance(p, Rejected) else _forward(call, p, p.M // max(p.offsets - 1, 1))


def _forward(call: Call, p: AttentionParams, queries: int) -> Plan | Rejected:
    if (reason := p.unsupported(_MAX_ROWS)) is not None:
        return reason
    if p.has("bias"):
        return Rejected("it adds no bias")
    d, e, tile = padded(p.D), padded(p.E), tile_for(p, queries, call)
    if tile.shared(d, e) > call.device.shared_memory:
        return Rejected(f"{tile.m} queries and {tile.n} keys a block take {tile.shared(d, e)} bytes")
    defines = {
        "HEAD_D": d, "HEAD_E": e, "TILE_N": tile.n, "WARPS": tile.warps, "M_TILES": tile.m_tiles,
        "COPY_BYTES": p.copy_bytes("q", "k", "v"), "STORE_BYTES": 2 if p.E % 8 else p.copy_bytes("o"),
        "LEFT": p.left is not None, "RIGHT": p.right is not None,
        "SCALED": p.softcap is None and not p.scale > 0, "SOFTCAP": p.softcap is not None,
        "SINKS": call.has("sinks"), "VARLEN": p.is_varlen,
    }  # fmt: skip
    kernel = _kernel("fwd.cu", "attention_fwd_sm80", tile.warps, p, defines, tile.shared(d, e))
    pointers = ["q", "k", "v", "o", "lse"] + ["sinks"] * call.has("sinks")
    tiles = 0 if p.is_varlen else -(-p.M // tile.m)
    blocks = tiles * p.B * p.H
    if p.is_varlen:
        pointers += ["bounds", "tile_list", "tile_counts"]
        blocks = params.max_tiles(p.M, p.offsets, tile.m) * p.H if p.M else 0
    launch = Launch(kernel, (blocks, 1, 1), (p.struct(*pointers), *ints(tiles=tiles)))
    if (reason := _few_blocks(launch)) is not None:
        return reason
    if not p.is_varlen:
        return Plan((launch,))
    backwards = p.right is not None and p.left is None  # a sequence's last queries see most keys
    table = params.tile_table(p, tile.m, of_keys=False, backwards=backwards)
    return Plan((table, launch), params.tile_workspaces(p, p.M, tile.m))


# --- attention_backward and attention_varlen_backward -------------------------------------------------------

_PREPROCESS_ROWS = 16  # queries of a block of bwd_preprocess.cu
_FEW_ROWS = 64  # which one m-tile of each warp takes
_ACC_COLUMNS = 256  # of accumulators that a warp's registers hold for 16 rows
_REGISTERS = 200  # as `registers` counts: with more, kernels spill (sm_80, sm_90a, sm_100; 2026-11-22)


class Part(NamedTuple):
    """What a launch makes: of `keys`, dk (`of_d`), dv (`of_e`) or both; else dq."""

    keys: bool
    of_d: bool
    of_e: bool


class BackwardTile(NamedTuple):
    """Rows that pass by at a time, warps of a block, and m-tiles of 16 own rows of a warp."""

    step: int
    warps: int
    m_tiles: int

    @property
    def rows(self) -> int:
        return self.warps * self.m_tiles * 16

    def shared(self, part: Part, d: int, e: int) -> int:
        """Own rows and two steps of the others, each row 16 bytes longer; results take their place."""
        own_d, own_e = 2 * d + 16, 2 * e + 16
        stage = self.step * (own_d + own_e + 8 * part.keys)
        own = self.rows * (own_d + own_e * part.of_d + 8 * (not part.keys))
        return max(own + 2 * stage, self.rows * (own_d * part.of_d + own_e * part.of_e))


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


def registers(p: AttentionParams, part: Part, tile: BackwardTile) -> int:
    """Of a thread, about, what accumulators and scores take, and what more a call keeps over a step."""
    columns = padded(p.D) * part.of_d + padded(p.E) * part.of_e
    scores = tile.step * (1 + part.of_d + (part.of_d and p.softcap is not None)) // 2
    more = 8 * part.keys + 8 * p.is_varlen + 16 * p.has("bias")
    return tile.m_tiles * (columns // 2 + scores) + more


def parts_of(p: AttentionParams) -> tuple[Part, ...]:
    """dk and dv are made apart, each with scores of its own, where registers do not hold both."""
    apart = padded(p.D) + padded(p.E) > _ACC_COLUMNS
    of_keys = (Part(True, True, False), Part(True, False, True)) if apart else (Part(True, True, True),)
    return (*of_keys, Part(False, True, False))


def backward_tile_for(p: AttentionParams, part: Part, call: Call) -> BackwardTile:
    """The first tile that registers hold without a spill and shared memory as often as it should."""
    d, e, few = padded(p.D), padded(p.E), (p.N if part.keys else p.M) <= _FEW_ROWS
    tile = _BACKWARD_TILES[-1][0]
    for tile, resident in _BACKWARD_TILES:
        taken = resident * tile.shared(part, d, e) + (resident - 1) * _RESERVED
        wide = registers(p, part, tile) > _REGISTERS or (few and tile.m_tiles > 1)
        if taken <= call.device.shared_memory and not wide:
            break
    before = "" if part.keys else "DQ_"
    return _configured(
        tile, call.config, step=f"{before}STEP", warps=f"{before}WARPS", m_tiles=f"{before}M_TILES"
    )


def plan_backward(call: Call) -> Plan | Rejected:
    """dq, dk and dv: each query's statistics, then dk and dv, then dq."""
    p = params.dense(call)
    return p if isinstance(p, Rejected) else _backward(call, p)


def plan_varlen_backward(call: Call) -> Plan | Rejected:
    """The same of varlen, with a table of tiles before each walk over them."""
    p = params.varlen(call)
    return p if isinstance(p, Rejected) else _backward(call, p)


def _backward(call: Call, p: AttentionParams) -> Plan | Rejected:
    if (reason := p.unsupported(params.MAX_TOKENS)) is not None:
        return reason
    launches, least = [_preprocess(p)], params.MAX_TOKENS
    for part in parts_of(p):
        tile = backward_tile_for(p, part, call)
        if (shared := tile.shared(part, padded(p.D), padded(p.E))) > call.device.shared_memory:
            return Rejected(f"{tile.rows} rows a block, {tile.step} a step, take {shared} bytes")
        if p.is_varlen:
            backwards = not part.keys and p.right is not None and p.left is None
            launches.append(params.tile_table(p, tile.rows, of_keys=part.keys, backwards=backwards))
        launches.append(_backward_part(p, part, tile))
        least = min(least, tile.rows)
    if (reason := _few_blocks(*launches)) is not None:
        return reason
    spaces = (Workspace("stats", (p.B * p.H, p.M, 2), "float32"),)
    if p.is_varlen:  # in which there is room for any table
        spaces += params.tile_workspaces(p, max(p.M, p.N), least)
    return Plan(tuple(launches), spaces)


def _preprocess(p: AttentionParams) -> Launch:
    defines = {"COPY_BYTES": p.copy_bytes("do", "o"), "DLSE": p.has("dlse")}
    kernel = _kernel("bwd_preprocess.cu", "attention_bwd_preprocess_sm80", 8, p, defines, 0)
    tiles = -(-p.M // _PREPROCESS_ROWS)
    args = p.struct("dout", "o", "lse", "dlse", "stats"), *ints(tiles=tiles)
    return Launch(kernel, (tiles * p.B * p.H, 1, 1), args)


def _backward_part(p: AttentionParams, part: Part, tile: BackwardTile) -> Launch:
    d, e = padded(p.D), padded(p.E)
    results = [("dk", p.D)] * part.of_d + [("dv", p.E)] * part.of_e if part.keys else [("dq", p.D)]
    written = [name for name, _ in results]
    by_chunks = all(columns % 8 == 0 for _, columns in results)
    defines = {
        "KEYS": part.keys, "HEAD_D": d, "HEAD_E": e, "SUM_D": part.of_d, "SUM_E": part.of_e,
        "STEP": tile.step, "WARPS": tile.warps, "M_TILES": tile.m_tiles,
        "COPY_BYTES": p.copy_bytes("k", "v", "q", "do"),
        "STORE_BYTES": p.copy_bytes(*written) if by_chunks else 2, "SOFTCAP": p.softcap is not None,
        "BIAS": p.has("bias"), "VARLEN": p.is_varlen,
    }  # fmt: skip
    kernel = _kernel("bwd.cu", "attention_bwd_sm80", tile.warps, p, defines, tile.shared(part, d, e))
    tokens, heads = (p.N, p.G) if part.keys else (p.M, p.H)
    tiles = params.max_tiles(tokens, p.offsets, tile.rows) if p.is_varlen else -(-tokens // tile.rows)
    pointers = ["q", "k", "v", "dout", "bias", "stats", *written]
    pointers += ["bounds", "tile_list", "tile_counts"] * p.is_varlen
    args = p.struct(*pointers), *ints(lines=p.B * heads, tiles=tiles)
    return Launch(kernel, (tiles * p.B * heads, 1, 1), args)


# --- attention_dbias ----------------------------------------------------------------------------------------

_MAX_STEPS = 16
_BLOCKS = {1: 8, 2: 2}  # of a multiprocessor, by m-tiles, that more steps are not to take from it


class DbiasTile(Tile):
    """As Tile, with do beside the queries."""

    def shared(self, d: int, e: int) -> int:
        """Queries and do, keys and values, each row 16 bytes longer."""
        return (self.m + self.n) * (2 * d + 16 + 2 * e + 16)


# Measured 2026-11-22 on the H200, 16 heads of 128, two m-tiles and one, us: 4096 full 566 and 664, causal 371
# and 398, 1024 full 44 and 64; heads of 64, 4096 causal 362 and 318. Eight warps of one m-tile: 796 and 491.
_DBIAS_TILES = (DbiasTile(64, 4, 2), DbiasTile(64, 4, 1), DbiasTile(32, 4, 1))


def dbias_tile_for(p: AttentionParams, call: Call, bias_bytes: int) -> DbiasTile:
    """The largest of which a multiprocessor holds two blocks, else of which it holds one. Two m-tiles leave
    no registers to read the bias by the element, and spill on sm_100."""
    device, d, e = call.device, padded(p.D), padded(p.E)
    two = device.arch.startswith("sm_90") and max(d, e) > 64 and bias_bytes == 16
    tiles = _DBIAS_TILES if two else _DBIAS_TILES[1:]
    rooms = ((device.shared_memory - _RESERVED) // 2, device.shared_memory)
    fitting = (tile for room in rooms for tile in tiles if tile.shared(d, e) <= room)
    tile = next(fitting, tiles[-1])
    return _configured(tile, call.config, n="TILE_N", warps="WARPS", m_tiles="M_TILES")


def _steps(call: Call, tile: DbiasTile, tiles: int, steps: int) -> int:
    """Blocks of keys that a block of queries walks: many, so that queries are read once, but not so many that
    multiprocessors stand idle."""
    if call.config.get("STEPS"):
        return call.config["STEPS"]
    enough = -(-tiles * steps // (_BLOCKS.get(tile.m_tiles, 2) * call.device.multiprocessors))
    return min(_MAX_STEPS, 1 << max(enough - 1, 0).bit_length())


def plan_dbias(call: Call) -> Plan | Rejected:
    """dbias: a block per tile of queries and chunk of keys of a head."""
    p = params.dense(call)
    if isinstance(p, Rejected) or (reason := p.unsupported(_MAX_ROWS)) is not None:
        return p if isinstance(p, Rejected) else reason
    bias_bytes = 2 if p.N % 8 else p.copy_bytes("bias", "dbias")
    d, e, tile = padded(p.D), padded(p.E), dbias_tile_for(p, call, bias_bytes)
    if tile.shared(d, e) > call.device.shared_memory:
        return Rejected(f"{tile.m} queries and {tile.n} keys a block take {tile.shared(d, e)} bytes")
    tiles = -(-p.M // tile.m)
    chunk = tile.n * _steps(call, tile, tiles * p.B * p.H, -(-p.N // tile.n))
    chunks = -(-p.N // chunk)
    defines = {
        "HEAD_D": d, "HEAD_E": e, "TILE_N": tile.n, "WARPS": tile.warps, "M_TILES": tile.m_tiles,
        "COPY_BYTES": 2 if p.E % 8 else p.copy_bytes("q", "k", "v", "do", "o"), "BIAS_BYTES": bias_bytes,
        "LEFT": p.left is not None, "RIGHT": p.right is not None, "SOFTCAP": p.softcap is not None,
        "DLSE": p.has("dlse"),
    }  # fmt: skip
    kernel = _kernel("dbias.cu", "attention_dbias_sm80", tile.warps, p, defines, tile.shared(d, e))
    struct = p.struct("dout", "q", "k", "v", "o", "lse", "dlse", "bias", "dbias")
    args = struct, *ints(tiles=tiles, chunks=chunks, chunk=chunk)
    launch = Launch(kernel, (tiles * chunks * p.B * p.H, 1, 1), args)
    return _few_blocks(launch) or Plan((launch,))


# --- decode: attention_paged, and attention with few queries ------------------------------------------------

DECODE_TILE_ROWS = 16
DECODE_KEYS = 16  # of a stage
_BESIDE = 3072  # most bytes beside the pipelines: 1024 that align them, row_max, row_sum, barriers


def paged(call: Call) -> Plan | Rejected:
    """attention_paged by cp.async, 16 bytes a lane."""
    p = params.paged(call)
    if isinstance(p, Rejected):
        return p
    cache = (p.heads["k"], p.heads["v"])
    aligned = all(h.alignment >= 16 for h in (p.heads["q"], *cache))
    if p.D % 8 or p.E % 8 or not aligned or any(s % 8 for h in cache for s in h.strides):
        return Rejected("rows of keys or values are not made of aligned pieces of 16 bytes")
    stage = DECODE_KEYS * (2 * (padded(p.D) + padded(p.E)) + 32)
    return _decode(call, p, "decode.cu", "attention_decode_sm80", stage, ())


def paged_tma(call: Call) -> Plan | Rejected:
    """attention_paged by TMA."""
    p = params.paged(call)
    return p if isinstance(p, Rejected) else _decode_tma(call, p)


def decode_tma(call: Call) -> Plan | Rejected:
    """attention with few queries by TMA."""
    p = params.decode(call)
    return p if isinstance(p, Rejected) else _decode_tma(call, p)


def _decode_tma(call: Call, p: AttentionParams) -> Plan | Rejected:
    maps: list[tuple[str, Argument]] = []
    for role in ("k", "v"):
        made = tma_descriptor(call, p, role)
        if isinstance(made, Rejected):
            return made
        maps.append((f"map_{role}", made))
    stage = DECODE_KEYS * 128 * (ceil_div(p.D, 64) + ceil_div(p.E, 64))
    return _decode(call, p, "decode_tma.cu", "attention_decode_tma", stage, tuple(maps))


def tma_descriptor(call: Call, p: AttentionParams, role: str) -> TensorMap | Rejected:
    """Boxes of 64 columns of a stage's keys of one head in one page, or in one sequence.

    With a promotion of 256 bytes the copies of both halves of a row ask for all of it: 3 % slower over 64
    sequences, 5 % over one (H200, 2026-11-22).
    """
    heads = p.heads[role]
    info, steps = call[heads.tensor], (heads.head, heads.row, heads.batch)
    columns, sizes = info.shape[-1], (p.G, p.page or p.N, info.shape[0] if p.page else p.B)
    walked = [step for size, step in zip(sizes, steps, strict=True) if size > 1]
    if 0 in sizes:
        return Rejected("no keys to copy")
    if columns % 8 or heads.alignment < 16 or any(step % 8 for step in walked):
        return Rejected(f"{heads.tensor} has rows that do not start at multiples of 16 bytes")
    if any(not columns <= step < 2**39 for step in walked):
        return Rejected(f"{heads.tensor} has strides that a tensor map does not take")
    strides = tuple(2 * (s if size > 1 else columns) for size, s in zip(sizes, steps, strict=True))
    box = (64, 1, DECODE_KEYS, 1)
    return TensorMap(heads.tensor, info.dtype, (columns, *sizes), strides, box, promotion=128)


def _decode(
    call: Call, p: AttentionParams, source: str, entry: str, stage: int, maps: params.Arguments
) -> Plan | Rejected:
    """A plan whose blocks hold `stage` bytes a warp and stage. Fewer stages, then fewer warps, where they
    do not fit; the keys are split where blocks of whole sequences leave multiprocessors idle."""
    q = p.heads["q"]
    if any(s % 2 for s in q.strides) or q.alignment < 4:
        return Rejected("rows of queries are not aligned to 4 bytes")
    if p.page % 16:
        return Rejected(f"pages of {p.page} keys are no multiple of 16")
    config, space = call.config, call.device.shared_memory
    warps, chunk = config["WARPS"], config["CHUNK"]
    tiles = ceil_div(p.M * p.qheads_per_kvhead, DECODE_TILE_ROWS)
    while warps > 1 and space - _BESIDE < 2 * warps * stage:
        warps //= 2
    stages = min(config["STAGES"], (space - _BESIDE) // (warps * stage))
    if stages < 2:
        return Rejected("two tiles do not fit shared memory")
    shared = warps * stages * stage
    resident = max(1, (space + _RESERVED) // (shared + _BESIDE + _RESERVED))
    most = max(1, resident * call.device.multiprocessors // max(1, p.G * tiles))
    splits = max(1, min(most, ceil_div(p.N, chunk)))
    # A paged cache's splits follow from its table's width, which is not to change a sequence's bits.
    direct = splits == 1 and not p.page and not call.has("sinks")
    defines = {
        "D": p.D, "E": p.E, "PAGE": p.page, "WARPS": warps, "STAGES": stages, "CHUNK": chunk,
        "LEFT": p.left is not None, "RIGHT": p.right is not None, "SOFTCAP": p.softcap is not None,
        "DIRECT": direct,
    }  # fmt: skip
    kernel = _kernel(source, entry, warps, p, defines, shared + 1024)
    results = {"o": Pointer("o"), "lse": Pointer("lse")} if direct else {}
    pointers = ["q", *(() if maps else ("k", "v")), *(("block_table", "seq_lens") if p.page else ())]
    pointers += [] if direct else ["o_partial", "max_partial", "sum_partial"]
    struct = p.struct(*pointers, **results)
    cached = call[p.heads["k"].tensor].shape[0]
    args = *maps, struct, *ints(pages=cached, tiles=tiles, splits=splits, max_splits=most)
    first = Launch(kernel, (p.B * p.G * tiles * splits, 1, 1), args)
    if (reason := _few_blocks(first)) is not None or direct:
        return reason or Plan((first,))
    combine = combine_launch(call, p, splits, most, chunk)
    return Plan((first, combine), params.partial_workspaces(p, splits))
