"""Plans of attention's Triton kernels for every vendor: attention, its gradients, varlen and decode.

Where the GPU has TMA that can walk the tensors (`operands.py`), tiles are loaded by descriptor; elsewhere
through pointers. Compiled code depends on dtype, head sizes, alignment, which of bias, sinks, softcap and
window there are, and the config."""

from __future__ import annotations

from typing import Any, NamedTuple

from portable.dtypes import itemsize
from portable.kernels._lib.triton.minifloat import converts, format_of
from portable.kernels._lib.triton.pdl import supports_pdl
from portable.kernels._lib.triton.rows import UNFUSED
from portable.kernels.attention.params import (
    DECODE_ROWS,
    AttentionParams,
    Heads,
    Unsupported,
    require_decode,
)
from portable.kernels.attention.planning import (
    Decode,
    decode_of,
    decode_plan,
    finished,
    max_tiles,
    planner,
)
from portable.kernels.attention.triton.bwd import (
    attention_bwd_dkdv,
    attention_bwd_dq,
    attention_bwd_dq_from_ds,
    attention_bwd_preprocess,
    attention_dbias,
)
from portable.kernels.attention.triton.decode import (
    COMBINE_COLUMNS,
    COMBINE_SPLITS,
    COMBINE_WARPS,
    decode_combine,
    decode_split,
)
from portable.kernels.attention.triton.fwd import attention_forward
from portable.kernels.attention.triton.operands import (
    ROW_PADDING,
    SWIZZLE_ELEMENTS,
    Config,
    Operands,
    Values,
    i32,
    launch_of,
)
from portable.kernels.attention.triton.tiles import ENTRY_WORDS, FAR, varlen_bounds, varlen_tiles
from portable.layout import ceil_div, next_power_of_2
from portable.plan import Call, Device, Launch, Plan, Pointer, Scalar, TritonDescriptor, Workspace

ROW_ELEMENTS = 4096  # of do and of o, of a program of `attention_bwd_preprocess`
DS_BYTES = 1 << 30
"""The workspace of dS, at most; the KV heads are computed in chunks that fit it."""
OPERAND_REGISTERS = 224  # of a thread, for dq, a block's two products and the operands that stay
BARRIER_BYTES = 1024
TABLE_SCAN = 1024  # sequences that a program of the varlen tables reads at a time
FEW_WARPS = {"num_warps": 4, "num_stages": 1}


@planner
def forward(call: Call, p: AttentionParams) -> Plan:
    """o and lse: one launch, of varlen after the tables."""
    operands = Operands(p, call.device, "q k v o", pieces=True)
    operands.require_registers("forward")
    config = fit_config(operands, call.config, both=False)
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    rows = {"q": block_m, "k": block_n, "v": block_n, "o": block_m, "q_rest": block_m, "k_rest": block_n}
    tiles, programs = operands.tiles("q", block_m)
    values = operands.values(rows) | tiles
    values["SCALE_IN_EXPONENT"] = p.softcap is None and not p.has("bias") and p.scale > 0 and not p.codes
    values["MASKING"] = _masking(operands, config)
    tables, spaces = varlen_tables(p, "q")
    return finished(call.device, [*tables, launch_of(attention_forward, values, config, programs)], spaces)


@planner
def backward(call: Call, p: AttentionParams) -> Plan:
    """dq, dk and dv: lse_log2 and delta, dk and dv over all queries, dq over all keys. With varlen after the
    tables, and dq from recomputed scores: how much dS there is only the GPU knows."""
    operands = Operands(p, call.device, "do q k v dq dk dv")
    operands.require_registers("backward")
    config = fit_config(operands, call.config, fixed="BLOCK_N")
    launches, spaces = varlen_tables(p, "qk")
    spaces = [*_row_statistics(operands), *spaces]
    launches.append(_preprocess(operands))
    kv_heads, at_once = p.B * p.G, kv_heads_at_once(operands, config)
    if not at_once:
        launches.append(_dkdv(operands, config, 0, kv_heads, None))
        launches.append(_dq(operands, fit_config(operands, _dq_config(call.config))))
        return finished(call.device, launches, spaces)
    heads = at_once * p.qheads_per_kvhead
    for begin in range(0, kv_heads, at_once):
        count = min(at_once, kv_heads - begin)
        launches.append(_dkdv(operands, config, begin, count, heads))
        launches.append(_dq_from_ds(operands, _dq_config(call.config), begin, count, heads))
    return finished(call.device, launches, [*spaces, Workspace("ds", (heads, p.N, operands.padded), p.dtype)])


@planner
def dbias(call: Call, p: AttentionParams) -> Plan:
    """dbias: lse_log2 and delta, then each block of it alone."""
    whole, config = Operands(p, call.device, "do q k v"), dict(call.config)
    if whole.unit == 1:  # each element needs a pointer and a mask: larger tiles spill
        config |= dict.fromkeys(("BLOCK_M", "BLOCK_N", "COLUMNS"), 32)
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    operands = Operands(p, call.device, "do q k v", most=config["COLUMNS"])
    aligned = p.N % 8 == 0 and all(p.heads[name].aligned for name in ("bias", "dbias"))
    row_tiles, key_tiles = ceil_div(p.M, block_m), ceil_div(p.N, block_n)
    values = operands.values({"do": block_m, "q": block_m, "k": block_n, "v": block_n}, aligned)
    values |= {"row_tiles": i32(row_tiles), "key_tiles": i32(key_tiles), "BIAS_UNIT": 8 if aligned else 1}
    blocks = launch_of(attention_dbias, values, config, row_tiles * key_tiles * p.B * p.H)
    return finished(call.device, [_preprocess(whole), blocks], _row_statistics(whole))


# --- the gradients' launches ------------------------------------------------------------------------------


def kv_heads_at_once(operands: Operands, config: Config) -> int:
    """How many KV heads' dS the workspace holds at a time; 0: dq recomputes the scores."""
    p = operands.p
    if not operands.by_descriptor or p.is_varlen or p.left is not None or not config.get("KEEP_DS", True):
        return 0
    if min(config["BLOCK_M"], _dq_config(config)["BLOCK_M"]) < SWIZZLE_ELEMENTS:
        return 0  # a swizzled row of the descriptor is longer
    kv_heads = p.B * p.G
    most = min(kv_heads, DS_BYTES // (p.qheads_per_kvhead * p.N * operands.padded * 2))
    return ceil_div(kv_heads, ceil_div(kv_heads, most)) if most else 0


def _row_statistics(operands: Operands) -> list[Workspace]:
    shape = (operands.p.B * operands.p.H, operands.padded)
    return [Workspace(name, shape, "float32") for name in ("lse_log2", "delta")]


def _preprocess(operands: Operands) -> Launch:
    # Lanes that hold one row of float32 would each fuse a product of their own into delta (rows.UNFUSED).
    config = {**FEW_WARPS, **dict(UNFUSED), "BLOCK_M": min(64, ROW_ELEMENTS // operands.block_e)}
    tiles, programs = operands.tiles("workspace", config["BLOCK_M"])
    values = operands.values({}) | tiles | {"padded": i32(operands.padded)}
    return launch_of(attention_bwd_preprocess, values, config, programs)


def _dkdv(operands: Operands, config: Config, begin: int, count: int, ds_heads: int | None) -> Launch:
    """dk and dv of `count` KV heads, and their dS where the workspace has `ds_heads`."""
    p, block_m, block_n = operands.p, config["BLOCK_M"], config["BLOCK_N"]
    values = operands.values(
        {"do": block_m, "q": block_m, "k": block_n, "v": block_n, "dk": block_n, "dv": block_n}
    )
    mask_dp = operands.by_descriptor and config["num_warps"] * 16 > block_n
    if mask_dp and p.left is None and p.right is None:  # hides nothing, but there is a branch
        values |= {"HIGH": True, "high": i32(FAR.value)}
    tiles, programs = operands.tiles("k", block_n)
    values |= tiles | {"begin": i32(begin), "MASK_DP": mask_dp, "ds": _ds_descriptor(p, ds_heads, config)}
    return launch_of(attention_bwd_dkdv, values, config, programs // (p.B * p.G) * count)


def _dq(operands: Operands, config: Config) -> Launch:
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    tiles, programs = operands.tiles("q", block_m)
    values = operands.values({"do": block_m, "q": block_m, "k": block_n, "v": block_n, "dq": block_m}) | tiles
    values["MASKING"] = _masking(operands, config)
    values["Q_IN_REGISTERS"], values["DO_IN_REGISTERS"] = _held_in_registers(operands, config)
    return launch_of(attention_bwd_dq, values, config, programs)


def _dq_from_ds(operands: Operands, config: Config, begin: int, count: int, ds_heads: int) -> Launch:
    p, tiles = operands.p, ceil_div(operands.p.M, config["BLOCK_M"])
    values = operands.values({"k": config["BLOCK_N"], "dq": config["BLOCK_M"]})
    values |= {"tiles": i32(tiles), "begin": i32(begin * p.qheads_per_kvhead)}
    values["ds"] = _ds_descriptor(p, ds_heads, config)
    return launch_of(attention_bwd_dq_from_ds, values, config, tiles * count * p.qheads_per_kvhead)


def _ds_descriptor(p: AttentionParams, heads: int | None, config: Config) -> TritonDescriptor | None:
    """The workspace of dS of `heads` heads, transposed: a head's keys by its queries."""
    if heads is None:
        return None
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    row = ceil_div(p.M, ROW_PADDING) * ROW_PADDING * 2
    strides, box = (row, row * p.N), (64, min(block_n, 256), 1)
    return TritonDescriptor("ds", p.dtype, (p.M, p.N, heads), strides, box, block=(1, block_n, block_m))


def _dq_config(config: Config) -> dict[str, Any]:
    """The config of dq's kernel: keys with the prefix DQ_, without it."""
    own = {name.removeprefix("DQ_"): value for name, value in config.items() if name.startswith("DQ_")}
    return {**config, **own}


# --- configs ----------------------------------------------------------------------------------------------


def _masking(operands: Operands, config: Config) -> int:
    """How a kernel treats the blocks that the window, or the end of the keys, masks in part; 0: there are
    none.

    3, with descriptors: they have loops of their own; a branch keeps the loop's products from overlapping
    with the rest. 2: a branch, which takes fewer registers: where nothing overlaps (one stage), and on AMD,
    where three loops leave too few scalar registers.
    """
    p = operands.p
    whole = p.N % config["BLOCK_N"] == 0 and not p.is_varlen
    if p.left is None and p.right is None and whole:
        return 0
    return 3 if operands.by_descriptor and config["num_stages"] > 1 else 2


def _held_in_registers(operands: Operands, config: Config) -> tuple[bool, bool]:
    """Whether dq's kernel keeps q, and do, in registers: the shared memory that they leave holds another
    stage. Where only one loop reads them Triton loads them again in each iteration; at heads of 64 more
    blocks on a multiprocessor are worth more (H200, causal 0.97 of cuDNN, 0.84 in registers)."""
    block_m, block_n, columns = config["BLOCK_M"], config["BLOCK_N"], (operands.columns, operands.block_e)
    if _masking(operands, config) < 3 or max(columns) <= SWIZZLE_ELEMENTS:
        return False, False
    pairs, found = 64 * config["num_warps"] // block_m, []
    free = OPERAND_REGISTERS - 2 * (operands.columns + 2 * block_n) // pairs
    for each in columns:
        found.append(each // pairs <= free)
        free -= each // pairs if found[-1] else 0
    return found[0], found[1]


class Float32Tile(NamedTuple):
    """A tile for heads of at most `columns`: rows that stay, rows of a streamed block. `plain`: for dense
    calls without bias and softcap."""

    columns: int
    fixed: int
    streamed: int
    num_warps: int
    plain: bool = False


FLOAT32_TILES = {
    "gfx9": {
        "forward": [Float32Tile(128, 128, 64, 4), Float32Tile(256, 64, 64, 4)],
        "dkdv": [Float32Tile(64, 64, 64, 4), Float32Tile(128, 64, 32, 4), Float32Tile(256, 32, 16, 4)],
        "dq": [
            Float32Tile(64, 64, 64, 4), Float32Tile(128, 64, 64, 4, True), Float32Tile(128, 64, 32, 4),
            Float32Tile(256, 32, 16, 4),
        ],
    },
    "gfx1": {
        "forward": [
            Float32Tile(32, 32, 32, 8), Float32Tile(64, 32, 16, 8, True), Float32Tile(64, 32, 16, 16),
        ],
        "dkdv": [Float32Tile(16, 32, 32, 8), Float32Tile(32, 32, 16, 8), Float32Tile(64, 32, 16, 16, True)],
        "dq": [Float32Tile(16, 32, 32, 8), Float32Tile(32, 32, 16, 8), Float32Tile(64, 32, 16, 16, True)],
    },
    "sm_90": {
        "forward": [
            Float32Tile(16, 64, 64, 8), Float32Tile(32, 64, 32, 8, True), Float32Tile(32, 32, 32, 4),
            Float32Tile(64, 64, 64, 8, True), Float32Tile(64, 64, 32, 8), Float32Tile(128, 32, 16, 8, True),
            Float32Tile(128, 16, 16, 4), Float32Tile(256, 32, 16, 8, True),
        ],
        "dkdv": [
            Float32Tile(16, 64, 32, 8, True), Float32Tile(16, 32, 32, 4), Float32Tile(64, 64, 32, 8),
            Float32Tile(128, 64, 32, 8, True),
        ],
        "dq": [
            Float32Tile(16, 64, 32, 8), Float32Tile(32, 32, 32, 8, True), Float32Tile(32, 64, 32, 8),
            Float32Tile(64, 64, 32, 8, True), Float32Tile(64, 32, 32, 4), Float32Tile(128, 32, 16, 8, True),
        ],
    },
}  # fmt: skip
"""By the beginning of the architecture's name, of each kernel: the first that fits a call is its tile, the
largest that was seen to compile without spills. Products are exact: multiply-adds, on CDNA matrix units."""


def _float32_tile(operands: Operands, kernel: str) -> Float32Tile:
    """Unsupported where no tile fits the call."""
    p, arch, most = operands.p, operands.device.arch, max(operands.columns, operands.block_e)
    tiles = next((each[kernel] for prefix, each in FLOAT32_TILES.items() if arch.startswith(prefix)), [])
    plain = p.softcap is None and not p.has("bias") and not p.is_varlen
    found = next((tile for tile in tiles if most <= tile.columns and (plain or not tile.plain)), None)
    if found is None:
        what = f"float32 heads of {max(p.D, p.E)}" + ("" if plain else " with bias, softcap or varlen")
        raise Unsupported(f"{arch} has too few registers for {what}")
    return found


def fit_config(
    operands: Operands, config: Config, fixed: str = "BLOCK_M", both: bool = True
) -> dict[str, Any]:
    """The config, with smaller blocks where elements are loaded one by one (each needs a pointer and a mask)
    or with a bias, and with fewer stages and smaller blocks until the tiles fit. `fixed` names the rows
    that stay while blocks of the others are streamed; `both`: of two tensors, as the gradients', not of q
    alone. Of float32 the tile is FLOAT32_TILES', whatever the config."""
    config, bias = dict(config), operands.p.has("bias")
    streamed = "BLOCK_N" if fixed == "BLOCK_M" else "BLOCK_M"
    if operands.p.dtype == "float32":
        tile = _float32_tile(operands, "forward" if not both else "dq" if fixed == "BLOCK_M" else "dkdv")
        config = {fixed: tile.fixed, streamed: tile.streamed, "num_warps": tile.num_warps, "num_stages": 1}
    wide = max(operands.columns, operands.block_e) > 64
    if operands.unit == 1:
        config[fixed], config[streamed] = min(config[fixed], 32 if wide else 64), min(config[streamed], 32)
        config["num_stages"] = 1
    elif bias:
        config[fixed], config[streamed] = min(config[fixed], 64), min(config[streamed], 32)
    if operands.unit == 1 or bias:
        config.pop("waves_per_eu", None)  # which caps the registers
    while _shared_bytes(operands, config, fixed, both) > operands.device.shared_memory:
        if config["num_stages"] > 1:
            config["num_stages"] -= 1
        elif config[streamed] > 32:
            config[streamed] //= 2
        elif config[fixed] > 16:
            config[fixed] //= 2
        else:
            break
    return config


def _shared_bytes(operands: Operands, config: Config, fixed: str, both: bool) -> int:
    """Shared memory of the tiles, about. On AMD the fixed rows stay in registers, and shared memory holds one
    tile of each stage but the last; of dq's, those of `_held_in_registers`."""
    columns, size = operands.columns + operands.block_e, itemsize(operands.p.dtype)
    stay, streamed = config[fixed], config["BLOCK_N" if fixed == "BLOCK_M" else "BLOCK_M"]
    if operands.device.vendor == "rocm":
        most = max(operands.columns, operands.block_e)
        return size * (max(stay, streamed) * most + (config["num_stages"] - 1) * streamed * columns)
    stays = stay * (columns if both else operands.columns)
    if both and fixed == "BLOCK_M":
        hold_q, hold_do = _held_in_registers(operands, config)
        stays -= stay * (hold_q * operands.columns + hold_do * operands.block_e)
    return size * (stays + config["num_stages"] * streamed * columns + stay * streamed) + BARRIER_BYTES


# --- varlen -----------------------------------------------------------------------------------------------


def varlen_tables(p: AttentionParams, sides: str) -> tuple[list[Launch], list[Workspace]]:
    """The launches that fill the sequences' bounds and the tables of the tiles of `sides`, "q", or "qk" for
    the keys' too, and what they fill; nothing unless varlen."""
    if not p.is_varlen:
        return [], []
    count = p.offsets
    entries = {side: max_tiles(p.M if side == "q" else p.N, count, ROW_PADDING) for side in sides}
    values = {
        "q_offsets_ptr": Pointer("cu_seqlens_q"), "k_offsets_ptr": Pointer("cu_seqlens_k"),
        "bounds_ptr": Pointer("bounds"), "count": i32(count), "sequences": i32(count + 1), "M": i32(p.M),
        "N": i32(p.N), "k_tiles_ptr": None, "k_entries": 0,
        "BLOCK": min(TABLE_SCAN, max(32, next_power_of_2(count + 1))),
    }  # fmt: skip
    for side in sides:
        values |= {f"{side}_tiles_ptr": Pointer(f"{side}_tiles"), f"{side}_entries": i32(entries[side])}
    launches = [
        launch_of(varlen_bounds, values, FEW_WARPS, count + 1),
        launch_of(varlen_tiles, values, FEW_WARPS, count + 1, len(sides)),
    ]
    spaces = [Workspace("bounds", (count + 1, 4), "int32")]
    spaces += [Workspace(f"{side}_tiles", (n, ENTRY_WORDS.value), "int32") for side, n in entries.items()]
    return launches, spaces


# --- decode: attention_paged, and attention with few queries ------------------------------------------------

DECODE_PROGRAMS = 2
"""Programs that a multiprocessor holds. A sequence is not cut into more splits than fill the GPU once."""


@planner
def decode(call: Call, p: AttentionParams) -> Plan:
    """The splits of all sequences' keys, and their combination where there are more than one."""
    require_decode(call, p)
    rows = p.M * p.qheads_per_kvhead
    block_m = max(16, min(DECODE_ROWS, next_power_of_2(rows)))
    block_d, block_e = (max(16, next_power_of_2(size)) for size in (p.D, p.E))
    unit = 8 if all(p.heads[role].aligned for role in "qkv") else 1
    config = fit_decode_config(call.config, block_m, block_d, block_e, unit, call.device.shared_memory)
    cut = decode_of(call, p, block_m, DECODE_PROGRAMS)
    direct = cut.splits == 1 and not p.sinks
    values = _decode_values(call.device, p, cut) | {
        "UNIT": unit, "DIRECT": direct, "BLOCK_M": block_m, "BLOCK_D": block_d, "BLOCK_E": block_e,
        "tiles": i32(cut.tiles), "pages": i32(p.pages),
    }  # fmt: skip
    for name in "qkv":
        heads = p.heads[name]
        values[f"{name}_ptr"] = Pointer(heads.tensor, unit > 1, "uint8" if heads.itemsize == 1 else None)
        values |= _strides(name, heads, "batch" if name == "q" else "page", narrow=True)
    if not direct:
        values |= {
            "o_ptr": Pointer("o_partial"), "m_ptr": Pointer("max_partial"), "l_ptr": Pointer("sum_partial"),
        }  # fmt: skip
    split = launch_of(decode_split, values, config, cut.blocks(p))
    return decode_plan(call, p, cut, split, None if direct else combine_launch(call, p, cut))


def fit_decode_config(
    config: Config, block_m: int, block_d: int, block_e: int, unit: int, shared_memory: int
) -> dict[str, Any]:
    """The config with fewer stages, then smaller tiles, where what is in flight does not fit."""
    config = dict(config)
    if unit == 1:  # every element has a pointer and a mask
        config["BLOCK_N"], config["num_stages"] = 16, 1

    def needed() -> int:
        tiles = config["BLOCK_N"] * (block_d + block_e) * max(1, config["num_stages"] - 1)
        return 2 * (tiles + block_m * (block_d + config["BLOCK_N"])) + 4096

    while needed() > shared_memory and (config["num_stages"] > 2 or config["BLOCK_N"] > 16):
        if config["num_stages"] > 2:
            config["num_stages"] -= 1
        else:
            config["BLOCK_N"] //= 2
    return config


def combine_launch(call: Call, p: AttentionParams, cut: Decode) -> Launch:
    """decode_combine over the partial results of the splits; sm80's decode launches it too."""
    block_e = min(COMBINE_COLUMNS, next_power_of_2(p.E))
    values = _decode_values(call.device, p, cut) | {
        "part_ptr": Pointer("o_partial", True), "m_ptr": Pointer("max_partial", True),
        "l_ptr": Pointer("sum_partial", True), "BLOCK_E": block_e,
        "BLOCK_S": max(8, min(COMBINE_SPLITS, next_power_of_2(cut.max_splits))),
        "PDL": supports_pdl(call.device),
    }  # fmt: skip
    config = {"num_warps": COMBINE_WARPS, "num_stages": 2}
    return launch_of(decode_combine, values, config, p.B * p.M * p.H, ceil_div(p.E, block_e))


def _decode_values(device: Device, p: AttentionParams, cut: Decode) -> Values:
    """What both kernels take."""
    table = p.heads.get("block_table")
    none = dict.fromkeys(("k_scale_ptr", "k_scale_head", "v_scale_ptr", "v_scale_head"))
    scales = {f"{name}_ptr": Pointer(name) for name in p.scales}
    scales |= {f"{name}_head": Scalar("i32", steps["head"]) for name, steps in p.scales.items()}
    return {
        **cut.defines(p), **none, **scales, "FORMAT": format_of(p.codes) if p.codes else None,
        "CONVERT": bool(p.codes) and converts(device, p.codes),
        "table_ptr": Pointer("block_table") if table else None,
        "table_row": _stride(table.row) if table else None,
        "lens_ptr": Pointer("seq_lens") if p.page else None,
        "sinks_ptr": Pointer("sinks") if p.sinks else None,
        "o_ptr": Pointer("o"), **_strides("o", p.heads["o"]), "lse_ptr": Pointer("lse"),
        "m_ptr": Pointer("lse"), "l_ptr": Pointer("lse"), "capacity": i32(p.N), "M": i32(p.M),
        "heads": i32(p.H), "kv_heads": i32(p.G), "qheads_per_kvhead": i32(p.qheads_per_kvhead),
        "splits": i32(cut.splits), "max_splits": i32(cut.max_splits), "left": i32(p.left or 0),
        "right": i32(p.right or 0), "scale": Scalar("f32", p.score_scale),
        "cap": Scalar("f32", p.softcap_log2),
    }  # fmt: skip


def _strides(name: str, heads: Heads, outer: str = "batch", narrow: bool = False) -> Values:
    names = (f"{name}_{outer}", f"{name}_head", f"{name}_row")
    return {name: _stride(step, narrow) for name, step in zip(names, heads.strides, strict=True)}


def _stride(step: int, narrow: bool = False) -> Scalar:
    """With `narrow` in 32 bits where it fits: a product of 32 bits is one instruction."""
    return Scalar("i32" if narrow and step < 2**31 else "i64", step, step % 16 == 0)
