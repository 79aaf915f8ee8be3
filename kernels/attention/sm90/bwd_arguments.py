"""What the plans of attention's gradient on Hopper share: which calls they take, and arguments."""

from __future__ import annotations

from pathlib import Path

from portable.kernels.attention.plan_arguments import optional, strides, whole
from portable.kernels.attention.problem import Heads, Problem
from portable.plan import Argument, Launch, NativeKernel, Pointer, Rejected, Scalar, TensorMap

HERE = Path(__file__).resolve().parent
ENDS = HERE / "bwd_ends.cu"
_MOST_ROWS = 2**28
_UNBOUNDED = 2**29
MOST_BLOCKS = 2**31 - 1


def prepare(
    problem: Problem,
    defines: tuple[tuple[str, int | str], ...],
    blocks: int,
    written: tuple[str, ...],
    of_ends: tuple[tuple[str, Argument], ...] = (),
) -> Launch:
    """The kernel before: statistics of the queries, and with sums of dq their counters. `written` are its
    workspaces; `blocks` those of queries of a head."""
    kernel = NativeKernel(
        ENDS,
        "attention_backward_prepare",
        256,
        (*defines, ("DLSE", int(problem.has("dlse"))), ("DQ_SUMS", int(len(written) > 1))),
    )
    args = (
        ("dout", Pointer("do", True)),
        ("out", Pointer("o", True)),
        ("lse", Pointer("lse")),
        ("dlse", optional(problem, "dlse")),
        *zip(("stats", "turns", "claimed"), (Pointer(name, True) for name in written), strict=False),
        *counts_of(problem),
        ("columns", Scalar("i32", problem.E)),
        *strides(problem, "do"),
        *strides(problem, "o", "out"),
        *(each for name in ("lse", "dlse") for each in strides(problem, name)),
        *of_ends,
    )
    return Launch(kernel, (blocks * problem.B * problem.H, 1, 1), args)


def counts_of(problem: Problem) -> tuple[tuple[str, Argument], ...]:
    return ("queries", Scalar("i32", problem.M)), ("heads", Scalar("i32", problem.H))


def spaces(*names: str) -> tuple[tuple[str, Argument], ...]:
    return tuple((name, Pointer(name, True)) for name in names)


def unfit(problem: Problem, most: int = 128) -> Rejected | None:
    """Why heads of up to `most` columns do not serve a call."""
    if max(problem.D, problem.E) > most or problem.D % 8 or problem.E % 8:
        return Rejected(f"heads of {problem.D} and {problem.E}, not multiples of 8 up to {most}")
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


def map_of(problem: Problem, name: str, lines: int) -> TensorMap:
    sizes = _sizes(problem, name)
    columns = problem.E if name in ("v", "do", "dv") else problem.D
    # A dimension of one element may have any stride; the driver wants a legal one.
    steps = (
        2 * (stride if size > 1 else columns)
        for size, stride in zip(sizes, _steps(problem.heads[name]), strict=True)
    )
    return TensorMap(name, problem.dtype, (columns, *sizes), tuple(steps), (64, lines, 1, 1))


def numbers(problem: Problem, together: int, tiles: int) -> tuple[tuple[str, Argument], ...]:
    def bound(reach: int | None) -> int:
        return _UNBOUNDED if reach is None else max(-_UNBOUNDED, min(reach, _UNBOUNDED))

    to_score, cap = problem.score_factors
    counts = {
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
        *whole(counts),
        ("all", Scalar("u32", tiles)),
        *((name, Scalar("f32", value)) for name, value in floats.items()),
    )
