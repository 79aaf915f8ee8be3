"""Plans attention over packed sequences: which tile is of which sequence is found on the card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton

from portable.kernels._common.triton_rows import MAX_GRID
from portable.kernels.attention.packed import entries_of, packed
from portable.kernels.attention.problem import Problem
from portable.kernels.attention.triton_impl import (
    PADDING,
    fitted,
    kernel_of,
    second,
    shared_constants,
    shared_scalars,
)
from portable.kernels.attention.triton_operands import Operands
from portable.kernels.attention.triton_ragged import ragged_forward, ragged_tiles
from portable.kernels.attention.triton_ragged_backward import ragged_keys, ragged_queries, ragged_rows
from portable.plan import (
    Argument,
    Call,
    Launch,
    Plan,
    Pointer,
    Rejected,
    Scalar,
    TritonKernel,
    Workspace,
)

TAIL = 32
"""Keys of a block at a sequence's end: few, as each costs a pointer and a mask."""
SCAN = 1024
"""Offsets that a program looks at at a time."""


def forward(call: Call) -> Plan | Rejected:
    """Plan o and lse: the tiles' sequences, then the tiles."""
    problem = packed(call)
    if isinstance(problem, Rejected):
        return problem
    operands = Operands(problem, call.device, ("q", "k", "v"), call.has("sinks"), pieces=True)
    config = fitted(problem, operands, call.config, call.device, both=False)
    if operands.unit == 1:
        config["BLOCK_N"] = min(config["BLOCK_N"], 16)
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    entries = entries_of(problem.M, call.axes["C"], block_m)
    if entries * problem.H > MAX_GRID:
        return Rejected(f"{entries * problem.H} programs are more than one launch takes ({MAX_GRID})")
    blocks = {"q": block_m, "k": block_n, "v": block_n, "q_rest": block_m, "k_rest": block_n}
    args, constants = operands.descriptors(blocks)
    for name in ("q", "k", "v", "sinks", "o", "lse"):
        operands.pointers(name, args, constants, plain=name in "kv")
    args += [("bounds_ptr", Pointer("bounds")), ("tiles_ptr", Pointer("tiles"))]
    sizes = {"entries": entries, "count": call.axes["C"], "share": problem.share}
    args += [(name, Scalar("i32", value)) for name, value in sizes.items()]
    args += window(problem)
    lazy = problem.softcap is None and problem.scale > 0
    constants += [("LAZY", lazy), *shared_constants(problem, operands), ("REST_D", operands.rest_d)]
    constants += [("BLOCK_M", block_m), ("BLOCK_N", block_n), ("TAIL", min(block_n, TAIL))]
    kernel = kernel_of(ragged_forward, constants, config)
    launches = (
        plan_tiles(call, problem, "q", entries, block_m),
        Launch(kernel, (entries * problem.H, 1, 1), tuple(args)),
    )
    return Plan(launches, workspaces(call, entries))


def backward(call: Call) -> Plan | Rejected:
    """Plan dq, dk and dv: tables of query and key tiles, the reduction of do * o, dk and dv, and dq."""
    problem = packed(call)
    if isinstance(problem, Rejected):
        return problem
    operands = Operands(problem, call.device, ("do", "q", "k", "v", "o", "dq", "dk", "dv"))
    operands.by_descriptor = False
    config = fitted(problem, operands, call.config, call.device, "BLOCK_N")
    dq = fitted(problem, operands, second(call.config), call.device)
    lines = entries_of(problem.M, call.axes["C"], PADDING)
    entries = entries_of(problem.N, call.axes["C"], config["BLOCK_N"])
    if max(lines * problem.H, entries * problem.G) > MAX_GRID:
        return Rejected(f"{lines * problem.H} programs are more than one launch takes ({MAX_GRID})")
    spaces = [Workspace(name, (problem.H, lines, PADDING), "float32") for name in ("peak", "delta")]
    spaces += [*workspaces(call, lines, "q_"), *workspaces(call, entries, "k_")]
    launches = (
        plan_tiles(call, problem, "q", lines, PADDING, "q_"),
        plan_tiles(call, problem, "k", entries, config["BLOCK_N"], "k_"),
        plan_rows(problem, operands, lines),
        plan_keys(problem, operands, config, entries, lines),
        plan_queries(problem, operands, dq, lines),
    )
    return Plan(launches, tuple(spaces))


def plan_rows(problem: Problem, operands: Operands, lines: int) -> Launch:
    args, constants = pointers(operands, ("do", "o", "lse", "dlse"))
    args += [("peak_ptr", Pointer("peak", True)), ("delta_ptr", Pointer("delta", True))]
    args += [("bounds_ptr", Pointer("q_bounds")), ("tiles_ptr", Pointer("q_tiles"))]
    args.append(("entries", Scalar("i32", lines)))
    constants += [
        ("E", problem.E),
        ("BLOCK_E", operands.block_e),
        ("UNIT", operands.unit),
        ("WIDE", operands.wide),
        ("PADDING", PADDING),
    ]
    return Launch(
        TritonKernel(ragged_rows, tuple(constants), 4 if operands.unit > 1 else 8, 1),
        (lines * problem.H, 1, 1),
        tuple(args),
    )


def plan_keys(
    problem: Problem, operands: Operands, config: Mapping[str, Any], entries: int, lines: int
) -> Launch:
    args, constants = pointers(operands, ("do", "q", "k", "v"))
    args += [("peak_ptr", Pointer("peak", True)), ("delta_ptr", Pointer("delta", True))]
    args += pointers(operands, ("dk", "dv"))[0]
    args += [("bounds_ptr", Pointer("k_bounds")), ("tiles_ptr", Pointer("k_tiles"))]
    sizes = {"entries": entries, "lines": lines, "share": problem.share}
    args += [(name, Scalar("i32", value)) for name, value in sizes.items()]
    args += [*window(problem), ("factor", Scalar("f32", problem.scale))]
    constants += [*shared_constants(problem, operands), ("PADDING", PADDING)]
    constants += [(name, config[name]) for name in ("BLOCK_M", "BLOCK_N")]
    return Launch(kernel_of(ragged_keys, constants, config), (entries * problem.G, 1, 1), tuple(args))


def plan_queries(problem: Problem, operands: Operands, config: Mapping[str, Any], lines: int) -> Launch:
    args, constants = pointers(operands, ("do", "q", "k", "v"))
    args += [("peak_ptr", Pointer("peak", True)), ("delta_ptr", Pointer("delta", True))]
    args += pointers(operands, ("dq",))[0]
    args += [("bounds_ptr", Pointer("q_bounds")), ("tiles_ptr", Pointer("q_tiles"))]
    args += [("entries", Scalar("i32", lines)), ("share", Scalar("i32", problem.share))]
    args += [*window(problem), ("factor", Scalar("f32", problem.scale))]
    constants += shared_constants(problem, operands)
    constants += [(name, config[name]) for name in ("BLOCK_M", "BLOCK_N")]
    grid = (lines * problem.H, PADDING // config["BLOCK_M"], 1)
    return Launch(kernel_of(ragged_queries, constants, config), grid, tuple(args))


def pointers(
    operands: Operands, names: tuple[str, ...]
) -> tuple[list[tuple[str, Argument]], list[tuple[str, Any]]]:
    """Arguments and constants of tensors that are reached through pointers."""
    args: list[tuple[str, Argument]] = []
    constants: list[tuple[str, Any]] = []
    for name in names:
        operands.pointers(name, args, constants, plain=True)
    return args, constants


def window(problem: Problem) -> list[tuple[str, Argument]]:
    """The bounds around a sequence's diagonal, and scale and cap."""
    bounds = {"left": problem.left or 0, "right": problem.right or 0}
    args: list[tuple[str, Argument]] = [(name, Scalar("i32", value)) for name, value in bounds.items()]
    return args + [(name, each) for name, each in shared_scalars(problem) if name in ("scale", "cap")]


def workspaces(call: Call, entries: int, name: str = "") -> tuple[Workspace, ...]:
    return (
        Workspace(name + "bounds", (call.axes["C"] + 1, 4), "int32"),
        Workspace(name + "tiles", (entries,), "int32"),
    )


def plan_tiles(call: Call, problem: Problem, of: str, entries: int, tile: int, name: str = "") -> Launch:
    """Tables of the tiles of queries ("q") or keys ("k")."""
    tokens = {"q": problem.M, "k": problem.N}
    other = "k" if of == "q" else "q"
    args: list[tuple[str, Argument]] = [
        ("offsets_ptr", Pointer(f"cu_seqlens_{of}")),
        ("others_ptr", Pointer(f"cu_seqlens_{other}")),
        ("bounds_ptr", Pointer(name + "bounds")),
        ("tiles_ptr", Pointer(name + "tiles")),
    ]
    sizes: dict[str, Any] = {
        "count": call.axes["C"], "total": tokens[of], "others": tokens[other], "entries": entries,
    }  # fmt: skip
    args += [(each, Scalar("i32", value)) for each, value in sizes.items()]
    block = min(SCAN, max(32, triton.next_power_of_2(call.axes["C"])))
    kernel = TritonKernel(ragged_tiles, (("TILE", tile), ("BLOCK", block)), 4, 1)
    return Launch(kernel, (call.axes["C"] + 1, 1, 1), tuple(args))
