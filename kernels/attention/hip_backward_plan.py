"""Plans of attention's gradient on AMD's matrix units: backward_rows.hip, and backward.hip twice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from portable.kernels.attention.hip_forward_plan import plan_table, table_arguments
from portable.kernels.attention.packed import entries_of, packed, tables
from portable.kernels.attention.problem import Heads, Problem, problem_of
from portable.plan import (
    Argument,
    Call,
    Device,
    Launch,
    NativeKernel,
    Plan,
    Pointer,
    Rejected,
    Scalar,
    Workspace,
)

HERE = Path(__file__).resolve().parent
ELEMENTS = {"bfloat16": "bf16", "float16": "f16"}
STEP = 32  # lines that pass by at a time: what fits LDS twice, as rows and transposed
WAVES = 4
ROWS = 16  # queries of a block of backward_rows.hip
ROWS_THREADS = 256
LOG2_E = math.log2(math.e)
MOST_ROWS = 2**28
_UNBOUNDED = 2**30
_MOST_THREADS = 2**32 - 1  # of a grid's dimension


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the lines that a block owns lie on its waves: `groups` * 16 a wave, in registers where `held`, else
    in LDS. `resident` blocks a compute unit."""

    waves: int
    groups: int
    held: bool
    resident: int
    prefetch: bool

    @property
    def lines(self) -> int:
        return self.waves * self.groups * 16


def plan_backward(call: Call) -> Plan | Rejected:
    """dq, dk and dv of 16-bit heads: each query's statistics, then dk and dv, then dq."""
    problem = problem_of(call)
    return problem if isinstance(problem, Rejected) else plan_problem(problem, call)


def plan_varlen_backward(call: Call) -> Plan | Rejected:
    """The same of packed sequences, with a table of tiles before each walk over them."""
    problem = packed(call)
    return problem if isinstance(problem, Rejected) else plan_problem(problem, call, call.axes["C"])


def plan_problem(problem: Problem, call: Call, offsets: int | None = None) -> Plan | Rejected:
    """The launches of one problem, or of what as many `offsets` make of its tokens."""
    if problem.softcap == 0:
        return Rejected("a softcap of 0 leaves no scores")
    if max(problem.M, problem.N, offsets or 0) > MOST_ROWS:
        return Rejected(f"more than {MOST_ROWS} queries, keys or offsets")
    launches, least = [plan_rows(problem)], MOST_ROWS
    for keys in (True, False):
        tile = tiling(problem, call.device, keys)
        if tile is None:
            D, E = padded(problem)
            return Rejected(f"{call.device.arch} has too few registers and LDS for heads of {D} and {E}")
        if offsets is not None:
            launches.append(plan_table(call, problem, tile.lines, of_keys=keys))
        launches.append(plan_owner(problem, call.device, keys, tile, offsets))
        least = min(least, tile.lines)
    refused = too_many_blocks(launches)
    if refused is not None:
        return refused
    spaces = statistics(problem)
    if offsets is not None:  # in which there is room for either table
        spaces += tables(call, max(problem.M, problem.N), least)
    return Plan(tuple(launches), spaces)


def too_many_blocks(launches: Sequence[Launch]) -> Rejected | None:
    for launch in launches:
        assert isinstance(launch.kernel, NativeKernel)
        if launch.grid[0] * launch.kernel.threads > _MOST_THREADS:
            return Rejected(f"{launch.grid[0]} blocks are more than one launch takes")
    return None


def statistics(problem: Problem) -> tuple[Workspace, ...]:
    """What backward_rows.hip finds of each query. A step reads whole, beyond the last too."""
    count = problem.B * problem.H * problem.M + STEP
    return tuple(Workspace(name, (count,), "float32") for name in ("peak", "delta"))


def padded(problem: Problem) -> tuple[int, int]:
    """The head sizes as the kernels hold them."""
    return -(-problem.D // 32) * 32, -(-problem.E // 32) * 32


def tiling(problem: Problem, device: Device, keys: bool) -> Tiling | None:
    """The first tiling whose registers and LDS are there; where one wave owns all lines, one wave.

    A lane holds 8 sums of each strip of 16 lines and 32 columns (waves of 32: 16 columns), and of held lines
    16 bytes as often. Where both halves of a wave hold an operand (gfx11) those are 32 bytes, and operands
    under way take more too.
    """
    D, E = padded(problem)
    wide, twice = device.warp_size == 64, device.arch.startswith("gfx11")
    owned, others = (problem.N, problem.M) if keys else (problem.M, problem.N)
    if owned <= 16 and others <= STEP and max(D, E) <= 64:
        return TINY
    sums, passing = (D + E if keys else D), 2 * STEP * (D + E + (D + E if keys else D))
    for tile, most in TILINGS[wide]:
        registers = tile.groups * sums // (4 if wide else 2)
        if tile.held:
            registers += tile.groups * (D + E) // (8 if wide else 2 if twice else 4) + (32 if twice else 0)
        own = 0 if tile.held else tile.lines * 2 * (D + E)
        if registers <= most and (passing + own) * tile.resident <= device.shared_memory:
            return tile
    return None


TINY = Tiling(1, 1, True, 2, True)
TILINGS = {
    True: (
        (Tiling(4, 2, True, 2, True), 144),
        (Tiling(4, 1, True, 2, True), 144),
        (Tiling(8, 1, True, 1, True), 144),
        (Tiling(4, 1, True, 1, True), 192),
    ),
    False: (
        (Tiling(8, 1, True, 1, True), 160),
        (Tiling(8, 1, True, 1, False), 192),
        (Tiling(4, 1, False, 1, True), 80),
        (Tiling(4, 1, False, 1, False), 128),
    ),
}
"""By waves of 64 lanes or 32: each with the most registers for sums and held lines at which none spill."""


def plan_rows(problem: Problem) -> Launch:
    kernel = NativeKernel(
        HERE / "backward_rows.hip",
        "attention_backward_rows",
        ROWS_THREADS,
        (("T", ELEMENTS[problem.dtype]), ("DLSE", int(problem.has("dlse")))),
    )
    tiles = -(-problem.M // ROWS)
    numbers = {"heads": problem.H, "queries": problem.M, "columns": problem.E, "tiles": tiles}
    args = (
        ("dout", Pointer("do")),
        ("out", Pointer("o")),
        ("lse", Pointer("lse")),
        ("dlse", optional(problem, "dlse")),
        ("peak", Pointer("peak", True)),
        ("delta", Pointer("delta", True)),
        *whole(numbers),
        *(each for name in ("do", "o", "lse", "dlse") for each in strides(problem, name)),
    )
    return Launch(kernel, (tiles * problem.B * problem.H, 1, 1), args)


def plan_owner(problem: Problem, device: Device, keys: bool, tile: Tiling, offsets: int | None) -> Launch:
    """dk and dv by blocks of keys, or dq by blocks of queries."""
    D, E = padded(problem)
    threads = tile.waves * device.warp_size
    kernel = NativeKernel(
        HERE / "backward.hip",
        f"attention_backward_{'keys' if keys else 'queries'}",
        threads,
        (
            ("T", ELEMENTS[problem.dtype]),
            ("KEYS", int(keys)),
            ("HEAD_D", D),
            ("HEAD_E", E),
            ("WHOLE_D", int(problem.D == D)),
            ("WHOLE_E", int(problem.E == E)),
            ("STEP", STEP),
            ("WAVES", tile.waves),
            ("GROUPS", tile.groups),
            ("HELD", int(tile.held)),
            ("RESIDENT", tile.resident),
            ("PREFETCH", int(tile.prefetch)),
            ("SOFTCAP", int(problem.softcap is not None)),
            ("BIAS", int(problem.has("bias"))),
            ("RAGGED", int(offsets is not None)),
        ),
    )
    heads = problem.G if keys else problem.H
    tokens = problem.N if keys else problem.M
    tiles = -(-tokens // tile.lines) if offsets is None else entries_of(tokens, offsets, tile.lines)
    blocks = tiles * problem.B * heads
    written = ("dk", "dv") if keys else ("dq",)
    numbers = {
        "groups" if keys else "heads": heads,
        "share": problem.share,
        "queries": problem.M,
        "keys": problem.N,
        "columns_d": problem.D,
        "columns_e": problem.E,
        **bounds(problem, 0 if offsets is not None else problem.N - problem.M),
    }
    args = (
        ("dout", Pointer("do")),
        *((each, Pointer(each)) for each in ("q", "k", "v")),
        ("bias", optional(problem, "bias")),
        ("peak", Pointer("peak", True)),
        ("delta", Pointer("delta", True)),
        *((each, Pointer(each)) for each in written),
        *table_arguments(offsets),
        *whole(numbers),
        *scales(problem),
        ("factor", Scalar("f32", problem.scale)),
        *whole({"tiles": tiles, "blocks": blocks}),
        *(each for name in ("do", "q", "k", "v", "bias", *written) for each in strides(problem, name)),
    )
    return Launch(kernel, (blocks, 1, 1), args)


def bounds(problem: Problem, diagonal: int) -> dict[str, int]:
    """Query i sees key j where low <= j - i <= high."""
    return {
        "low": -_UNBOUNDED if problem.left is None else max(diagonal - problem.left, -_UNBOUNDED),
        "high": _UNBOUNDED if problem.right is None else min(diagonal + problem.right, _UNBOUNDED),
    }


def scales(problem: Problem) -> tuple[tuple[str, Argument], ...]:
    """What a kernel multiplies products with, and its cap, for exponentials of base 2."""
    to_score, cap = problem.scale * LOG2_E, 0.0
    if problem.softcap is not None:  # tanh(x) is 1 - 2 / (1 + exp2(2 * x * log2(e)))
        to_score, cap = 2 * to_score / problem.softcap, problem.softcap * LOG2_E
    return (("to_score", Scalar("f32", to_score)), ("cap", Scalar("f32", cap)))


def whole(numbers: dict[str, int]) -> tuple[tuple[str, Argument], ...]:
    return tuple((name, Scalar("i32", value)) for name, value in numbers.items())


def optional(problem: Problem, name: str) -> Argument:
    return Pointer(name) if problem.has(name) else Scalar("i64", 0)


def strides(problem: Problem, name: str) -> tuple[tuple[str, Argument], ...]:
    """The strides of a tensor, zeros for one that is absent."""
    heads = problem.heads.get(name, Heads(name, 0, 0, 0, 16))
    return tuple(
        (f"{name}_{field}", Scalar("i64", getattr(heads, field))) for field in ("batch", "head", "row")
    )
