"""The plan of bwd.cu and bwd_ends.cu: attention's gradient on Hopper's tensor cores."""

from __future__ import annotations

from typing import NamedTuple

from portable.kernels.attention.plan_arguments import C_NAMES, ELEMENTS, strides
from portable.kernels.attention.problem import Problem, problem_of
from portable.kernels.attention.sm90.bwd_arguments import (
    ENDS,
    HERE,
    MOST_BLOCKS,
    counts_of,
    map_of,
    numbers,
    prepare,
    spaces,
    unfit,
)
from portable.kernels.attention.sm90.bwd_hdim256_plan import plan_wide
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar, Workspace

KEYS = 128  # of a block's tile
QUERIES = {64: 128, 128: 64}  # of a step, by head size as the kernel holds it: what the registers hold
_STAGES = 2
_PART = 64 * 64  # a step's sums of dq are two blocks of as many
_RAGGED_BARRIERS = 48  # bytes: of what crosses a sequence's end
_FEW_ROWS = 8192


class Blocks(NamedTuple):
    """Blocks of queries of a head, blocks of keys of all key heads, and the workspace of their
    counter. For packed sequences also what the kernels are told of them."""

    queries: int
    keys: int
    claimed: str = "claimed"
    of_ends: tuple[tuple[str, Argument], ...] = ()
    of_main: tuple[tuple[str, Argument], ...] = ()


def together(problem: Problem) -> int:
    """Key heads walked together. The fewer blocks of keys of one head run at a time, the less they wait for
    each other; the more, the more they share through L2. Measured 2026-11-21 on 8192 queries and keys, 4, 8,
    16 and 32 together, of cuDNN: causal 0.97, 1.03, 1.06, 1.07 (heads of 64: 0.93, 1.06, 1.12, 1.16), full
    the same. And 2026-11-22, full, 8, 16 and 32, us: 8 x 4096, 32 heads on 8, 10969, 10776, 11011; 16 x 4096,
    32 on 4, 21668, 21793, 25352; others within 2 %."""
    return 16 if problem.right is None else 32


def heads_inside(problem: Problem) -> bool:
    """Whether a block of keys walks all heads of a block of queries before the next block of queries. Where
    the right is bounded, later blocks of keys then wait less; but more rows are under way. Measured
    2026-11-22, causal, query heads on a key head and queries, gain: 4, 512 15 % (heads of 64 10 %); 8, 512
    13 %; 8, 1024 4 %; 4, 2048 2 % (7 %); 4, 4096 0; 8, 4096 -3 to -15 %. Full mostly loses, up to 3 %."""
    return problem.right is not None and problem.share > 1 and problem.share * problem.M <= _FEW_ROWS


def plan_backward(call: Call) -> Plan | Rejected:
    """dq, dk and dv of 16-bit heads of up to 256 without a bias."""
    problem = problem_of(call)
    if isinstance(problem, Rejected):
        return problem
    if (reason := unfit(problem, 256)) is not None:
        return reason
    if max(problem.D, problem.E) > 128:
        return plan_wide(call, problem)
    queries = QUERIES[padded(problem)]
    keys = -(-problem.N // KEYS) * problem.B * problem.G
    found = launches(call, problem, Blocks(-(-problem.M // queries), keys))
    if isinstance(found, Rejected):
        return found
    return Plan(found.launches, (*found.workspaces, Workspace("claimed", (1,), "int32")))


def launches(call: Call, problem: Problem, count: Blocks) -> Plan | Rejected:
    """Before, the main kernel, and after."""
    head = padded(problem)
    queries = QUERIES[head]
    ragged = bool(count.of_main)
    shared = _shared(head, queries) + (_RAGGED_BARRIERS if ragged else 0)
    if shared > call.device.shared_memory:
        return Rejected(f"it takes {shared} bytes of shared memory")
    # Measured 2026-11-21: heads of 64 gain 5 to 8 % by claiming tiles; with heads of 128 a claimed tile,
    # unlike a block's own, takes registers that are not there (15 % slower).
    persistent = int(head == 64 and not ragged)
    blocks, key_blocks = count.queries, count.keys
    lines = problem.B * problem.H
    if max(blocks * lines, key_blocks) > MOST_BLOCKS:
        return Rejected(f"more than {MOST_BLOCKS} tiles")
    defines = (
        ("ELEMENT", ELEMENTS[problem.dtype]),
        ("HEAD", head),
        ("KEYS", KEYS),
        ("QUERIES", queries),
        ("RAGGED", int(ragged)),
    )
    main = NativeKernel(
        HERE / "bwd.cu",
        "attention_backward",
        512,
        (
            *defines,
            ("STAGES", _STAGES),
            ("PERSISTENT", persistent),
            ("CAPPED", int(problem.softcap is not None)),
            ("INNER", int(ragged or heads_inside(problem))),
        ),
        shared,
    )
    finish = NativeKernel(ENDS, "attention_backward_finish", 256, (*defines, ("DLSE", 0), ("DQ_SUMS", 1)))
    return Plan(
        (
            prepare(problem, defines, blocks, ("stats", "turns", count.claimed), count.of_ends),
            Launch(
                main,
                (min(key_blocks, call.device.multiprocessors) if persistent else key_blocks, 1, 1),
                (
                    *_maps(problem, queries),
                    *spaces("stats", "sums", "turns"),
                    ("claimed", Pointer(count.claimed, True)),
                    *numbers(problem, call.config.get("GROUP") or together(problem), key_blocks),
                    *count.of_main,
                ),
            ),
            Launch(
                finish,
                (blocks * lines, 1, 1),
                (
                    *spaces("sums", "turns"),
                    ("dq", Pointer("dq", True)),
                    ("scale", Scalar("f32", problem.scale)),
                    *counts_of(problem),
                    ("columns", Scalar("i32", problem.D)),
                    *strides(problem, "dq"),
                    *count.of_ends,
                ),
            ),
        ),
        (
            Workspace("stats", (lines, blocks, queries * 2), "float32"),
            Workspace("turns", (lines, blocks), "int32"),
            Workspace("sums", (lines, blocks, 2 * _PART), "float32"),
        ),
    )


def _maps(problem: Problem, queries: int) -> tuple[tuple[str, Argument], ...]:
    """Boxes of 64 columns and the rows that are copied at once; of dk and dv a warpgroup stores 64."""
    rows = {"q": queries, "k": KEYS, "v": KEYS, "do": queries, "dk": 64, "dv": 64}
    return tuple(
        (f"map_{C_NAMES.get(name, name)}", map_of(problem, name, lines)) for name, lines in rows.items()
    )


def padded(problem: Problem) -> int:
    """The head size as the kernel holds it."""
    return 64 if max(problem.D, problem.E) <= 64 else 128


def _shared(head: int, queries: int) -> int:
    """K, v, the ring of q, do and statistics, two buffers of score gradients and of dq's parts, barriers."""
    stage = 2 * queries * head * 2 + queries * 8 + 32
    return 2 * KEYS * head * 2 + _STAGES * stage + 2 * queries * KEYS * 2 + 2 * 2 * _PART * 4 + 144
