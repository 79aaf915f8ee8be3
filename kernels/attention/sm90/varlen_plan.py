"""The plans of attention_varlen and its gradient by Hopper's warpgroup products: the dense kernels' sources,
with tables of tiles that varlen_tiles.cu makes on the card."""

from __future__ import annotations

from portable.kernels.attention.packed import MOST_TOKENS, entries_of, packed, plan_tables, tables
from portable.kernels.attention.problem import Problem
from portable.kernels.attention.sm90 import bwd_plan
from portable.kernels.attention.sm90.bwd_arguments import unfit
from portable.kernels.attention.sm90.bwd_plan import KEYS, QUERIES, Blocks
from portable.kernels.attention.sm90.fwd_plan import (
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
from portable.kernels.attention.sm90.varlen_hdim256_plan import plan_wide_varlen
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar

# Key heads of sequences of about one length that are walked together. Measured 2026-11-22, 8, 16 and 32, of
# the dense kernel for the same work: a long tail full 0.997, 0.997, 0.971, causal 0.963, 0.970, 0.954;
# 8 x 4096 1.091, 1.108, 0.988, and 0.998, 0.966, 0.978; 223 sequences 0.936, -, 0.853, and 0.857, -, 0.799.
TOGETHER = 8


def _tile(call: Call, problem: Problem) -> Tile:
    """One tile for all lengths, which are not known here: a sequence's bits do not hang on its neighbours'.
    Measured 2026-11-22 on a long tail of 74 lengths, of the dense kernel for the same work, full and causal:
    heads of 64 by 3 consumers 0.993 and 0.927, by 2 0.842 and 0.867; heads of 128 by 2 0.946 and 0.986, by 3
    0.923 and (another run) 0.898; turns gain 1 to 3 %."""
    large, *others = tiles_of(call, problem)
    tile = others[0] if others and padded(problem.E) == 128 else large
    return tile._replace(turns=1)


def _pack(problem: Problem, tile: Tile) -> int:
    """Query heads of one key head that share a tile, so that the end of a sequence wastes less of it. A
    warp's 16 rows are of one head; heads that do not step are one in the map: no box brings a second.
    Measured 2026-11-22, one and four, of the dense kernel for the same work, full and causal: a long tail
    0.948, 0.960 and 0.992, 1.014; 223 sequences 0.888, 0.917 and 0.879, 0.925; 8 x 4096 1.002, 1.000 and
    1.050, 1.048; heads of 64, a long tail 0.990, 1.031 and 0.930, 1.028."""
    fitting = (pack for pack in (4, 2) if problem.share % pack == 0 and tile.m % (16 * pack) == 0)
    return next(fitting, 1) if problem.heads["q"].head else 1


def plan_varlen(call: Call) -> Plan | Rejected:
    """Plan o and lse: the table of tiles, then blocks that claim them."""
    problem = packed(call, MOST_TOKENS)
    if isinstance(problem, Rejected):
        return problem
    if (reason := refused(problem)) is not None:
        return reason
    tile = configured(_tile(call, problem), call)
    pack = _pack(problem, tile)
    queries = tile.m // pack
    kernel = kernel_of(call, problem, tile, ragged=True, pack=pack)
    if isinstance(kernel, Rejected):
        return kernel
    most = entries_of(problem.M, call.axes["C"], queries) * (problem.H // pack)
    if most > MOST_TILES:
        return Rejected(f"{most} tiles exceed {MOST_TILES}")
    left, right = bounds(problem)
    backwards = right is not None and left is None  # a sequence's last queries see most keys
    args: tuple[tuple[str, Argument], ...] = (
        *arguments_of(call, problem, tile, 0, pack),
        *((name, Pointer(name)) for name in ("bounds", "tiles", "counts")),
        ("count", Scalar("i32", call.axes["C"])),
    )
    blocks = min(most, call.device.multiprocessors) if problem.M else 0
    return Plan(
        (
            plan_tables(call, problem, queries, of_keys=False, together=1, backwards=backwards),
            Launch(kernel, (blocks, 1, 1), args),
        ),
        tables(call, problem.M, queries),
    )


def plan_varlen_backward(call: Call) -> Plan | Rejected:
    """Plan dq, dk and dv: the table of blocks of keys, then the dense kernel's three launches."""
    problem = packed(call, MOST_TOKENS)
    if isinstance(problem, Rejected):
        return problem
    if (reason := unfit(problem, 256)) is not None:
        return reason
    if max(problem.D, problem.E) > 128:
        return plan_wide_varlen(call, problem)
    count, queries = call.axes["C"], QUERIES[bwd_plan.padded(problem)]
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
    found = bwd_plan.launches(call, problem, blocks)
    if isinstance(found, Rejected):
        return found
    # A block of keys waits for those before it, so they come first.
    together = max(1, (call.config.get("GROUP") or TOGETHER) // problem.G)
    table = plan_tables(call, problem, KEYS, of_keys=True, together=together, backwards=False)
    return Plan((table, *found.launches), (*found.workspaces, *tables(call, problem.N, KEYS)))
