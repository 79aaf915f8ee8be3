"""The plan of bwd_hdim256.cu and bwd_dq_hdim256.cu: attention's gradient on Hopper's tensor cores for
heads above 128."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from portable.kernels.attention.plan_arguments import C_NAMES, ELEMENTS
from portable.kernels.attention.problem import Problem
from portable.kernels.attention.sm90.bwd_arguments import (
    HERE,
    MOST_BLOCKS,
    map_of,
    numbers,
    prepare,
)
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar, Workspace

TILE = 64  # keys of a block, and queries of a step
SLOPES = TILE * TILE  # gradients of a block of scores
# Of gradients of scores in memory at a time. Measured 2026-11-22 on 2 x 8 heads of 256 and 8192: half as much
# is 6 % slower causal, a quarter 13 %; full attention is within 2 %.
_KEPT_BYTES = 1 << 30
_FEWEST_BLOCKS = 128  # of keys in a turn that does not take all: about as many as there are multiprocessors
_DQ_STAGES = 4
CONSUMERS = 2
# Of a thread's 240, for sums and for rows of k or v. Measured 2026-11-22 against no rows: heads of 192 and
# 128 are 3 to 7 % faster, of 256 with 64 columns 1 to 3 %, with 128 columns -1 to 2 %.
_REGISTERS = 144
TOGETHER = 8  # key heads walked together; 1 to 16 are within 3 %


class Turn(NamedTuple):
    """What is kept at a time: the blocks of keys of some key heads, counted over all batches."""

    line: int
    lines: int
    block: int
    blocks: int


def plan_wide(call: Call, problem: Problem) -> Plan | Rejected:
    """Statistics; then per turn dk, dv and the gradients of scores, and dq."""
    blocks, key_blocks = -(-problem.M // TILE), -(-problem.N // TILE)
    lines, most = problem.B * problem.G, most_blocks(problem)
    if max(blocks * problem.B * problem.H, key_blocks * lines) > MOST_BLOCKS:
        return Rejected(f"more than {MOST_BLOCKS} tiles")
    each = problem.share * most * SLOPES * 2
    turns = tuple(turns_of(lines, key_blocks, _KEPT_BYTES // each))
    if not turns:
        return Rejected(f"gradients of scores take {each} bytes a block of keys")
    defines = defines_of(problem, ragged=False)
    main, of_dq = kernels_of(problem, defines, call.device.shared_memory)
    if main.shared > call.device.shared_memory:
        return Rejected(f"it takes {main.shared} bytes of shared memory")
    of_main, of_second = numbers_of(call, problem)
    summed = turns[0].blocks < key_blocks
    launches = [prepare(problem, defines, blocks, ("stats",))]
    for turn in turns:
        place = tuple((name, Scalar("i32", value)) for name, value in turn._asdict().items())
        launches += [
            Launch(
                main,
                (turn.lines * turn.blocks, 1, 1),
                (
                    *maps(problem, "q", "k", "v", "do", "dk", "dv"),
                    ("stats", Pointer("stats", True)),
                    ("kept", Pointer("kept", True)),
                    *place,
                    ("most", Scalar("i32", most)),
                    *of_main,
                ),
            ),
            Launch(
                of_dq,
                (turn.lines * problem.share * -(-blocks // CONSUMERS), 1, 1),
                (
                    *maps(problem, "k", "dq"),
                    ("kept", Pointer("kept", True)),
                    ("sums", Pointer("sums", True) if summed else Scalar("i64", 0)),
                    *place,
                    ("most", Scalar("i32", most)),
                    *of_second,
                ),
            ),
        ]
    heads, rows = turns[0].lines * problem.share, -(-blocks // CONSUMERS) * CONSUMERS * TILE
    spaces = (
        Workspace("stats", (problem.B * problem.H, blocks, TILE * 2), "float32"),
        Workspace("kept", (heads, turns[0].blocks, most, SLOPES), problem.dtype),
    )
    if summed:
        spaces += (Workspace("sums", (heads * rows * padded(problem.D),), "float32"),)
    return Plan(tuple(launches), spaces)


def defines_of(problem: Problem, *, ragged: bool) -> tuple[tuple[str, int | str], ...]:
    """What all kernels of a plan are compiled for."""
    return (
        ("ELEMENT", ELEMENTS[problem.dtype]),
        ("HEAD", next(size for size in (64, 128, 256) if size >= problem.E)),
        ("KEYS", TILE),
        ("QUERIES", TILE),
        ("RAGGED", int(ragged)),
        ("INNER", 0),
    )


def numbers_of(
    call: Call, problem: Problem
) -> tuple[tuple[tuple[str, Argument], ...], tuple[tuple[str, Argument], ...]]:
    """The last arguments of the main kernel and of dq's."""
    given = dict(numbers(problem, call.config.get("GROUP") or TOGETHER, 1))
    given["heads"] = Scalar("i32", problem.H)
    of_main = ("queries", "keys", "groups", "share", "together", "left", "right", "scale", "to_score", "cap")
    of_second = ("queries", "keys", "heads", "share", "left", "right", "scale")
    return tuple((name, given[name]) for name in of_main), tuple((name, given[name]) for name in of_second)


def kernels_of(
    problem: Problem, defines: tuple[tuple[str, int | str], ...], shared_memory: int
) -> tuple[NativeKernel, NativeKernel]:
    """The main kernel, with the longest ring that fits, and dq's. Packed sequences take barriers beyond."""
    d, e = padded(problem.D), padded(problem.E)
    ragged = bool(dict(defines)["RAGGED"])
    stages = 3 if _shared(d, e, 3) <= shared_memory else 2
    columns = (*defines, ("HEAD_D", d), ("HEAD_E", e))
    of_main = (
        ("HELD_D", held(d, e)),
        ("HELD_E", held(e, d)),
        ("STAGES", stages),
        ("CAPPED", int(problem.softcap is not None)),
    )
    ring = _DQ_STAGES * (TILE * d * 2 + CONSUMERS * SLOPES * 2 + 16)
    return (
        NativeKernel(
            HERE / "bwd_hdim256.cu",
            "attention_backward_wide",
            384,
            (*columns, *of_main),
            _shared(d, e, stages) + (16 + stages * 16 if ragged else 0),
        ),
        NativeKernel(
            HERE / "bwd_dq_hdim256.cu",
            "attention_backward_wide_dq",
            (1 + CONSUMERS) * 128,
            (*columns, ("STAGES", _DQ_STAGES)),
            ring + (8 if ragged else 0),
        ),
    )


def padded(columns: int) -> int:
    """Columns as the kernels hold them."""
    return -(-columns // 64) * 64


def turns_of(lines: int, key_blocks: int, slots: int) -> Iterator[Turn]:
    """All key heads with all blocks of keys, in turns of about one size of at most `slots` blocks; none where
    turns would be too small."""
    if slots >= key_blocks:
        count = -(-lines // (slots // key_blocks))
        each = -(-lines // count)
        for line in range(0, lines, each):
            yield Turn(line, min(each, lines - line), 0, key_blocks)
    elif slots >= _FEWEST_BLOCKS:
        each = -(-key_blocks // -(-key_blocks // slots))
        for line in range(lines):
            for block in range(0, key_blocks, each):
                yield Turn(line, 1, block, min(each, key_blocks - block))


def most_blocks(problem: Problem) -> int:
    """The most blocks of queries that see a block of keys."""
    whole = -(-problem.M // TILE)
    if problem.left is None or problem.right is None:
        return whole
    return min(whole, (problem.left + problem.right + 2 * TILE - 2) // TILE + 1)


def held(columns: int, sums: int) -> int:
    """How many columns of k, or of v, a warpgroup's registers hold beside its sums, of dv or of dk."""
    return min(columns, (_REGISTERS - sums // 2) * 4)


def maps(problem: Problem, *names: str) -> tuple[tuple[str, Argument], ...]:
    return tuple((f"map_{C_NAMES.get(name, name)}", map_of(problem, name, TILE)) for name in names)


def _shared(columns_d: int, columns_e: int, stages: int) -> int:
    """K, v, the ring of q, do and statistics, two buffers of probabilities and of slopes, barriers."""
    rows = TILE * (columns_d + columns_e) * 2
    return rows + stages * (rows + TILE * 8 + 32) + 4 * SLOPES * 2 + 48
