"""The plan of backward_wide.cu and backward_wide_dq.cu: attention's gradient on Hopper's tensor cores for
heads above 128."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from portable.kernels.attention.backward_arguments import (
    ELEMENTS,
    HERE,
    MOST_BLOCKS,
    map_of,
    numbers,
    prepare,
)
from portable.kernels.attention.problem import Problem
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar, Workspace

TILE = 64  # keys of a block, and queries of a step
_SLOPES = TILE * TILE  # gradients of a block of scores
_KEPT_BYTES = 1 << 30  # of gradients of scores in memory at a time
_FEWEST_BLOCKS = 128  # of keys in a turn that does not take all: about as many as there are multiprocessors
_DQ_STAGES = 4
_CONSUMERS = 2
_REGISTERS = 160  # of a thread's 240, for sums and for rows of k or v
TOGETHER = 4  # key heads walked together


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
    each = problem.share * most * _SLOPES * 2
    turns = tuple(turns_of(lines, key_blocks, _KEPT_BYTES // each))
    if not turns:
        return Rejected(f"gradients of scores take {each} bytes a block of keys")
    columns_d, columns_e = (-(-size // 64) * 64 for size in (problem.D, problem.E))
    stages = 3 if _shared(columns_d, columns_e, 3) <= call.device.shared_memory else 2
    shared = _shared(columns_d, columns_e, stages)
    if shared > call.device.shared_memory:
        return Rejected(f"it takes {shared} bytes of shared memory")
    defines = (
        ("ELEMENT", ELEMENTS[problem.dtype]),
        ("HEAD", next(size for size in (64, 128, 256) if size >= columns_e)),
        ("KEYS", TILE),
        ("QUERIES", TILE),
        ("RAGGED", 0),
        ("INNER", 0),
    )
    columns = (("HEAD_D", columns_d), ("HEAD_E", columns_e))
    main = NativeKernel(
        HERE / "backward_wide.cu",
        "attention_backward_wide",
        384,
        (
            *defines,
            *columns,
            ("HELD_D", held(columns_d, columns_e)),
            ("HELD_E", held(columns_e, columns_d)),
            ("STAGES", stages),
            ("CAPPED", int(problem.softcap is not None)),
        ),
        shared,
    )
    of_dq = NativeKernel(
        HERE / "backward_wide_dq.cu",
        "attention_backward_wide_dq",
        (1 + _CONSUMERS) * 128,
        (*defines, *columns, ("STAGES", _DQ_STAGES)),
        _DQ_STAGES * (TILE * columns_d * 2 + _CONSUMERS * _SLOPES * 2 + 16),
    )
    given = dict(numbers(problem, call.config.get("GROUP") or TOGETHER, 1))
    of_main = ("queries", "keys", "groups", "share", "together", "left", "right", "scale", "to_score", "cap")
    given["heads"] = Scalar("i32", problem.H)
    of_second = ("queries", "keys", "heads", "share", "left", "right", "scale")
    summed = turns[0].blocks < key_blocks
    launches = [prepare(problem, defines, blocks, ("stats",))]
    for turn in turns:
        place = tuple((name, Scalar("i32", value)) for name, value in turn._asdict().items())
        launches += [
            Launch(
                main,
                (turn.lines * turn.blocks, 1, 1),
                (
                    *_maps(problem, "q", "k", "v", "do", "dk", "dv"),
                    ("stats", Pointer("stats", True)),
                    ("kept", Pointer("kept", True)),
                    *place,
                    ("most", Scalar("i32", most)),
                    *((name, given[name]) for name in of_main),
                ),
            ),
            Launch(
                of_dq,
                (turn.lines * problem.share * -(-blocks // _CONSUMERS), 1, 1),
                (
                    *_maps(problem, "k", "dq"),
                    ("kept", Pointer("kept", True)),
                    ("sums", Pointer("sums", True) if summed else Scalar("i64", 0)),
                    *place,
                    ("most", Scalar("i32", most)),
                    *((name, given[name]) for name in of_second),
                ),
            ),
        ]
    heads, rows = turns[0].lines * problem.share, -(-blocks // _CONSUMERS) * _CONSUMERS * TILE
    spaces = (
        Workspace("stats", (problem.B * problem.H, blocks, TILE * 2), "float32"),
        Workspace("kept", (heads, turns[0].blocks, most, _SLOPES), problem.dtype),
    )
    if summed:
        spaces += (Workspace("sums", (heads * rows * columns_d,), "float32"),)
    return Plan(tuple(launches), spaces)


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


def _maps(problem: Problem, *names: str) -> tuple[tuple[str, Argument], ...]:
    return tuple((f"map_{name}", map_of(problem, name, TILE)) for name in names)


def _shared(columns_d: int, columns_e: int, stages: int) -> int:
    """K, v, the ring of q, do and statistics, two buffers of probabilities and of slopes, barriers."""
    rows = TILE * (columns_d + columns_e) * 2
    return rows + stages * (rows + TILE * 8 + 32) + 4 * _SLOPES * 2 + 48
