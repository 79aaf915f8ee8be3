"""The plan of backward_wide.cu and backward_wide_dq.cu: attention's gradient on Hopper's tensor cores for
heads above 128."""

from __future__ import annotations

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

_TILE = 64  # keys of a block, and queries of a step
_SLOPES = _TILE * _TILE  # gradients of a block of scores
_KEPT_BYTES = 1 << 30  # of gradients of scores in memory at a time
_DQ_STAGES = 4


def plan_wide(call: Call, problem: Problem) -> Plan | Rejected:
    """Statistics, then for as many key heads at a time as fit: dk, dv and the gradients of scores; dq."""
    columns_d, columns_e = (-(-size // 64) * 64 for size in (problem.D, problem.E))
    blocks, key_blocks = -(-problem.M // _TILE), -(-problem.N // _TILE)
    groups, most = problem.B * problem.G, _most_blocks(problem)
    each = problem.share * key_blocks * most * _SLOPES * 2
    slots = (call.config.get("KEPT") or _KEPT_BYTES) // each
    if not slots:
        return Rejected(f"gradients of scores take {each} bytes a key head")
    if max(blocks * problem.B * problem.H, key_blocks * groups) > MOST_BLOCKS:
        return Rejected(f"more than {MOST_BLOCKS} tiles")
    turns = -(-groups // slots)
    together = -(-groups // turns)
    defines = (
        ("ELEMENT", ELEMENTS[problem.dtype]),
        ("HEAD", next(size for size in (64, 128, 256) if size >= columns_e)),
        ("KEYS", _TILE),
        ("QUERIES", _TILE),
        ("RAGGED", 0),
    )
    columns = (("HEAD_D", columns_d), ("HEAD_E", columns_e))
    stages = 3 if _shared(columns_d, columns_e, 3) <= call.device.shared_memory else 2
    stages = call.config.get("STAGES") or stages
    shared = _shared(columns_d, columns_e, stages)
    if shared > call.device.shared_memory:
        return Rejected(f"it takes {shared} bytes of shared memory")
    main = NativeKernel(
        HERE / "backward_wide.cu",
        "attention_backward_wide",
        384,
        (*defines, *columns, ("STAGES", stages), ("CAPPED", int(problem.softcap is not None))),
        shared,
    )
    of_dq = NativeKernel(
        HERE / "backward_wide_dq.cu",
        "attention_backward_wide_dq",
        384,
        (*defines, *columns, ("STAGES", _DQ_STAGES)),
        _DQ_STAGES * (_TILE * columns_d * 2 + 2 * _SLOPES * 2 + 16),
    )
    launches = [prepare(problem, defines, blocks, ("stats",))]
    for first in range(0, groups, together):
        count = min(together, groups - first)
        launches += [
            Launch(
                main,
                (count * key_blocks, 1, 1),
                (
                    *_maps(problem, "q", "k", "v", "do", "dk", "dv"),
                    ("stats", Pointer("stats", True)),
                    *_kept(first, most),
                    *numbers(problem, together, key_blocks * groups),
                ),
            ),
            Launch(
                of_dq,
                (count * problem.share * -(-blocks // 2), 1, 1),
                (
                    *_maps(problem, "k", "dq"),
                    *_kept(first * problem.share, most),
                    *_sizes(problem),
                ),
            ),
        ]
    return Plan(
        tuple(launches),
        (
            Workspace("stats", (problem.B * problem.H, blocks, _TILE * 2), "float32"),
            Workspace("slopes", (together * problem.share, key_blocks, most, _SLOPES), problem.dtype),
        ),
    )


def _maps(problem: Problem, *names: str) -> tuple[tuple[str, Argument], ...]:
    return tuple((f"map_{name}", map_of(problem, name, _TILE)) for name in names)


def _kept(first: int, most: int) -> tuple[tuple[str, Argument], ...]:
    return ("slopes", Pointer("slopes", True)), ("first", Scalar("i32", first)), ("most", Scalar("i32", most))


def _sizes(problem: Problem) -> tuple[tuple[str, Argument], ...]:
    """What of the main kernel's numbers dq's kernel takes, and its heads."""
    given = dict(numbers(problem, 1, 1))
    names = ("queries", "keys", "heads", "share", "left", "right", "scale")
    return tuple((name, Scalar("i32", problem.H) if name == "heads" else given[name]) for name in names)


def _most_blocks(problem: Problem) -> int:
    """The most blocks of queries that see a block of keys."""
    whole = -(-problem.M // _TILE)
    if problem.left is None or problem.right is None:
        return whole
    return min(whole, (problem.left + problem.right + 2 * _TILE - 2) // _TILE + 1)


def _shared(columns_d: int, columns_e: int, stages: int) -> int:
    """K, v, the ring of q, do and statistics, two buffers of probabilities and of slopes, barriers."""
    rows = _TILE * (columns_d + columns_e) * 2
    return rows + stages * (rows + _TILE * 8 + 32) + 4 * _SLOPES * 2 + 48
