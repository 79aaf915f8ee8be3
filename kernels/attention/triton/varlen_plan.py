"""Plans attention over packed sequences and its gradient: the dense kernels, behind tables of the sequences'
tiles that are made on the card."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import triton

from portable.kernels._lib.triton.rows import MAX_GRID
from portable.kernels.attention.packed import MOST_TOKENS, entries_of, packed
from portable.kernels.attention.problem import Problem
from portable.kernels.attention.triton.operands import Operands
from portable.kernels.attention.triton.plan import (
    PADDING,
    crowded,
    fitted,
    plan_forward,
    plan_keys,
    plan_queries,
    plan_rows,
    second,
)
from portable.kernels.attention.triton.varlen import ENTRY, ragged_bounds, ragged_tiles
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel, Workspace

SCAN = 1024
"""Sequences that a program looks at at a time."""


def forward(call: Call) -> Plan | Rejected:
    """Plan o and lse: the tables, then the tiles."""
    problem = _problem(call)
    if isinstance(problem, Rejected):
        return problem
    operands = Operands(problem, call.device, ("q", "k", "v", "o"), call.has("sinks"), pieces=True)
    if (reason := crowded(operands, call.device, "forward")) is not None:
        return reason
    config = fitted(problem, operands, call.config, call.device, both=False)
    launches = (*plan_tables(problem, "q"), plan_forward(problem, operands, config))
    return _plan(launches, _tables(problem, "q"))


def backward(call: Call) -> Plan | Rejected:
    """Plan dq, dk and dv: the tables, the reduction of do * o, dk and dv, and dq, for which the scores are
    computed again: how much dS there is only the card knows."""
    problem = _problem(call)
    if isinstance(problem, Rejected):
        return problem
    operands = Operands(problem, call.device, ("do", "q", "k", "v", "dq", "dk", "dv"))
    if (reason := crowded(operands, call.device, "backward")) is not None:
        return reason
    first = fitted(problem, operands, call.config, call.device, kept="BLOCK_N")
    last = fitted(problem, operands, second(call.config), call.device)
    lines = entries_of(problem.M, problem.offsets, PADDING)
    launches = (
        *plan_tables(problem, "qk"),
        plan_rows(problem, operands, lines * PADDING),
        plan_keys(problem, operands, lines * PADDING, first, 0, problem.G, 0),
        plan_queries(problem, operands, lines * PADDING, last),
    )
    spaces = (Workspace(name, (problem.H, lines * PADDING), "float32") for name in ("peak", "delta"))
    return _plan(launches, (*spaces, *_tables(problem, "qk")))


def _problem(call: Call) -> Problem | Rejected:
    """All tokens as one batch, where a row's stride is a batch's too."""
    problem = packed(call, MOST_TOKENS)
    if isinstance(problem, Rejected):
        return problem
    heads = {name: replace(each, batch=each.row) for name, each in problem.heads.items()}
    return replace(problem, heads=heads, offsets=call.axes["C"])


def _plan(launches: tuple[Launch, ...], spaces: tuple[Workspace, ...]) -> Plan | Rejected:
    programs = max(each.grid[0] for each in launches)
    if programs > MAX_GRID:
        return Rejected(f"{programs} programs are more than one launch takes ({MAX_GRID})")
    return Plan(launches, spaces)


def _entries(problem: Problem, side: str) -> int:
    return entries_of(problem.M if side == "q" else problem.N, problem.offsets, PADDING)


def _tables(problem: Problem, sides: str) -> tuple[Workspace, ...]:
    tables = (Workspace(f"{side}_tiles", (_entries(problem, side), ENTRY.value), "int32") for side in sides)
    return (Workspace("bounds", (problem.offsets + 1, 4), "int32"), *tables)


def plan_tables(problem: Problem, sides: str) -> tuple[Launch, Launch]:
    """The sequences' bounds, and the tables of the tiles of `sides`: "q", or "qk" for the keys' too."""
    count = problem.offsets
    constants: list[tuple[str, Any]] = [("BLOCK", min(SCAN, max(32, triton.next_power_of_2(count + 1))))]
    numbers = {"count": count, "M": problem.M, "N": problem.N}
    args: list[tuple[str, Argument]] = []
    args += [(f"{side}_offsets_ptr", Pointer(f"cu_seqlens_{side}")) for side in "qk"]
    args += [("bounds_ptr", Pointer("bounds")), *((name, Scalar("i32", x)) for name, x in numbers.items())]
    bounds = Launch(TritonKernel(ragged_bounds, tuple(constants), 4, 1), (count + 1, 1, 1), tuple(args))
    args = [("bounds_ptr", Pointer("bounds"))]
    args += [(f"{side}_tiles_ptr", Pointer(f"{side}_tiles")) for side in sides]
    args.append(("sequences", Scalar("i32", count + 1)))
    args += [(f"{side}_entries", Scalar("i32", _entries(problem, side))) for side in sides]
    if "k" not in sides:
        constants += [("k_tiles_ptr", None), ("k_entries", 0)]
    kernel = TritonKernel(ragged_tiles, tuple(constants), 4, 1)
    return bounds, Launch(kernel, (count + 1, len(sides), 1), tuple(args))
