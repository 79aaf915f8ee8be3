"""Plans of attention's gradient on AMD's matrix units: bwd_preprocess.hip, and bwd.hip twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from portable.kernels.attention.gfx.fwd_plan import plan_table
from portable.kernels.attention.packed import entries_of, packed, tables
from portable.kernels.attention.plan_arguments import (
    ELEMENTS,
    optional,
    scales,
    sizes,
    statistics_launch,
    strides,
    table_arguments,
    whole,
)
from portable.kernels.attention.problem import Problem, problem_of
from portable.plan import (
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
STEP = 32  # lines that pass by at a time, at most: what fits LDS twice, as rows and transposed
ROWS = 16  # queries of a block of bwd_preprocess.hip
ROWS_THREADS = 256
MOST_ROWS = 2**28
_MOST_THREADS = 2**32 - 1  # of a grid's dimension


@dataclass(frozen=True, slots=True)
class Sums:
    """What a launch finds: dk (`d`), dv (`e`) or both where blocks own `keys`, else dq (`d`)."""

    keys: bool
    d: bool
    e: bool

    @property
    def written(self) -> tuple[str, ...]:
        return ("dk", "dv") if self.keys else ("dq",)


DK_DV, DK, DV = Sums(True, True, True), Sums(True, True, False), Sums(True, False, True)
DQ = Sums(False, True, False)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the lines that a block owns lie on its waves: `groups` * 16 a wave, in registers where `held`, else
    in LDS. `resident` blocks a compute unit; `step` lines pass by at a time."""

    waves: int
    groups: int
    held: bool
    resident: int
    prefetch: bool
    step: int = STEP

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
    launches, least, table = [plan_rows(problem)], MOST_ROWS, None
    chosen = tilings(problem, call.device)
    if chosen is None:
        heads = f"{problem.D} and {problem.E}"
        return Rejected(f"{call.device.arch} has too few registers and LDS for heads of {heads}")
    for sums, tile in chosen:
        if offsets is not None and table != (sums.keys, tile.lines):
            table = sums.keys, tile.lines
            launches.append(plan_table(call, problem, tile.lines, of_keys=sums.keys))
        launches.append(plan_owner(problem, call.device, sums, tile, offsets))
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
    """What bwd_preprocess.hip finds of each query. A step reads whole, beyond the last too."""
    count = problem.B * problem.H * problem.M + STEP
    return tuple(Workspace(name, (count,), "float32") for name in ("peak", "delta"))


def padded(problem: Problem, device: Device) -> tuple[int, int]:
    """The head sizes as the kernels hold them. With waves of 32 the largest are held as 256 and 256: those in
    between, where threads share the moves of lines unevenly, spill."""
    D, E = -(-problem.D // 32) * 32, -(-problem.E // 32) * 32
    return (256, 256) if device.warp_size == 32 and D + E > 384 else (D, E)


def tilings(problem: Problem, device: Device) -> tuple[tuple[Sums, Tiling], ...] | None:
    """What is launched over keys, then over queries. dk and dv share a launch where one block holds both."""
    for launches in ((DK_DV, DQ), (DK, DV, DQ)):
        found = [(sums, tiling(problem, device, sums)) for sums in launches]
        chosen = tuple((sums, tile) for sums, tile in found if tile is not None)
        if len(chosen) == len(found):
            return chosen
    return None


def tiling(problem: Problem, device: Device, wanted: Sums) -> Tiling | None:
    """The first tiling whose registers and LDS are there; where one wave owns all lines, one wave.

    A lane holds 8 sums of each strip of 16 lines and 32 columns (waves of 32: 16 columns), and of held lines
    16 bytes as often, or 32 where both halves of a wave hold an operand (gfx11). dv alone needs no gradients
    of scores: neither own lines nor rows of E columns.
    """
    D, E = padded(problem, device)
    wide, twice = device.warp_size == 64, device.arch.startswith("gfx11")
    owned, others = (problem.N, problem.M) if wanted.keys else (problem.M, problem.N)
    if owned <= 16 and others <= STEP and max(D, E) <= 64:
        return TINY
    sums, rows = D * wanted.d + E * wanted.e, D + E * wanted.d
    for tile, most, most_rows in TILINGS["gfx9" if wide else "gfx11" if twice else "gfx12"]:
        registers = tile.groups * sums // (4 if wide else 2)
        if tile.held:
            registers += tile.groups * rows // (8 if wide else 2 if twice else 4)
        own = 0 if tile.held else tile.lines * 2 * rows
        passing = 2 * tile.step * (rows + sums)
        fits = (passing + own) * tile.resident <= device.shared_memory
        if registers <= most and rows <= most_rows and fits:
            return tile
    return None


TINY = Tiling(1, 1, True, 2, True)
IN_LDS = (
    (Tiling(4, 1, False, 1, True), 80, 512),
    (Tiling(4, 1, False, 1, False), 128, 512),
    (Tiling(4, 1, False, 1, True, 16), 112, 512),
    (Tiling(4, 1, False, 1, False, 16), 128, 512),
    (Tiling(2, 1, False, 1, False, 16), 128, 512),
)
TILINGS = {
    "gfx9": (
        (Tiling(4, 2, True, 2, True), 144, 512),
        (Tiling(4, 1, True, 2, True), 144, 512),
        (Tiling(8, 1, True, 1, True), 144, 512),
        (Tiling(4, 1, True, 1, True), 192, 512),
    ),
    "gfx11": ((Tiling(8, 1, True, 1, True), 128, 512), (Tiling(8, 1, True, 1, False), 152, 512), *IN_LDS),
    "gfx12": ((Tiling(8, 1, True, 1, True), 160, 512), (Tiling(8, 1, True, 1, False), 192, 256), *IN_LDS),
}
"""By card: each with the most registers for sums and held lines, and the most columns of rows, at which none
spill."""


def plan_rows(problem: Problem) -> Launch:
    kernel = NativeKernel(
        HERE / "bwd_preprocess.hip",
        "attention_backward_rows",
        ROWS_THREADS,
        (("T", ELEMENTS[problem.dtype]), ("DLSE", int(problem.has("dlse")))),
    )
    return statistics_launch(problem, kernel, ROWS, ("peak", "delta"))


def plan_owner(problem: Problem, device: Device, sums: Sums, tile: Tiling, offsets: int | None) -> Launch:
    """dk and dv by blocks of keys, or dq by blocks of queries."""
    D, E = padded(problem, device)
    keys = sums.keys
    threads = tile.waves * device.warp_size
    kernel = NativeKernel(
        HERE / "bwd.hip",
        f"attention_backward_{'keys' if keys else 'queries'}",
        threads,
        (
            ("T", ELEMENTS[problem.dtype]),
            ("KEYS", int(keys)),
            ("HEAD_D", D),
            ("HEAD_E", E),
            ("WHOLE_D", int(problem.D == D)),
            ("WHOLE_E", int(problem.E == E)),
            ("SUM_D", int(sums.d)),
            ("SUM_E", int(sums.e)),
            ("STEP", tile.step),
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
    numbers = sizes(problem, 0 if offsets is not None else problem.N - problem.M, keys)
    args = (
        ("dout", Pointer("do")),
        *((each, Pointer(each)) for each in ("q", "k", "v")),
        ("bias", optional(problem, "bias")),
        ("peak", Pointer("peak", True)),
        ("delta", Pointer("delta", True)),
        *((each, Pointer(each)) for each in sums.written),
        *table_arguments(offsets),
        *whole(numbers),
        *scales(problem),
        ("factor", Scalar("f32", problem.scale)),
        *whole({"tiles": tiles, "blocks": blocks}),
        *(each for name in ("do", "q", "k", "v", "bias", *sums.written) for each in strides(problem, name)),
    )
    return Launch(kernel, (blocks, 1, 1), args)
