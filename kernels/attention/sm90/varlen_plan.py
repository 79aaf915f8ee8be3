"""The plan of attention_varlen_backward on Hopper: the dense kernels' sources, with tables of tiles that
varlen_tiles.cu makes on the GPU."""

from __future__ import annotations

from portable.kernels.attention.packed import MOST_TOKENS, entries_of, packed, plan_tables, tables
from portable.kernels.attention.sm90 import bwd_plan
from portable.kernels.attention.sm90.bwd_arguments import unfit
from portable.kernels.attention.sm90.bwd_plan import KEYS, QUERIES, Blocks
from portable.kernels.attention.sm90.varlen_hdim256_plan import plan_wide_varlen
from portable.plan import Argument, Call, Plan, Pointer, Rejected, Scalar

# Key heads of sequences of about one length that are walked together. Measured 2026-11-22, 8, 16 and 32, of
# the dense kernel for the same work: a long tail full 0.997, 0.997, 0.971, causal 0.963, 0.970, 0.954;
# 8 x 4096 1.091, 1.108, 0.988, and 0.998, 0.966, 0.978; 223 sequences 0.936, -, 0.853, and 0.857, -, 0.799.
TOGETHER = 8


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
