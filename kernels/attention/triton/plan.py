"""attention and its gradients in Triton for every vendor: which kernels a call needs, on which tiles.

Where the card has a copy engine for tiles that can walk the tensors (`triton/operands.py`), tiles
come by descriptor; elsewhere through pointers. Compiled code depends on dtype, head sizes, alignment, which
of bias, sinks, softcap and bounds there are, and the config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import triton

from portable import dtypes
from portable.kernels._lib.triton.rows import MAX_GRID
from portable.kernels.attention.problem import Problem, problem_of
from portable.kernels.attention.triton.bwd import (
    attention_dbias,
    attention_keys,
    attention_products,
    attention_queries,
    attention_rows,
)
from portable.kernels.attention.triton.fwd import attention_forward
from portable.kernels.attention.triton.operands import LINE, Operands
from portable.kernels.attention.triton.varlen import FAR, LINES
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

LOG2E = math.log2(math.e)
PADDING = LINES.value  # the rows of a head in the workspaces are as many as fill blocks of any config
ROW_ELEMENTS = 4096  # of do and of o, that a program of `attention_rows` takes
PRODUCTS = "ds"
PRODUCT_BYTES = 1 << 30
"""Of the workspace of dS, at most; the heads take turns in it."""
HELD_REGISTERS = 224  # of a thread, for dq, a block's two products and what dq's kernel holds
RESERVED = 1024  # bytes for barriers
GFX11_COLUMNS = {"forward": 128, "backward": 64}
"""Beyond, kernels spill: gfx11's matrix instructions want each operand twice in the registers of a wave."""


def forward(call: Call) -> Plan | Rejected:
    """Plan o and lse: one launch."""
    problem = problem_of(call)
    if isinstance(problem, Rejected):
        return problem
    operands = Operands(problem, call.device, ("q", "k", "v", "o"), call.has("sinks"), pieces=True)
    if (reason := crowded(operands, call.device, "forward")) is not None:
        return reason
    config = fitted(problem, operands, call.config, call.device, both=False)
    refused = too_large(problem, triton.cdiv(problem.M, config["BLOCK_M"]) * problem.B * problem.H)
    if refused is not None:
        return refused
    return Plan((plan_forward(problem, operands, config),))


def plan_forward(problem: Problem, operands: Operands, config: Mapping[str, Any]) -> Launch:
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    blocks = {"q": block_m, "k": block_n, "v": block_n, "o": block_m, "q_rest": block_m, "k_rest": block_n}
    args, constants = operands.descriptors(blocks)
    for name in ("q", "k", "v", "bias", "sinks", "o", "lse"):
        operands.pointers(name, args, constants)
    args += [
        ("H", _i32(problem.H)),
        ("share", _i32(problem.share)),
        *shared_scalars(problem),
    ]
    programs = operands.places("q", block_m, args, constants)
    lazy = problem.softcap is None and not problem.has("bias") and problem.scale > 0
    constants += [
        ("LAZY", lazy),
        *shared_constants(problem, operands),
        ("REST_D", operands.rest_d),
        ("EDGES", edges(problem, operands, block_n, loops=config["num_stages"] > 1)),
        ("BLOCK_M", block_m),
        ("BLOCK_N", block_n),
    ]
    return Launch(kernel_of(attention_forward, constants, config), (programs, 1, 1), tuple(args))


def backward(call: Call) -> Plan | Rejected:
    """Plan dq, dk and dv: the reduction of do * o, dk and dv over all queries, dq over all keys."""
    problem = problem_of(call)
    if isinstance(problem, Rejected):
        return problem
    operands = Operands(problem, call.device, ("do", "q", "k", "v", "dq", "dk", "dv"))
    if (reason := crowded(operands, call.device, "backward")) is not None:
        return reason
    config, padded = call.config, triton.cdiv(problem.M, PADDING) * PADDING
    most = max(problem.M, problem.N) // 16 + 1
    refused = too_large(problem, most * problem.B * problem.H)
    if refused is not None:
        return refused
    lines = (problem.B * problem.H, padded)
    spaces = [Workspace("peak", lines, "float32"), Workspace("delta", lines, "float32")]
    launches = [plan_rows(problem, operands, padded)]
    first = fitted(problem, operands, config, call.device, kept="BLOCK_N")
    last = fitted(problem, operands, second(config), call.device)
    slots = groups_at_once(problem, operands, padded, first)
    if slots:
        spaces.append(Workspace(PRODUCTS, (slots * problem.share, problem.N, padded), problem.dtype))
        for begin in range(0, problem.B * problem.G, slots):
            count = min(slots, problem.B * problem.G - begin)
            launches.append(plan_keys(problem, operands, padded, first, begin, count, slots))
            launches.append(plan_products(problem, operands, padded, second(config), begin, count, slots))
    else:
        launches.append(plan_keys(problem, operands, padded, first, 0, problem.B * problem.G, 0))
        launches.append(plan_queries(problem, operands, padded, last))
    return Plan(tuple(launches), tuple(spaces))


def bias_backward(call: Call) -> Plan | Rejected:
    """Plan dbias: the reduction of do * o, then each block of it alone."""
    problem = problem_of(call)
    if isinstance(problem, Rejected):
        return problem
    config, tiled = call.config, ("do", "q", "k", "v")
    whole = Operands(problem, call.device, tiled)
    block_m, block_n, columns = config["BLOCK_M"], config["BLOCK_N"], config["COLUMNS"]
    if whole.unit == 1:  # each element needs a pointer and a mask: larger tiles spill
        block_m = block_n = columns = 32
    row_tiles, key_tiles = triton.cdiv(problem.M, block_m), triton.cdiv(problem.N, block_n)
    programs = row_tiles * key_tiles * problem.B * problem.H
    padded = triton.cdiv(problem.M, PADDING) * PADDING
    refused = too_large(problem, max(programs, padded // 16 * problem.B * problem.H))
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
    args += [("peak_ptr", Pointer("peak", True)), ("delta_ptr", Pointer("delta", True))]
    operands.pointers("dbias", args, constants, aligned=unit > 1)
    args += [("H", _i32(problem.H)), ("share", _i32(problem.share)), *shared_scalars(problem)]
    args += [("padded", Scalar("i32", padded, True))]
    args += [("row_tiles", _i32(row_tiles)), ("key_tiles", _i32(key_tiles))]
    constants += [*shared_constants(problem, operands), ("BIAS_UNIT", unit)]
    constants += [("BLOCK_M", block_m), ("BLOCK_N", block_n)]
    blocks = Launch(kernel_of(attention_dbias, constants, config), (programs, 1, 1), tuple(args))
    lines = (problem.B * problem.H, padded)
    spaces = (Workspace("peak", lines, "float32"), Workspace("delta", lines, "float32"))
    return Plan((plan_rows(problem, whole, padded), blocks), spaces)


def crowded(operands: Operands, device: Device, which: str) -> Rejected | None:
    most = max(operands.columns, operands.block_e)
    if not device.arch.startswith("gfx11") or most <= GFX11_COLUMNS[which]:
        return None
    heads = max(operands.problem.D, operands.problem.E)
    return Rejected(f"{device.arch} has too few registers for heads of {heads}")


def groups_at_once(problem: Problem, operands: Operands, padded: int, config: Mapping[str, Any]) -> int:
    """How many key heads' dS the workspace holds at a time; 0: the scores are computed again."""
    if not operands.by_descriptor or problem.left is not None or not config.get("KEEP_DS", True):
        return 0
    if min(config["BLOCK_M"], second(config)["BLOCK_M"]) < LINE:
        return 0  # the engine's lines are longer
    groups = problem.B * problem.G
    each = problem.share * problem.N * padded * 2
    slots = min(groups, PRODUCT_BYTES // each)
    return triton.cdiv(groups, triton.cdiv(groups, slots)) if slots else 0


def plan_rows(problem: Problem, operands: Operands, padded: int) -> Launch:
    args: list[tuple[str, Argument]] = []
    constants: list[tuple[str, Any]] = []
    for name in ("do", "o", "lse", "dlse"):
        operands.pointers(name, args, constants, plain=True)
    args += [("peak_ptr", Pointer("peak", True)), ("delta_ptr", Pointer("delta", True))]
    block_m = min(64, ROW_ELEMENTS // operands.block_e)
    sizes = {"H": problem.H, "M": problem.M, "padded": padded}
    args += [(name, _i32(value)) for name, value in sizes.items()]
    programs = operands.places("lines", block_m, args, constants)
    constants += [
        ("E", problem.E),
        ("BLOCK_E", operands.block_e),
        ("UNIT", operands.unit),
        ("WIDE", operands.wide),
        ("BLOCK_M", block_m),
    ]
    kernel = TritonKernel(attention_rows, tuple(constants), 4, 1)
    return Launch(kernel, (programs, 1, 1), tuple(args))


def plan_keys(
    problem: Problem,
    operands: Operands,
    padded: int,
    config: Mapping[str, Any],
    begin: int,
    count: int,
    slots: int,
) -> Launch:
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    halves = operands.by_descriptor and config["num_warps"] * 16 > block_n
    if halves and problem.left is None and problem.right is None:
        problem = replace(problem, right=FAR.value)  # cuts nothing, but there is a branch
    blocks = {"do": block_m, "q": block_m, "k": block_n, "v": block_n}
    args, constants = operands.descriptors(blocks)
    if slots:
        args += products(problem, padded, slots, block_n, block_m).arguments(PRODUCTS)
    else:
        constants.append((PRODUCTS, None))
    operands.descriptors({"dk": block_n, "dv": block_n}, args, constants)
    for name in ("do", "q", "k", "v", "bias"):
        operands.pointers(name, args, constants)
    args += [("peak_ptr", Pointer("peak", True)), ("delta_ptr", Pointer("delta", True))]
    for name in ("dk", "dv"):
        operands.pointers(name, args, constants)
    args += [("G", _i32(problem.G)), ("share", _i32(problem.share)), *shared_scalars(problem)]
    args += [("factor", Scalar("f32", problem.scale)), ("padded", Scalar("i32", padded, True))]
    programs = operands.places("k", block_n, args, constants) // (problem.B * problem.G) * count
    args.append(("begin", _i32(begin)))
    constants += [*shared_constants(problem, operands), ("HALVES", halves)]
    constants += [("BLOCK_M", block_m), ("BLOCK_N", block_n)]
    return Launch(kernel_of(attention_keys, constants, config), (programs, 1, 1), tuple(args))


def plan_queries(problem: Problem, operands: Operands, padded: int, config: Mapping[str, Any]) -> Launch:
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    args, constants = operands.descriptors(
        {"do": block_m, "q": block_m, "k": block_n, "v": block_n, "dq": block_m}
    )
    for name in ("do", "q", "k", "v", "bias"):
        operands.pointers(name, args, constants)
    args += [("peak_ptr", Pointer("peak", True)), ("delta_ptr", Pointer("delta", True))]
    operands.pointers("dq", args, constants)
    args += [("H", _i32(problem.H)), ("share", _i32(problem.share)), *shared_scalars(problem)]
    args += [("factor", Scalar("f32", problem.scale)), ("padded", Scalar("i32", padded, True))]
    programs = operands.places("q", block_m, args, constants)
    cut = edges(problem, operands, block_n, loops=config["num_stages"] > 1)
    hold_q, hold_do = held(operands, config)
    constants += [*shared_constants(problem, operands), ("EDGES", cut)]
    constants += [("HOLD_Q", hold_q), ("HOLD_DO", hold_do)]
    constants += [("BLOCK_M", block_m), ("BLOCK_N", block_n)]
    kernel = kernel_of(attention_queries, constants, config)
    return Launch(kernel, (programs, 1, 1), tuple(args))


def plan_products(
    problem: Problem,
    operands: Operands,
    padded: int,
    config: Mapping[str, Any],
    begin: int,
    count: int,
    slots: int,
) -> Launch:
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    tiles = triton.cdiv(problem.M, block_m)
    args = products(problem, padded, slots, block_n, block_m).arguments(PRODUCTS)
    constants: list[tuple[str, Any]] = []
    operands.descriptors({"k": block_n, "dq": block_m}, args, constants)
    sizes = {"H": problem.H, "share": problem.share, "M": problem.M, "N": problem.N}
    args += [(name, _i32(value)) for name, value in sizes.items()]
    args += [("high", _i32(bounds(problem)["high"])), ("factor", Scalar("f32", problem.scale))]
    args += [("tiles", _i32(tiles)), ("begin", _i32(begin * problem.share))]
    constants += [("HIGH", problem.right is not None)]
    constants += [("BLOCK_D", operands.block_d), ("BLOCK_M", block_m), ("BLOCK_N", block_n)]
    kernel = kernel_of(attention_products, constants, config)
    return Launch(kernel, (tiles * count * problem.share, 1, 1), tuple(args))


def held(operands: Operands, config: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether dq's kernel holds its queries, and their grads, in registers: the shared memory that they leave
    takes another stage. Where only one loop reads them Triton loads them in it again and again; at heads of
    64 more blocks on a multiprocessor are worth more (H200, causal 0.97 of cuDNN, 0.84 held)."""
    block_m, block_n, columns = config["BLOCK_M"], config["BLOCK_N"], (operands.columns, operands.block_e)
    loops = edges(operands.problem, operands, block_n, loops=config["num_stages"] > 1)
    if loops < 3 or max(columns) <= LINE:
        return False, False
    pairs, found = 64 * config["num_warps"] // block_m, []
    free = HELD_REGISTERS - 2 * (operands.columns + 2 * block_n) // pairs
    for each in columns:
        found.append(each // pairs <= free)
        free -= each // pairs if found[-1] else 0
    return found[0], found[1]


def products(problem: Problem, padded: int, slots: int, block_n: int, block_m: int) -> TritonDescriptor:
    """The workspace of dS, transposed: a head's keys by its queries."""
    sizes, line = (problem.M, problem.N, slots * problem.share), padded * 2
    strides, box = (line, line * problem.N), (64, min(block_n, 256), 1)
    return TritonDescriptor(PRODUCTS, problem.dtype, sizes, strides, box, block=(1, block_n, block_m))


def second(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of dq's kernel: what begins with DQ_, without it."""
    own = {name.removeprefix("DQ_"): value for name, value in config.items() if name.startswith("DQ_")}
    return {**config, **own}


def shared_scalars(problem: Problem) -> list[tuple[str, Argument]]:
    """M, N, the bounds, and the scale and cap as `scores.capped` takes them."""
    scale, cap = problem.scale * LOG2E, 0.0
    if problem.softcap is not None:
        scale, cap = 2 * scale / problem.softcap, problem.softcap * LOG2E
    sizes = {"M": problem.M, "N": problem.N, **bounds(problem)}
    numbers = {"scale": Scalar("f32", scale), "cap": Scalar("f32", cap)}
    return [*((name, _i32(value)) for name, value in sizes.items()), *numbers.items()]


def bounds(problem: Problem) -> dict[str, int]:
    """`low` and `high`: query i sees key j where low <= j - i <= high. A packed sequence adds to them what it
    has more keys than queries."""
    diagonal = 0 if problem.offsets else problem.N - problem.M
    left, right = problem.left or 0, problem.right or 0
    return {"low": diagonal - left, "high": diagonal + right}


def edges(problem: Problem, operands: Operands, block_n: int, loops: bool = True) -> int:
    """How a kernel treats the blocks that bounds, or the end of the keys, cut: nothing where none is cut.

    With descriptors they have loops of their own: a branch keeps the products of the loop from running under
    the rest. Where nothing would (not `loops`: one stage) there is a branch, which takes fewer registers; and
    elsewhere too: three loops leave the AMD cards short of scalar registers.
    """
    whole = problem.N % block_n == 0 and not problem.offsets
    if problem.left is None and problem.right is None and whole:
        return 0
    return 3 if operands.by_descriptor and loops else 2


def shared_constants(problem: Problem, operands: Operands) -> list[tuple[str, Any]]:
    return [
        ("CAP", problem.softcap is not None),
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


def fitted(
    problem: Problem, operands: Operands, config: Mapping[str, Any], device: Device, kept: str = "BLOCK_M",
    both: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """The config, with smaller blocks where elements come one by one (each needs a pointer and a mask) or
    with a bias, and with fewer stages and smaller blocks until the tiles fit. `kept` names the rows that stay
    while blocks of the others pass by; `both`: of two tensors, as the gradients', not of q alone."""
    config = dict(config)
    passing = "BLOCK_N" if kept == "BLOCK_M" else "BLOCK_M"
    wide = max(operands.columns, operands.block_e) > 64
    if operands.unit == 1:
        config[kept], config[passing] = min(config[kept], 32 if wide else 64), min(config[passing], 32)
        config["num_stages"] = 1
    elif problem.has("bias"):
        config[kept], config[passing] = min(config[kept], 64), min(config[passing], 32)
    if operands.unit == 1 or problem.has("bias"):
        config.pop("waves_per_eu", None)  # which caps the registers
    while shared_bytes(operands, config, device, kept, both) > device.shared_memory:
        if config["num_stages"] > 1:
            config["num_stages"] -= 1
        elif config[passing] > 32:
            config[passing] //= 2
        elif config[kept] > 16:
            config[kept] //= 2
        else:
            break
    return config


def shared_bytes(operands: Operands, config: Mapping[str, Any], device: Device, kept: str, both: bool) -> int:
    """Shared memory of the tiles, about. The rows that stay do so in registers on the AMD cards, which hold
    one tile of each stage but the last; of dq's, those that are `held`."""
    columns = operands.columns + operands.block_e
    stay, passing = config[kept], config["BLOCK_N" if kept == "BLOCK_M" else "BLOCK_M"]
    if device.vendor == "rocm":
        most = max(operands.columns, operands.block_e)
        return 2 * (max(stay, passing) * most + (config["num_stages"] - 1) * passing * columns)
    stays = stay * (columns if both else operands.columns)
    if both and kept == "BLOCK_M":
        hold_q, hold_do = held(operands, config)
        stays -= stay * (hold_q * operands.columns + hold_do * operands.block_e)
    return 2 * (stays + config["num_stages"] * passing * columns + stay * passing) + RESERVED


def kernel_of(function: Any, constants: list[tuple[str, Any]], config: Mapping[str, Any]) -> TritonKernel:
    options = [
        (name, config[name])
        for name in ("waves_per_eu", "matrix_instr_nonkdim", "kpack", "maxnreg")
        if name in config
    ]
    return TritonKernel(function, tuple(constants), config["num_warps"], config["num_stages"], tuple(options))


def too_large(problem: Problem, programs: int) -> Rejected | None:
    """A rejection where row, key or program numbers would leave 32 bits."""
    if 2 * (problem.M + problem.N) + 1024 > MAX_GRID:
        return Rejected("row and key numbers of 32 bits do not hold this size")
    if programs > MAX_GRID:
        return Rejected(f"{programs} programs are more than one launch takes ({MAX_GRID})")
    return None


def _i32(value: int) -> Scalar:
    return Scalar("i32", value)
