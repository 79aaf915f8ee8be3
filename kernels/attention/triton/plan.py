"""Plans of attention's Triton kernels for every vendor: attention, its gradients and varlen.

Where the GPU has TMA that can walk the tensors (`operands.py`), tiles are loaded by descriptor; elsewhere
through pointers. Compiled code depends on dtype, head sizes, alignment, which of bias, sinks, softcap and
window there are, and the config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from portable import dtypes
from portable.kernels._lib.triton.rows import MAX_GRID
from portable.kernels.attention.packed import MOST_TOKENS, entries_of, packed
from portable.kernels.attention.problem import Problem, problem_of
from portable.kernels.attention.triton.bwd import (
    attention_bwd_dkdv,
    attention_bwd_dq,
    attention_bwd_dq_from_ds,
    attention_bwd_preprocess,
    attention_dbias,
)
from portable.kernels.attention.triton.fwd import attention_forward
from portable.kernels.attention.triton.operands import SWIZZLE_ELEMENTS, Operands
from portable.kernels.attention.triton.varlen import (
    ENTRY_WORDS,
    FAR,
    VARLEN_TILE,
    varlen_bounds,
    varlen_tiles,
)
from portable.layout import ceil_div, next_power_of_2
from portable.plan import (
    Argument,
    Call,
    Device,
    Launch,
    Plan,
    Pointer,
    Rejected,
    Scalar,
    TritonDescriptor,
    TritonKernel,
    Workspace,
)

ROW_PADDING = VARLEN_TILE.value  # a head's rows in the workspaces fill blocks of any config
ROW_ELEMENTS = 4096  # of do and of o, of a program of `attention_bwd_preprocess`
DS = "ds"
DS_BYTES = 1 << 30
"""The workspace of dS, at most; the KV heads are computed in chunks that fit it."""
OPERAND_REGISTERS = 224  # of a thread, for dq, a block's two products and the operands that stay
BARRIER_BYTES = 1024
GFX11_COLUMNS = {"forward": 128, "backward": 64}
"""Larger heads spill: gfx11's matrix instructions hold each operand element twice in a wave's registers."""
TABLE_SCAN = 1024  # sequences that a program of the varlen tables reads at a time

Config = Mapping[str, Any]
Arguments = list[tuple[str, Argument]]
Constants = list[tuple[str, Any]]


def forward(call: Call) -> Plan | Rejected:
    """o and lse of `attention`: one launch."""
    problem = problem_of(call)
    if isinstance(problem, Rejected):
        return problem
    found = _forward_operands(call, problem)
    if isinstance(found, Rejected):
        return found
    operands, config = found
    refused = _too_large(problem, ceil_div(problem.M, config["BLOCK_M"]) * problem.B * problem.H)
    return refused or Plan((_forward(problem, operands, config),))


def varlen_forward(call: Call) -> Plan | Rejected:
    """o and lse of `attention_varlen`: the tables, then the tiles."""
    problem = _varlen_problem(call)
    if isinstance(problem, Rejected):
        return problem
    found = _forward_operands(call, problem)
    if isinstance(found, Rejected):
        return found
    launches = (*_varlen_tables(problem, "q"), _forward(problem, *found))
    return _varlen_plan(launches, _table_workspaces(problem, "q"))


def _forward_operands(call: Call, problem: Problem) -> tuple[Operands, dict[str, Any]] | Rejected:
    operands = Operands(problem, call.device, ("q", "k", "v", "o"), call.has("sinks"), pieces=True)
    refused = too_few_registers(operands, call.device, "forward")
    return refused or (operands, fit_config(problem, operands, call.config, call.device, both=False))


def _forward(problem: Problem, operands: Operands, config: Config) -> Launch:
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    blocks = {"q": block_m, "k": block_n, "v": block_n, "o": block_m, "q_rest": block_m, "k_rest": block_n}
    args, constants = operands.descriptors(blocks)
    for name in ("q", "k", "v", "bias", "sinks", "o", "lse"):
        operands.pointers(name, args, constants)
    args += [*i32s(H=problem.H, qheads_per_kvhead=problem.share), *_shared_scalars(problem)]
    programs = operands.tile_arguments("q", block_m, args, constants)
    scale_in_exponent = problem.softcap is None and not problem.has("bias") and problem.scale > 0
    constants += [
        ("SCALE_IN_EXPONENT", scale_in_exponent),
        *_shared_constants(problem, operands),
        ("REST_D", operands.rest_d),
        ("MASKING", _masking(problem, operands, block_n, loops=config["num_stages"] > 1)),
        ("BLOCK_M", block_m),
        ("BLOCK_N", block_n),
    ]
    return Launch(_kernel(attention_forward, constants, config), (programs, 1, 1), tuple(args))


def backward(call: Call) -> Plan | Rejected:
    """dq, dk and dv: lse_log2 and delta, dk and dv over all queries, dq over all keys."""
    problem = problem_of(call)
    if isinstance(problem, Rejected):
        return problem
    operands = Operands(problem, call.device, ("do", "q", "k", "v", "dq", "dk", "dv"))
    padded = ceil_div(problem.M, ROW_PADDING) * ROW_PADDING
    refused = too_few_registers(operands, call.device, "backward") or _too_large(
        problem, (max(problem.M, problem.N) // 16 + 1) * problem.B * problem.H
    )
    if refused is not None:
        return refused
    spaces = _row_statistics(problem.B * problem.H, padded)
    launches = [_preprocess(problem, operands, padded)]
    config, dq_config = _backward_configs(call, problem, operands)
    at_once = kv_heads_at_once(problem, operands, padded, config)
    if at_once:
        shape = (at_once * problem.share, problem.N, padded)
        for begin in range(0, problem.B * problem.G, at_once):
            chunk = begin, min(at_once, problem.B * problem.G - begin), at_once
            launches.append(_dkdv(problem, operands, padded, config, *chunk))
            launches.append(_dq_from_ds(problem, operands, padded, _dq_config(call.config), *chunk))
        return Plan(tuple(launches), (*spaces, Workspace(DS, shape, problem.dtype)))
    launches.append(_dkdv(problem, operands, padded, config, 0, problem.B * problem.G, 0))
    launches.append(_dq(problem, operands, padded, dq_config))
    return Plan(tuple(launches), spaces)


def varlen_backward(call: Call) -> Plan | Rejected:
    """The same of packed sequences, after their tables. dq is computed from recomputed scores: how much dS
    there is only the GPU knows."""
    problem = _varlen_problem(call)
    if isinstance(problem, Rejected):
        return problem
    operands = Operands(problem, call.device, ("do", "q", "k", "v", "dq", "dk", "dv"))
    refused = too_few_registers(operands, call.device, "backward")
    if refused is not None:
        return refused
    config, dq_config = _backward_configs(call, problem, operands)
    padded = entries_of(problem.M, problem.offsets, ROW_PADDING) * ROW_PADDING
    launches = (
        *_varlen_tables(problem, "qk"),
        _preprocess(problem, operands, padded),
        _dkdv(problem, operands, padded, config, 0, problem.G, 0),
        _dq(problem, operands, padded, dq_config),
    )
    return _varlen_plan(launches, (*_row_statistics(problem.H, padded), *_table_workspaces(problem, "qk")))


def _backward_configs(
    call: Call, problem: Problem, operands: Operands
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of dk and dv's kernel, and of dq's."""
    return (
        fit_config(problem, operands, call.config, call.device, fixed="BLOCK_N"),
        fit_config(problem, operands, _dq_config(call.config), call.device),
    )


def _row_statistics(heads: int, padded: int) -> tuple[Workspace, ...]:
    return tuple(Workspace(name, (heads, padded), "float32") for name in ("lse_log2", "delta"))


def dbias(call: Call) -> Plan | Rejected:
    """dbias: lse_log2 and delta, then each block of it alone."""
    problem = problem_of(call)
    if isinstance(problem, Rejected):
        return problem
    config, tiled = call.config, ("do", "q", "k", "v")
    whole = Operands(problem, call.device, tiled)
    block_m, block_n, columns = config["BLOCK_M"], config["BLOCK_N"], config["COLUMNS"]
    if whole.unit == 1:  # each element needs a pointer and a mask: larger tiles spill
        block_m = block_n = columns = 32
    row_tiles, key_tiles = ceil_div(problem.M, block_m), ceil_div(problem.N, block_n)
    programs = row_tiles * key_tiles * problem.B * problem.H
    padded = ceil_div(problem.M, ROW_PADDING) * ROW_PADDING
    refused = _too_large(problem, max(programs, padded // 16 * problem.B * problem.H))
    if refused is not None:
        return refused
    operands = Operands(problem, call.device, tiled, most=columns)
    args, constants = operands.descriptors({"do": block_m, "q": block_m, "k": block_n, "v": block_n})
    for name in tiled:
        operands.pointers(name, args, constants)
    itemsize = dtypes.itemsize(problem.dtype)
    together = all(problem.heads[name].aligned_to(16, itemsize) for name in ("bias", "dbias"))
    unit = 16 // itemsize if together and problem.N * itemsize % 16 == 0 else 1
    operands.pointers("bias", args, constants, aligned=unit > 1)
    args += [("lse_log2_ptr", Pointer("lse_log2", True)), ("delta_ptr", Pointer("delta", True))]
    operands.pointers("dbias", args, constants, aligned=unit > 1)
    args += [*i32s(H=problem.H, qheads_per_kvhead=problem.share), *_shared_scalars(problem)]
    args += [("padded", Scalar("i32", padded, True))]
    args += i32s(row_tiles=row_tiles, key_tiles=key_tiles)
    constants += [*_shared_constants(problem, operands), ("BIAS_UNIT", unit)]
    constants += [("BLOCK_M", block_m), ("BLOCK_N", block_n)]
    blocks = Launch(_kernel(attention_dbias, constants, config), (programs, 1, 1), tuple(args))
    return Plan((_preprocess(problem, whole, padded), blocks), _row_statistics(problem.B * problem.H, padded))


def too_few_registers(operands: Operands, device: Device, which: str) -> Rejected | None:
    most = max(operands.columns, operands.block_e)
    if not device.arch.startswith("gfx11") or most <= GFX11_COLUMNS[which]:
        return None
    heads = max(operands.problem.D, operands.problem.E)
    return Rejected(f"{device.arch} has too few registers for heads of {heads}")


def kv_heads_at_once(problem: Problem, operands: Operands, padded: int, config: Config) -> int:
    """How many KV heads' dS the workspace holds at a time; 0: dq recomputes the scores."""
    if not operands.by_descriptor or problem.left is not None or not config.get("KEEP_DS", True):
        return 0
    if min(config["BLOCK_M"], _dq_config(config)["BLOCK_M"]) < SWIZZLE_ELEMENTS:
        return 0  # a swizzled row of the descriptor is longer
    kv_heads = problem.B * problem.G
    most = min(kv_heads, DS_BYTES // (problem.share * problem.N * padded * 2))
    return ceil_div(kv_heads, ceil_div(kv_heads, most)) if most else 0


def _preprocess(problem: Problem, operands: Operands, padded: int) -> Launch:
    args: Arguments = []
    constants: Constants = []
    for name in ("do", "o", "lse", "dlse"):
        operands.pointers(name, args, constants, plain=True)
    args += [("lse_log2_ptr", Pointer("lse_log2", True)), ("delta_ptr", Pointer("delta", True))]
    block_m = min(64, ROW_ELEMENTS // operands.block_e)
    args += i32s(H=problem.H, M=problem.M, padded=padded)
    programs = operands.tile_arguments("workspace", block_m, args, constants)
    constants += [
        ("E", problem.E),
        ("BLOCK_E", operands.block_e),
        ("UNIT", operands.unit),
        ("WIDE", operands.wide),
        ("BLOCK_M", block_m),
    ]
    kernel = TritonKernel(attention_bwd_preprocess, tuple(constants), 4, 1)
    return Launch(kernel, (programs, 1, 1), tuple(args))


def _dkdv(
    problem: Problem,
    operands: Operands,
    padded: int,
    config: Config,
    begin: int,
    count: int,
    batch_heads: int,
) -> Launch:
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    mask_dp = operands.by_descriptor and config["num_warps"] * 16 > block_n
    if mask_dp and problem.left is None and problem.right is None:
        problem = replace(problem, right=FAR.value)  # hides nothing, but there is a branch
    blocks = {"do": block_m, "q": block_m, "k": block_n, "v": block_n}
    args, constants = operands.descriptors(blocks)
    if batch_heads:
        args += _ds_descriptor(problem, padded, batch_heads, block_n, block_m).arguments(DS)
    else:
        constants.append((DS, None))
    operands.descriptors({"dk": block_n, "dv": block_n}, args, constants)
    for name in ("do", "q", "k", "v", "bias"):
        operands.pointers(name, args, constants)
    args += [("lse_log2_ptr", Pointer("lse_log2", True)), ("delta_ptr", Pointer("delta", True))]
    for name in ("dk", "dv"):
        operands.pointers(name, args, constants)
    args += [*i32s(G=problem.G, qheads_per_kvhead=problem.share), *_shared_scalars(problem)]
    args += [("factor", Scalar("f32", problem.scale)), ("padded", Scalar("i32", padded, True))]
    programs = operands.tile_arguments("k", block_n, args, constants) // (problem.B * problem.G) * count
    args += i32s(begin=begin)
    constants += [*_shared_constants(problem, operands), ("MASK_DP", mask_dp)]
    constants += [("BLOCK_M", block_m), ("BLOCK_N", block_n)]
    return Launch(_kernel(attention_bwd_dkdv, constants, config), (programs, 1, 1), tuple(args))


def _dq(problem: Problem, operands: Operands, padded: int, config: Config) -> Launch:
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    args, constants = operands.descriptors(
        {"do": block_m, "q": block_m, "k": block_n, "v": block_n, "dq": block_m}
    )
    for name in ("do", "q", "k", "v", "bias"):
        operands.pointers(name, args, constants)
    args += [("lse_log2_ptr", Pointer("lse_log2", True)), ("delta_ptr", Pointer("delta", True))]
    operands.pointers("dq", args, constants)
    args += [*i32s(H=problem.H, qheads_per_kvhead=problem.share), *_shared_scalars(problem)]
    args += [("factor", Scalar("f32", problem.scale)), ("padded", Scalar("i32", padded, True))]
    programs = operands.tile_arguments("q", block_m, args, constants)
    cut = _masking(problem, operands, block_n, loops=config["num_stages"] > 1)
    hold_q, hold_do = _held_in_registers(operands, config)
    constants += [*_shared_constants(problem, operands), ("MASKING", cut)]
    constants += [("Q_IN_REGISTERS", hold_q), ("DO_IN_REGISTERS", hold_do)]
    constants += [("BLOCK_M", block_m), ("BLOCK_N", block_n)]
    kernel = _kernel(attention_bwd_dq, constants, config)
    return Launch(kernel, (programs, 1, 1), tuple(args))


def _dq_from_ds(
    problem: Problem,
    operands: Operands,
    padded: int,
    config: Config,
    begin: int,
    count: int,
    batch_heads: int,
) -> Launch:
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    tiles = ceil_div(problem.M, block_m)
    args = _ds_descriptor(problem, padded, batch_heads, block_n, block_m).arguments(DS)
    constants: Constants = []
    operands.descriptors({"k": block_n, "dq": block_m}, args, constants)
    sizes = {"H": problem.H, "qheads_per_kvhead": problem.share, "M": problem.M, "N": problem.N}
    args += i32s(**sizes, high=_bounds(problem)["high"])
    args += [("factor", Scalar("f32", problem.scale)), *i32s(tiles=tiles, begin=begin * problem.share)]
    constants += [("HIGH", problem.right is not None)]
    constants += [("BLOCK_D", operands.block_d), ("BLOCK_M", block_m), ("BLOCK_N", block_n)]
    kernel = _kernel(attention_bwd_dq_from_ds, constants, config)
    return Launch(kernel, (tiles * count * problem.share, 1, 1), tuple(args))


def _held_in_registers(operands: Operands, config: Config) -> tuple[bool, bool]:
    """Whether dq's kernel keeps q, and do, in registers: the shared memory that they leave holds another
    stage. Where only one loop reads them Triton loads them again in each iteration; at heads of 64 more
    blocks on a multiprocessor are worth more (H200, causal 0.97 of cuDNN, 0.84 in registers)."""
    block_m, block_n, columns = config["BLOCK_M"], config["BLOCK_N"], (operands.columns, operands.block_e)
    loops = _masking(operands.problem, operands, block_n, loops=config["num_stages"] > 1)
    if loops < 3 or max(columns) <= SWIZZLE_ELEMENTS:
        return False, False
    pairs, found = 64 * config["num_warps"] // block_m, []
    free = OPERAND_REGISTERS - 2 * (operands.columns + 2 * block_n) // pairs
    for each in columns:
        found.append(each // pairs <= free)
        free -= each // pairs if found[-1] else 0
    return found[0], found[1]


def _ds_descriptor(
    problem: Problem, padded: int, batch_heads: int, block_n: int, block_m: int
) -> TritonDescriptor:
    """The workspace of dS, transposed: a head's keys by its queries."""
    sizes, line = (problem.M, problem.N, batch_heads * problem.share), padded * 2
    strides, box = (line, line * problem.N), (64, min(block_n, 256), 1)
    return TritonDescriptor(DS, problem.dtype, sizes, strides, box, block=(1, block_n, block_m))


def _dq_config(config: Config) -> dict[str, Any]:
    """The config of dq's kernel: keys with the prefix DQ_, without it."""
    own = {name.removeprefix("DQ_"): value for name, value in config.items() if name.startswith("DQ_")}
    return {**config, **own}


def _shared_scalars(problem: Problem) -> Arguments:
    """M, N, the window's bounds, and scale and cap as `scores.apply_softcap` takes them."""
    scale, cap = problem.score_factors
    sizes = i32s(M=problem.M, N=problem.N, **_bounds(problem))
    return [*sizes, ("scale", Scalar("f32", scale)), ("cap", Scalar("f32", cap))]


def _bounds(problem: Problem) -> dict[str, int]:
    """`low` and `high`: query i sees key j where low <= j - i <= high. With varlen the kernel adds each
    sequence's N - M."""
    diagonal = 0 if problem.offsets else problem.N - problem.M
    left, right = problem.left or 0, problem.right or 0
    return {"low": diagonal - left, "high": diagonal + right}


def _masking(problem: Problem, operands: Operands, block_n: int, loops: bool = True) -> int:
    """How a kernel treats the blocks that the window, or the end of the keys, masks in part; 0: there are
    none.

    3, with descriptors: they have loops of their own; a branch keeps the loop's products from overlapping
    with the rest. 2: a branch, which takes fewer registers: where nothing overlaps (not `loops`: one
    stage), and on AMD, where three loops leave too few scalar registers.
    """
    whole = problem.N % block_n == 0 and not problem.offsets
    if problem.left is None and problem.right is None and whole:
        return 0
    return 3 if operands.by_descriptor and loops else 2


def _shared_constants(problem: Problem, operands: Operands) -> Constants:
    return [
        ("SOFTCAP", problem.softcap is not None),
        ("LOW", problem.left is not None),
        ("HIGH", problem.right is not None),
        ("D", problem.D),
        ("E", problem.E),
        ("BLOCK_D", operands.block_d),
        ("BLOCK_E", operands.block_e),
        ("UNIT", operands.unit),
        ("WIDE", operands.wide),
        ("PRECISION", "ieee"),
    ]


def fit_config(
    problem: Problem, operands: Operands, config: Config, device: Device, fixed: str = "BLOCK_M",
    both: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """The config, with smaller blocks where elements are loaded one by one (each needs a pointer and a mask)
    or with a bias, and with fewer stages and smaller blocks until the tiles fit. `fixed` names the rows
    that stay while blocks of the others are streamed; `both`: of two tensors, as the gradients', not of q
    alone."""
    config = dict(config)
    streamed = "BLOCK_N" if fixed == "BLOCK_M" else "BLOCK_M"
    wide = max(operands.columns, operands.block_e) > 64
    if operands.unit == 1:
        config[fixed], config[streamed] = min(config[fixed], 32 if wide else 64), min(config[streamed], 32)
        config["num_stages"] = 1
    elif problem.has("bias"):
        config[fixed], config[streamed] = min(config[fixed], 64), min(config[streamed], 32)
    if operands.unit == 1 or problem.has("bias"):
        config.pop("waves_per_eu", None)  # which caps the registers
    while _shared_bytes(operands, config, device, fixed, both) > device.shared_memory:
        if config["num_stages"] > 1:
            config["num_stages"] -= 1
        elif config[streamed] > 32:
            config[streamed] //= 2
        elif config[fixed] > 16:
            config[fixed] //= 2
        else:
            break
    return config


def _shared_bytes(operands: Operands, config: Config, device: Device, fixed: str, both: bool) -> int:
    """Shared memory of the tiles, about. On AMD the fixed rows stay in registers, and shared memory holds one
    tile of each stage but the last; of dq's, those of `_held_in_registers`."""
    columns = operands.columns + operands.block_e
    stay, streamed = config[fixed], config["BLOCK_N" if fixed == "BLOCK_M" else "BLOCK_M"]
    if device.vendor == "rocm":
        most = max(operands.columns, operands.block_e)
        return 2 * (max(stay, streamed) * most + (config["num_stages"] - 1) * streamed * columns)
    stays = stay * (columns if both else operands.columns)
    if both and fixed == "BLOCK_M":
        hold_q, hold_do = _held_in_registers(operands, config)
        stays -= stay * (hold_q * operands.columns + hold_do * operands.block_e)
    return 2 * (stays + config["num_stages"] * streamed * columns + stay * streamed) + BARRIER_BYTES


def _kernel(function: Any, constants: Constants, config: Config) -> TritonKernel:
    options = [
        (name, config[name])
        for name in ("waves_per_eu", "matrix_instr_nonkdim", "kpack", "maxnreg")
        if name in config
    ]
    return TritonKernel(function, tuple(constants), config["num_warps"], config["num_stages"], tuple(options))


def _too_large(problem: Problem, programs: int) -> Rejected | None:
    """A rejection where row, key or program numbers exceed 32 bits."""
    if 2 * (problem.M + problem.N) + 1024 > MAX_GRID:
        return Rejected("row and key numbers of 32 bits do not hold this size")
    return too_many_programs(programs)


def too_many_programs(most: int, programs: int | None = None) -> Rejected | None:
    if most > MAX_GRID:
        programs = most if programs is None else programs
        return Rejected(f"{programs} programs are more than one launch takes ({MAX_GRID})")
    return None


def i32s(**values: int) -> Arguments:
    return [(name, Scalar("i32", value)) for name, value in values.items()]


# --- varlen ---------------------------------------------------------------------------------------


def _varlen_problem(call: Call) -> Problem | Rejected:
    """All tokens as one batch, where a row's stride is a batch's too."""
    problem = packed(call, MOST_TOKENS)
    if isinstance(problem, Rejected):
        return problem
    heads = {name: replace(each, batch=each.row) for name, each in problem.heads.items()}
    return replace(problem, heads=heads, offsets=call.axes["C"])


def _varlen_plan(launches: tuple[Launch, ...], spaces: tuple[Workspace, ...]) -> Plan | Rejected:
    return too_many_programs(max(each.grid[0] for each in launches)) or Plan(launches, spaces)


def _entries(problem: Problem, side: str) -> int:
    return entries_of(problem.M if side == "q" else problem.N, problem.offsets, ROW_PADDING)


def _table_workspaces(problem: Problem, sides: str) -> tuple[Workspace, ...]:
    shapes = {side: (_entries(problem, side), ENTRY_WORDS.value) for side in sides}
    tables = (Workspace(f"{side}_tiles", shapes[side], "int32") for side in sides)
    return (Workspace("bounds", (problem.offsets + 1, 4), "int32"), *tables)


def _varlen_tables(problem: Problem, sides: str) -> tuple[Launch, Launch]:
    """The sequences' bounds, and the tables of the tiles of `sides`: "q", or "qk" for the keys' too."""
    count = problem.offsets
    constants: Constants = [("BLOCK", min(TABLE_SCAN, max(32, next_power_of_2(count + 1))))]
    args: Arguments = [(f"{side}_offsets_ptr", Pointer(f"cu_seqlens_{side}")) for side in "qk"]
    args += [("bounds_ptr", Pointer("bounds")), *i32s(count=count, M=problem.M, N=problem.N)]
    bounds = Launch(TritonKernel(varlen_bounds, tuple(constants), 4, 1), (count + 1, 1, 1), tuple(args))
    args = [("bounds_ptr", Pointer("bounds"))]
    args += [(f"{side}_tiles_ptr", Pointer(f"{side}_tiles")) for side in sides]
    args += i32s(sequences=count + 1, **{f"{side}_entries": _entries(problem, side) for side in sides})
    if "k" not in sides:
        constants += [("k_tiles_ptr", None), ("k_entries", 0)]
    kernel = TritonKernel(varlen_tiles, tuple(constants), 4, 1)
    return bounds, Launch(kernel, (count + 1, len(sides), 1), tuple(args))
