"""Plans of attention's HIP kernels, on MFMA (gfx9) and WMMA (gfx11, gfx12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portable.kernels.attention import params
from portable.kernels.attention.packed import entries_of, packed, plan_tables, tables
from portable.kernels.attention.params import AttentionParams
from portable.kernels.attention.plan_arguments import (
    ELEMENTS,
    diagonals,
    optional,
    scales,
    statistics_launch,
    strides,
    table_arguments,
    whole,
)
from portable.kernels.attention.problem import Problem, problem_of
from portable.plan import (
    Argument,
    Call,
    Device,
    Launch,
    NativeKernel,
    Plan,
    Pointer,
    Rejected,
    Scalar,
    Workspace,
)

_HERE = Path(__file__).resolve().parent
_MAX_ROWS = 2**29  # row numbers, and their sums with a window's side, are 32 bits
_MAX_TOKENS = 2**28  # varlen and gradients: a window's side may be as long as all tokens twice
_MAX_GRID_THREADS = 2**32 - 1  # along one dimension

Arguments = tuple[tuple[str, Argument], ...]


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


def padded(size: int) -> int:
    """A head size as the kernels hold it: whole swizzle groups of four chunks of 16 bytes."""
    return -(-size // 32) * 32


def forward_tile(device: Device, d: int, e: int, bias: bool = False, tiny: bool = False) -> ForwardTile:
    """The tile for padded head sizes."""
    if tiny and max(d, e) <= 64:
        return TINY_FORWARD
    rows = FORWARD_TILES[family(device)]
    return next(with_bias if bias else plain for size, plain, with_bias in rows if max(d, e) <= size)


# --- attention and attention_varlen -----------------------------------------------------------------------


def forward(call: Call) -> Plan | Rejected:
    """o and lse of `attention`: a block per tile of queries of a head."""
    problem = problem_of(call)
    return problem if isinstance(problem, Rejected) else _forward(call, problem, _MAX_ROWS)


def varlen_forward(call: Call) -> Plan | Rejected:
    """o and lse of `attention_varlen`: the table of tiles, then a block per tile and head."""
    if call.axes["C"] > _MAX_TOKENS:
        return Rejected(f"more than {_MAX_TOKENS} offsets")
    problem = packed(call)
    return problem if isinstance(problem, Rejected) else _forward(call, problem, _MAX_TOKENS)


def _forward(call: Call, problem: Problem, max_rows: int) -> Plan | Rejected:
    if problem.dtype not in ELEMENTS:
        return Rejected(f"{problem.dtype} has no matrix instruction here; bfloat16 and float16 have")
    if max(problem.M, problem.N) > max_rows:
        return Rejected(f"a sequence exceeds {max_rows}")
    d, e = padded(problem.D), padded(problem.E)
    tile = forward_tile(call.device, d, e, problem.has("bias"), problem.M <= 16 and problem.N <= 32)
    threads = tile.waves * call.device.warp_size
    offsets = call.axes["C"] if call.has("cu_seqlens_q") else None
    tiles = -(-problem.M // tile.m) if offsets is None else entries_of(problem.M, offsets, tile.m)
    blocks = tiles * problem.B * problem.H
    if blocks * threads > _MAX_GRID_THREADS:
        return Rejected(f"{blocks} blocks of {threads} threads exceed a grid")
    defines = {
        "T": ELEMENTS[problem.dtype],
        "HEAD_D": d,
        "HEAD_E": e,
        "EVEN_D": d == problem.D,
        "EVEN_E": e == problem.E,
        "TILE_N": tile.n,
        "WAVES": tile.waves,
        "TILES_PER_WAVE": tile.tiles_per_wave,
        "WAVES_E": tile.waves_e,
        "Q_IN_LDS": tile.q_in_lds,
        "LEFT": problem.left is not None,
        "RIGHT": problem.right is not None,
        "SCALE_ONLY": problem.softcap is None and not problem.has("bias") and 0 < problem.scale < 2**100,
        "SOFTCAP": problem.softcap is not None,
        "BIAS": problem.has("bias"),
        "SINKS": call.has("sinks"),
        "VARLEN": offsets is not None,
    }
    diagonal = problem.N - problem.M if offsets is None else 0
    scale, cap = problem.score_factors
    args = (
        *((name, Pointer(name)) for name in ("q", "k", "v")),
        *((name, Pointer(name) if call.has(name) else Scalar("i64", 0)) for name in ("bias", "sinks")),
        *((name, Pointer(name)) for name in ("o", "lse")),
        *table_arguments(offsets),
        *whole({
            "m": problem.M, "n": problem.N, "d": problem.D, "e": problem.E, "heads": problem.H,
            "qheads_per_kvhead": problem.share, "low": diagonal - (problem.left or 0),
            "high": diagonal + (problem.right or 0), "tiles": tiles,
        }),
        ("scale", Scalar("f32", scale)),
        ("cap", Scalar("f32", cap)),
        *(each for name in ("q", "k", "v", "bias", "o", "lse") for each in strides(problem, name, name)),
    )  # fmt: skip
    main = Launch(_kernel(_HERE / "fwd.hip", "attention_forward", threads, defines), (blocks, 1, 1), args)
    if offsets is None:
        return Plan((main,))
    return Plan((_varlen_table(call, problem, tile.m, of_keys=False), main), tables(call, problem.M, tile.m))


def _varlen_table(call: Call, problem: Problem, tile: int, *, of_keys: bool) -> Launch:
    """The launch that makes the table for a block per tile."""
    last_first = not of_keys and problem.right is not None and problem.left is None  # they see the most keys
    return plan_tables(call, problem, tile, of_keys=of_keys, together=1, backwards=last_first)


def _kernel(file: Path, entry: str, threads: int, defines: dict[str, Any]) -> NativeKernel:
    made = ((name, int(value) if isinstance(value, bool) else value) for name, value in defines.items())
    return NativeKernel(file, entry, threads, tuple(made))


def _strides(problem: Problem, *tensors: str) -> Arguments:
    return tuple(each for name in tensors for each in strides(problem, name))


# --- the gradients ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Accumulators:
    """What a launch computes: dk (`d`), dv (`e`) or both where blocks own keys, else dq (`d`)."""

    owns_keys: bool
    d: bool
    e: bool

    @property
    def written(self) -> tuple[str, ...]:
        return ("dk", "dv") if self.owns_keys else ("dq",)


DK_DV, DQ = Accumulators(True, True, True), Accumulators(False, True, False)
DK, DV = Accumulators(True, True, False), Accumulators(True, False, True)


def backward(call: Call) -> Plan | Rejected:
    """dq, dk and dv of 16-bit heads: lse_log2 and delta, then dk and dv, then dq."""
    problem = problem_of(call)
    return problem if isinstance(problem, Rejected) else _backward(problem, call)


def varlen_backward(call: Call) -> Plan | Rejected:
    """The same of packed sequences, with a table of tiles before each launch that walks them."""
    problem = packed(call)
    return problem if isinstance(problem, Rejected) else _backward(problem, call, call.axes["C"])


def _backward(problem: Problem, call: Call, offsets: int | None = None) -> Plan | Rejected:
    if problem.softcap == 0:
        return Rejected("a softcap of 0 leaves no scores")
    if max(problem.M, problem.N, offsets or 0) > _MAX_TOKENS:
        return Rejected(f"more than {_MAX_TOKENS} queries, keys or offsets")
    chosen = backward_tiles(problem, call.device)
    if chosen is None:
        heads = f"{problem.D} and {problem.E}"
        return Rejected(f"{call.device.arch} has too few registers and LDS for heads of {heads}")
    launches, smallest, table = [_preprocess(problem)], _MAX_TOKENS, None
    for acc, tile in chosen:
        if offsets is not None and table != (acc.owns_keys, tile.rows):
            table = acc.owns_keys, tile.rows
            launches.append(_varlen_table(call, problem, tile.rows, of_keys=acc.owns_keys))
        launches.append(_gradient(problem, call.device, acc, tile, offsets))
        smallest = min(smallest, tile.rows)
    refused = _too_many_blocks(launches)
    if refused is not None:
        return refused
    spaces = _row_statistics(problem)
    if offsets is not None:  # with room for the table of either side
        spaces += tables(call, max(problem.M, problem.N), smallest)
    return Plan(tuple(launches), spaces)


def _too_many_blocks(launches: Sequence[Launch]) -> Rejected | None:
    for launch in launches:
        assert isinstance(launch.kernel, NativeKernel)
        if launch.grid[0] * launch.kernel.threads > _MAX_GRID_THREADS:
            return Rejected(f"{launch.grid[0]} blocks are more than one launch takes")
    return None


def _row_statistics(problem: Problem) -> tuple[Workspace, ...]:
    """What bwd_preprocess.hip writes for each query; a step of 32 reads past the last."""
    count = problem.B * problem.H * problem.M + 32
    return tuple(Workspace(name, (count,), "float32") for name in ("lse_log2", "delta"))


def backward_heads(problem: Problem, device: Device) -> tuple[int, int]:
    """The head sizes as bwd.hip holds them. With waves of 32 the largest are held as 256 and 256: those in
    between, where threads share the copies of rows unevenly, spill."""
    d, e = padded(problem.D), padded(problem.E)
    return (256, 256) if device.warp_size == 32 and d + e > 384 else (d, e)


def backward_tiles(problem: Problem, device: Device) -> tuple[tuple[Accumulators, BackwardTile], ...] | None:
    """The launches, over keys and then over queries. dk and dv share one where one block holds both."""
    for launches in ((DK_DV, DQ), (DK, DV, DQ)):
        found = [(acc, _backward_tile(problem, device, acc)) for acc in launches]
        chosen = tuple((acc, tile) for acc, tile in found if tile is not None)
        if len(chosen) == len(found):
            return chosen
    return None


def _backward_tile(problem: Problem, device: Device, acc: Accumulators) -> BackwardTile | None:
    """The first tile whose registers and LDS suffice; where one wave owns all rows, one wave.

    A lane holds 8 accumulators of each 16 rows by 32 columns (waves of 32: 16 columns), and of own rows in
    registers 16 bytes as often, or 32 where both halves of a wave hold an operand (gfx11). dv alone needs no
    dS: neither own nor streamed rows of E columns.
    """
    d, e = backward_heads(problem, device)
    wave64, twice = device.warp_size == 64, family(device) == "gfx11"
    owned, streamed = (problem.N, problem.M) if acc.owns_keys else (problem.M, problem.N)
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


def _preprocess(problem: Problem) -> Launch:
    defines = {"T": ELEMENTS[problem.dtype], "DLSE": problem.has("dlse")}
    kernel = _kernel(_HERE / "bwd_preprocess.hip", "attention_bwd_preprocess", PREPROCESS_THREADS, defines)
    return statistics_launch(problem, kernel, PREPROCESS_ROWS, ("lse_log2", "delta"))


def _gradient(
    problem: Problem, device: Device, acc: Accumulators, tile: BackwardTile, offsets: int | None
) -> Launch:
    """dk and dv by blocks of keys, or dq by blocks of queries."""
    d, e = backward_heads(problem, device)
    defines = {
        "T": ELEMENTS[problem.dtype],
        "OWNS_KEYS": acc.owns_keys,
        "HEAD_D": d,
        "HEAD_E": e,
        "EVEN_D": d == problem.D,
        "EVEN_E": e == problem.E,
        "ACC_D": acc.d,
        "ACC_E": acc.e,
        "STREAM_ROWS": tile.stream_rows,
        "WAVES": tile.waves,
        "TILES_PER_WAVE": tile.tiles_per_wave,
        "OWN_IN_REGISTERS": tile.own_in_registers,
        "BLOCKS_PER_CU": tile.blocks_per_cu,
        "PREFETCH": tile.prefetch,
        "SOFTCAP": problem.softcap is not None,
        "BIAS": problem.has("bias"),
        "VARLEN": offsets is not None,
    }
    heads, tokens = (problem.G, problem.N) if acc.owns_keys else (problem.H, problem.M)
    tiles = -(-tokens // tile.rows) if offsets is None else entries_of(tokens, offsets, tile.rows)
    blocks = tiles * problem.B * heads
    args = (
        *_gradient_inputs(problem, acc.written),
        *table_arguments(offsets),
        *_gradient_sizes(problem, 0 if offsets is not None else problem.N - problem.M, acc.owns_keys),
        ("factor", Scalar("f32", problem.scale)),
        *whole({"tiles": tiles, "blocks": blocks}),
        *_strides(problem, "do", "q", "k", "v", "bias", *acc.written),
    )
    entry = "attention_bwd_dkdv" if acc.owns_keys else "attention_bwd_dq"
    kernel = _kernel(_HERE / "bwd.hip", entry, tile.waves * device.warp_size, defines)
    return Launch(kernel, (blocks, 1, 1), args)


def _gradient_inputs(problem: Problem, written: tuple[str, ...]) -> Arguments:
    return (
        ("dout", Pointer("do")),
        *((name, Pointer(name)) for name in ("q", "k", "v")),
        ("bias", optional(problem, "bias")),
        *((name, Pointer(name, True)) for name in ("lse_log2", "delta")),
        *((name, Pointer(name)) for name in written),
    )


def _gradient_sizes(problem: Problem, diagonal: int, owns_keys: bool = False) -> Arguments:
    sizes = {
        **({"kv_heads": problem.G} if owns_keys else {"heads": problem.H}),
        "qheads_per_kvhead": problem.share,
        "queries": problem.M,
        "keys": problem.N,
        "columns_d": problem.D,
        "columns_e": problem.E,
        **diagonals(problem, diagonal),
    }
    return (*whole(sizes), *scales(problem))


def dbias(call: Call) -> Plan | Rejected:
    """dbias of 16-bit heads of any size: lse_log2 and delta, then each tile of scores alone."""
    problem = problem_of(call)
    if isinstance(problem, Rejected):
        return problem
    if problem.softcap == 0:
        return Rejected("a softcap of 0 leaves no scores")
    if max(problem.M, problem.N) > _MAX_TOKENS:
        return Rejected(f"more than {_MAX_TOKENS} queries or keys")
    launches = (_preprocess(problem), _dbias(problem, call.device))
    return _too_many_blocks(launches) or Plan(launches, _row_statistics(problem))


def _dbias(problem: Problem, device: Device) -> Launch:
    small = max(problem.M, problem.N) <= DBIAS_SMALL
    tile, tile_k = (DBIAS_SMALL, DBIAS_SMALL_K) if small else (DBIAS_TILE, DBIAS_TILE_K)
    wave_keys = 64 if device.warp_size == 64 else 32
    threads = tile // DBIAS_WAVE_QUERIES * (tile // wave_keys) * device.warp_size
    defines = {
        "T": ELEMENTS[problem.dtype],
        "TILE": tile,
        "TILE_K": tile_k,
        "EVEN_HEADS": problem.D % tile_k == problem.E % tile_k == 0,
        "SOFTCAP": problem.softcap is not None,
    }
    key_tiles = -(-problem.N // tile)
    tiles = -(-problem.M // tile) * key_tiles
    blocks = tiles * problem.B * problem.H
    args = (
        *_gradient_inputs(problem, ("dbias",)),
        *_gradient_sizes(problem, problem.N - problem.M),
        *whole({"key_tiles": key_tiles, "tiles": tiles, "blocks": blocks}),
        *_strides(problem, "do", "q", "k", "v", "bias", "dbias"),
    )
    return Launch(_kernel(_HERE / "dbias.hip", "attention_dbias", threads, defines), (blocks, 1, 1), args)


# --- decode: attention_paged, and attention with few queries ----------------------------------------------


def paged(call: Call) -> Plan | Rejected:
    """attention_paged."""
    p = params.paged(call)
    return p if isinstance(p, Rejected) else _decode(call, p)


def decode(call: Call) -> Plan | Rejected:
    """attention with few queries."""
    p = params.decode(call)
    return p if isinstance(p, Rejected) else _decode(call, p)


def _decode(call: Call, p: AttentionParams) -> Plan | Rejected:
    """The splits of all sequences' keys, and their combination. How many keys a split has follows from the
    sequence's length and the GPU, so that it gets the same bits whatever the rest of the batch is."""
    tiles = -(-p.M * p.qheads_per_kvhead // DECODE_COLUMNS)
    chunk = call.config["CHUNK"]
    max_splits = max(1, DECODE_BLOCKS_PER_CU * call.device.multiprocessors // (p.G * max(tiles, 1)))
    splits = max(1, min(max_splits, -(-p.N // chunk)))
    threads = DECODE_WAVES * call.device.warp_size
    blocks, rows = p.B * p.G * tiles * splits, p.B * p.M * p.H
    if max(blocks * threads, rows * COMBINE_THREADS) > _MAX_GRID_THREADS:
        return Rejected(f"{blocks} splits of {rows} queries are more than one launch takes")
    none = Scalar("i64", 0)
    lens = ("lens", Pointer("seq_lens") if p.page else none)
    partial = tuple(Pointer(name) for name in ("part", "part_m", "part_l"))
    sizes, left = {"capacity": p.N, "queries": p.M}, {"left": p.left or 0}
    defines = {
        "T": ELEMENTS[p.dtype], "D": p.D, "E": p.E, "PAGE": p.page, "CHUNK": chunk,
        "LEFT": p.left is not None, "RIGHT": p.right is not None, "CAP": p.softcap is not None,
    }  # fmt: skip
    args: list[tuple[str, Argument]] = []
    for name in "qkv":
        args.append((name, Pointer(p.heads[name].tensor)))
        args += _decode_strides(p, name, "batch" if name == "q" else "page")
    args.append(("table", Pointer("block_table") if p.page else none))
    args.append(("table_row", Scalar("i64", p.heads["block_table"].row) if p.page else none))
    args += [lens, *zip(("partial_o", "partial_max", "partial_sum"), partial, strict=True)]
    args += whole(sizes | {"splits": splits, "max_splits": max_splits} | left | {
        "pages": call[p.heads["k"].tensor].shape[0], "qheads_per_kvhead": p.qheads_per_kvhead, "tiles": tiles,
        "kv_heads": p.G, "right": p.right or 0,
    })  # fmt: skip
    args += [("scale", Scalar("f32", p.score_scale)), ("cap", Scalar("f32", p.softcap_log2))]
    split = _kernel(_HERE / "decode.hip", "attention_decode", threads, defines)
    first = Launch(split, (blocks, 1, 1), tuple(args))
    defines = {
        "T": ELEMENTS[p.dtype], "E": p.E, "CHUNK": chunk, "LEFT": p.left is not None,
        "SINKS": call.has("sinks"),
    }  # fmt: skip
    args = [("o", Pointer("o")), *_decode_strides(p, "o", "batch"), ("lse", Pointer("lse"))]
    args += zip(("parts", "tops", "totals"), partial, strict=True)
    args += [("sinks", Pointer("sinks") if call.has("sinks") else none), lens]
    args += whole(sizes | {"slots": splits, "most": max_splits} | left | {"heads": p.H})
    source = _HERE.parent / "device/decode_combine.cu"
    combine = _kernel(source, "attention_merge", COMBINE_THREADS, defines)
    last = Launch(combine, (rows, -(-p.E // COMBINE_COLUMNS), 1), tuple(args))
    return Plan((first, last), params.partial_workspaces(p, splits))


def _decode_strides(p: AttentionParams, name: str, outer: str) -> Arguments:
    names = (f"{name}_{outer}", f"{name}_head", f"{name}_row")
    return tuple(zip(names, (Scalar("i64", step) for step in p.heads[name].strides), strict=True))
