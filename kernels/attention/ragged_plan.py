"""The plans of attention_varlen and its gradient by Hopper's warpgroup products: the dense kernels' sources,
with tables of tiles that ragged_tiles.cu makes on the card."""

from __future__ import annotations

from portable.kernels.attention import backward_plan
from portable.kernels.attention.backward_plan import KEYS, QUERIES, TOGETHER, Blocks
from portable.kernels.attention.forward_plan import (
    MOST_TILES,
    Tile,
    arguments_of,
    bounds,
    configured,
    kernel_of,
    padded,
    refused,
    tiles_of,
)
from portable.kernels.attention.packed import entries_of, packed, plan_tables, tables
from portable.kernels.attention.problem import Problem
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar

_MOST_TOKENS = 2**28  # places and windows, at most 2 * (M + N), are added in 32 bits


def _tile(call: Call, problem: Problem) -> Tile:
    """One tile for all lengths, which are not known here: a sequence's bits do not hang on its neighbours'.
    Reckoned, not measured, for long-tailed mixes from the dense kernel's times (2026-11-22): the larger tile
    gains 6 to 11 % at heads of 64 without a bound on the right and 4 to 8 % at 256; elsewhere it gains 3 % at
    most and loses up to 9."""
    large, *others = tiles_of(call, problem)
    head = padded(problem.E)
    if head == 256 or (head == 64 and problem.right is None) or not others:
        return large
    return others[-1]


def plan_varlen(call: Call) -> Plan | Rejected:
    """Plan o and lse: the table of tiles, then blocks that claim them."""
    problem = packed(call)
    if isinstance(problem, Rejected):
        return problem
    if max(problem.M, problem.N, call.axes["C"]) > _MOST_TOKENS:
        return Rejected(f"more than {_MOST_TOKENS} tokens or sequences")
    if (reason := refused(problem)) is not None:
        return reason
    tile = configured(_tile(call, problem), call)
    kernel = kernel_of(call, problem, tile, ragged=True)
    if isinstance(kernel, Rejected):
        return kernel
    most = entries_of(problem.M, call.axes["C"], tile.m) * problem.H
    if most > MOST_TILES:
        return Rejected(f"{most} tiles exceed {MOST_TILES}")
    left, right = bounds(problem)
    backwards = right is not None and left is None  # a sequence's last queries see most keys
    args: tuple[tuple[str, Argument], ...] = (
        *arguments_of(call, problem, tile, 0),
        *((name, Pointer(name)) for name in ("bounds", "tiles", "counts")),
        ("count", Scalar("i32", call.axes["C"])),
    )
    blocks = min(most, call.device.multiprocessors) if problem.M else 0
    return Plan(
        (
            plan_tables(call, problem, tile.m, of_keys=False, together=1, backwards=backwards),
            Launch(kernel, (blocks, 1, 1), args),
        ),
        tables(call, problem.M, tile.m),
    )


def plan_varlen_backward(call: Call) -> Plan | Rejected:
    """Plan dq, dk and dv: the table of blocks of keys, then the dense kernel's three launches."""
    problem = packed(call)
    if isinstance(problem, Rejected):
        return problem
    if max(problem.M, problem.N, call.axes["C"]) > _MOST_TOKENS:
        return Rejected(f"more than {_MOST_TOKENS} tokens or sequences")
    if (reason := backward_plan.unfit(problem)) is not None:
        return reason
    count, queries = call.axes["C"], QUERIES[backward_plan.padded(problem)]
    lines = entries_of(problem.M, count, queries)
    of_ends: tuple[tuple[str, Argument], ...] = (
        ("bounds", Pointer("bounds")),
        ("count", Scalar("i32", count)),
        ("lines", Scalar("i32", lines)),
    )
    dk, dv = problem.heads["dk"], problem.heads["dv"]
    strides = {"dk_head": dk.head, "dk_row": dk.row, "dv_head": dv.head, "dv_row": dv.row}
    of_main: tuple[tuple[str, Argument], ...] = (
        ("bounds", Pointer("bounds")),
        ("tile_list", Pointer("tiles")),
        *of_ends[1:],
        ("dk", Pointer("dk", True)),
        ("dv", Pointer("dv", True)),
        *((name, Scalar("i64", value)) for name, value in strides.items()),
        ("dk_columns", Scalar("i32", problem.D)),
        ("dv_columns", Scalar("i32", problem.E)),
    )
    blocks = Blocks(lines, entries_of(problem.N, count, KEYS) * problem.G, "counts", of_ends, of_main)
    found = backward_plan.launches(call, problem, blocks)
    if isinstance(found, Rejected):
        return found
    # A block of keys waits for those before it, so they come first; of as many key heads as the dense kernel
    # walks together.
    together = max(1, (call.config.get("GROUP") or TOGETHER) // problem.G)
    table = plan_tables(call, problem, KEYS, of_keys=True, together=together, backwards=False)
    return Plan((table, *found.launches), (*found.workspaces, *tables(call, problem.N, KEYS)))
