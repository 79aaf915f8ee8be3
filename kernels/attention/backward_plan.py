"""The plan of backward.cu and backward_ends.cu: attention's gradient on Hopper's tensor cores."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from portable.backends.cuda.tensor_map import TensorMap
from portable.kernels.attention.problem import Heads, Problem, problem_of
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar, Workspace

HERE = Path(__file__).resolve().parent
_ELEMENTS = {"bfloat16": "bf16", "float16": "f16"}
KEYS = 128  # of a block's tile
QUERIES = {64: 128, 128: 64}  # of a step, by head size as the kernel holds it: what the registers hold
_STAGES = 2
_PART = 64 * 64  # a step's sums of dq are two blocks of as many
_RAGGED_BARRIERS = 48  # bytes: of what crosses a sequence's end
_MOST_ROWS = 2**28
_UNBOUNDED = 2**29
_MOST_BLOCKS = 2**31 - 1
_LOG2_E = math.log2(math.e)
# Key heads walked together. The fewer blocks of keys of one head run at a time, the less they wait for each
# other; the more, the more they share through L2. Measured 2026-11-21 on 8192 queries and keys, 4, 8, 16 and
# 32 together, of cuDNN: causal 0.97, 1.03, 1.06, 1.07 (heads of 64: 0.93, 1.06, 1.12, 1.16), full the same.
TOGETHER = 32


class Blocks(NamedTuple):
    """Blocks of queries of a head, blocks of keys of all key heads, and the workspace of their
    counter. For packed sequences also what the kernels are told of them."""

    queries: int
    keys: int
    claimed: str = "claimed"
    of_ends: tuple[tuple[str, Argument], ...] = ()
    of_main: tuple[tuple[str, Argument], ...] = ()


def plan_backward(call: Call) -> Plan | Rejected:
    """dq, dk and dv of 16-bit heads of up to 128 without a bias."""
    problem = problem_of(call)
    if isinstance(problem, Rejected):
        return problem
    if (reason := unfit(problem)) is not None:
        return reason
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
    if max(blocks * lines, key_blocks) > _MOST_BLOCKS:
        return Rejected(f"more than {_MOST_BLOCKS} tiles")
    defines = (
        ("ELEMENT", _ELEMENTS[problem.dtype]),
        ("HEAD", head),
        ("KEYS", KEYS),
        ("QUERIES", queries),
        ("RAGGED", int(ragged)),
    )
    ends = HERE / "backward_ends.cu"
    prepare = NativeKernel(
        ends, "attention_backward_prepare", 256, (*defines, ("DLSE", int(problem.has("dlse"))), ("DQ_SUMS", 1))
    )
    main = NativeKernel(
        HERE / "backward.cu",
        "attention_backward",
        512,
        (
            *defines,
            ("STAGES", _STAGES),
            ("PERSISTENT", persistent),
            ("CAPPED", int(problem.softcap is not None)),
        ),
        shared,
    )
    finish = NativeKernel(ends, "attention_backward_finish", 256, (*defines, ("DLSE", 0), ("DQ_SUMS", 1)))
    counts = (("queries", Scalar("i32", problem.M)), ("heads", Scalar("i32", problem.H)))
    return Plan(
        (
            Launch(
                prepare,
                (blocks * lines, 1, 1),
                (
                    ("dout", Pointer("do", True)),
                    ("out", Pointer("o", True)),
                    ("lse", Pointer("lse")),
                    ("dlse", Pointer("dlse") if problem.has("dlse") else Scalar("i64", 0)),
                    *_spaces("stats", "turns"),
                    ("claimed", Pointer(count.claimed, True)),
                    *counts,
                    ("columns", Scalar("i32", problem.E)),
                    *(each for name in ("do", "o", "lse", "dlse") for each in _strides(problem, name)),
                    *count.of_ends,
                ),
            ),
            Launch(
                main,
                (min(key_blocks, call.device.multiprocessors) if persistent else key_blocks, 1, 1),
                (
                    *_maps(problem, queries),
                    *_spaces("stats", "sums", "turns"),
                    ("claimed", Pointer(count.claimed, True)),
                    *_numbers(problem, call.config.get("GROUP") or TOGETHER, key_blocks),
                    *count.of_main,
                ),
            ),
            Launch(
                finish,
                (blocks * lines, 1, 1),
                (
                    *_spaces("sums", "turns"),
                    ("dq", Pointer("dq", True)),
                    ("scale", Scalar("f32", problem.scale)),
                    *counts,
                    ("columns", Scalar("i32", problem.D)),
                    *_strides(problem, "dq"),
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


def _spaces(*names: str) -> tuple[tuple[str, Argument], ...]:
    return tuple((name, Pointer(name, True)) for name in names)


def unfit(problem: Problem) -> Rejected | None:
    if max(problem.D, problem.E) > 128 or problem.D % 8 or problem.E % 8:
        return Rejected(f"heads of {problem.D} and {problem.E}, not multiples of 8 up to 128")
    if problem.has("bias"):
        return Rejected("it adds no bias")
    if problem.softcap == 0:
        return Rejected("a softcap of 0 leaves no scores")
    if not 0 < problem.M <= _MOST_ROWS or not 0 < problem.N <= _MOST_ROWS:
        return Rejected(f"{problem.M} queries and {problem.N} keys; it takes 1 to {_MOST_ROWS} of each")
    if 0 in (problem.B, problem.H):
        return Rejected("no heads")
    rows = {"q": problem.M, "do": problem.M, "o": problem.M, "dq": problem.M}
    for name in ("q", "k", "v", "do", "o", "dq", "dk", "dv"):
        heads = problem.heads[name]
        for size, stride in zip(_sizes(problem, name), _steps(heads), strict=True):
            if size > 1 and (stride <= 0 or stride * 2 % 16):
                return Rejected(f"{name} has a stride of {stride}, not a positive multiple of 8")
        if heads.alignment < 16:
            return Rejected(f"{name} does not start at a multiple of 16 bytes")
        columns = problem.E if name in ("v", "do", "o", "dv") else problem.D
        if rows.get(name, problem.N) > 1 and heads.row < columns:
            return Rejected(f"{name} has rows that overlap")
    return None


def _sizes(problem: Problem, name: str) -> tuple[int, int, int]:
    """Rows, heads and batches of a tensor."""
    shared = name in ("k", "v", "dk", "dv")
    return (problem.N, problem.G, problem.B) if shared else (problem.M, problem.H, problem.B)


def _steps(heads: Heads) -> tuple[int, int, int]:
    return heads.row, heads.head, heads.batch


def _strides(problem: Problem, name: str) -> tuple[tuple[str, Argument], ...]:
    """The strides of a tensor, zeros for one that is absent."""
    heads = problem.heads.get(name, Heads(name, 0, 0, 0, 16))
    return tuple(
        (f"{name}_{field}", Scalar("i64", getattr(heads, field))) for field in ("batch", "head", "row")
    )


def _maps(problem: Problem, queries: int) -> tuple[tuple[str, Argument], ...]:
    """Boxes of 64 columns and the rows that are copied at once; of dk and dv a warpgroup stores 64."""
    rows = {"q": queries, "k": KEYS, "v": KEYS, "do": queries, "dk": 64, "dv": 64}
    return tuple((f"map_{name}", _map(problem, name, lines)) for name, lines in rows.items())


def _map(problem: Problem, name: str, lines: int) -> TensorMap:
    sizes = _sizes(problem, name)
    columns = problem.E if name in ("v", "do", "dv") else problem.D
    # A dimension of one element may have any stride; the driver wants a legal one.
    steps = (
        2 * (stride if size > 1 else columns)
        for size, stride in zip(sizes, _steps(problem.heads[name]), strict=True)
    )
    return TensorMap(name, problem.dtype, (columns, *sizes), tuple(steps), (64, lines, 1, 1))


def _numbers(problem: Problem, together: int, tiles: int) -> tuple[tuple[str, Argument], ...]:
    def bound(reach: int | None) -> int:
        return _UNBOUNDED if reach is None else max(-_UNBOUNDED, min(reach, _UNBOUNDED))

    to_score, cap = problem.scale * _LOG2_E, 0.0
    if problem.softcap is not None:  # tanh(x) is 1 - 2 / (1 + exp2(2 * x * log2(e)))
        to_score, cap = 2 * to_score / problem.softcap, problem.softcap * _LOG2_E
    whole = {
        "queries": problem.M,
        "keys": problem.N,
        "groups": problem.G,
        "share": problem.share,
        "together": together,
        "left": bound(problem.left),
        "right": bound(problem.right),
    }
    floats = {"scale": problem.scale, "to_score": to_score, "cap": cap}
    return (
        *((name, Scalar("i32", value)) for name, value in whole.items()),
        ("all", Scalar("u32", tiles)),
        *((name, Scalar("f32", value)) for name, value in floats.items()),
    )


def padded(problem: Problem) -> int:
    """The head size as the kernel holds it."""
    return 64 if max(problem.D, problem.E) <= 64 else 128


def _shared(head: int, queries: int) -> int:
    """K, v, the ring of q, do and statistics, two buffers of score gradients and of dq's parts, barriers."""
    stage = 2 * queries * head * 2 + queries * 8 + 32
    return 2 * KEYS * head * 2 + _STAGES * stage + 2 * queries * KEYS * 2 + 2 * 2 * _PART * 4 + 144
