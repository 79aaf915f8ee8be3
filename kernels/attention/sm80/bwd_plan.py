"""The plans of bwd.cu: attention's gradient by a warp's matrix instructions, sm_80 and later."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from portable.kernels.attention.packed import entries_of, packed, plan_tables, tables
from portable.kernels.attention.plan_arguments import (
    ELEMENTS,
    diagonals,
    optional,
    scales,
    statistics_launch,
    strides,
    table_arguments,
    whole,
)
from portable.kernels.attention.problem import Problem, problem_of
from portable.kernels.attention.sm80.fwd_plan import copied_bytes, padded
from portable.plan import (
    Argument,
    Call,
    Launch,
    NativeKernel,
    Plan,
    Pointer,
    Rejected,
    Scalar,
    Workspace,
)

HERE = Path(__file__).resolve().parent
_ROWS = 16  # queries of a block of bwd_preprocess.cu
_MOST_ROWS = 2**28  # places and windows are added in 32 bits
_MOST_BLOCKS = 2**31 - 1
_MOST_FACTOR = 2.0**100  # beyond, a score times it may leave float32
_FEW = 64  # lines that a group of each warp takes
_RESERVED = 1024  # bytes of a block that the card takes
_SUMS = 256  # columns of sums that a warp's registers hold for 16 lines
_REGISTERS = 200  # as `registers` counts: with more, kernels spill (sm_80, sm_90a, sm_100; 2026-11-22)


class Part(NamedTuple):
    """What a launch makes: of `keys`, the sums of D columns (dk), of E columns (dv), or both; else dq."""

    keys: bool
    of_d: bool
    of_e: bool

    def columns(self, d: int, e: int) -> int:
        return d * self.of_d + e * self.of_e


class Tile(NamedTuple):
    """Lines that pass by at a time, warps of a block, and groups of 16 own lines of a warp."""

    step: int
    warps: int
    groups: int

    @property
    def lines(self) -> int:
        return self.warps * self.groups * 16

    def shared(self, part: Part, d: int, e: int) -> int:
        """Own lines and two steps of the others, each line 16 bytes longer; results take their place."""
        own_d, own_e = 2 * d + 16, 2 * e + 16
        stage = self.step * (own_d + own_e + 8 * part.keys)
        own = self.lines * (own_d + own_e * part.of_d + 8 * (not part.keys))
        return max(own + 2 * stage, self.lines * (own_d * part.of_d + own_e * part.of_e))


_TILES = (
    (Tile(64, 4, 2), 2),
    (Tile(48, 4, 2), 2),
    (Tile(32, 4, 2), 2),
    (Tile(48, 4, 1), 2),
    (Tile(32, 4, 1), 2),
    (Tile(16, 4, 1), 2),
    (Tile(32, 4, 1), 1),
    (Tile(16, 4, 1), 1),
    (Tile(16, 2, 1), 1),
)
"""With how many blocks a multiprocessor should have room for: while one waits the other multiplies.

Measured 2026-11-22 (H200, 8192 queries and keys), of cuDNN. Heads of 128, full: dk and dv with 48 queries a
step 0.402, 32 and 64 0.39; one block of 8 warps 0.347; dq by 16 lines a warp 0.346, not 0.393. Heads of
64, causal: dk and dv by 32 lines 0.508, by 16 at most 0.473; dq with 64, 48 and 32 keys 0.549, 0.527, 0.508.
"""


def registers(problem: Problem, part: Part, tile: Tile, ragged: bool) -> int:
    """Of a thread, about, what sums and scores take, and what more a call wants to be kept over a step."""
    columns = part.columns(padded(problem.D), padded(problem.E))
    scores = tile.step * (1 + part.of_d + (part.of_d and problem.softcap is not None)) // 2
    more = 8 * part.keys + 8 * ragged + 16 * problem.has("bias")
    return tile.groups * (columns // 2 + scores) + more


def plan_backward(call: Call) -> Plan | Rejected:
    """dq, dk and dv: each query's statistics, then dk and dv, then dq."""
    problem = problem_of(call)
    return problem if isinstance(problem, Rejected) else plan_problem(problem, call)


def plan_varlen_backward(call: Call) -> Plan | Rejected:
    """The same of packed sequences, with a table of tiles before each walk over them."""
    problem = packed(call)
    return problem if isinstance(problem, Rejected) else plan_problem(problem, call, call.axes["C"])


def plan_problem(problem: Problem, call: Call, offsets: int | None = None) -> Plan | Rejected:
    """The launches of one problem, or of what as many `offsets` make of its tokens."""
    if (reason := _unfit(problem, offsets or 0)) is not None:
        return reason
    launches, least = [_plan_rows(problem)], _MOST_ROWS
    for part in parts_of(problem):
        tile = tile_for(problem, part, call)
        d, e = padded(problem.D), padded(problem.E)
        if (shared := tile.shared(part, d, e)) > call.device.shared_memory:
            return Rejected(f"{tile.lines} lines a block, {tile.step} a step, take {shared} bytes")
        if offsets is not None:
            backwards = not part.keys and problem.right is not None and problem.left is None
            launches.append(
                plan_tables(call, problem, tile.lines, of_keys=part.keys, together=1, backwards=backwards)
            )
        launches.append(_plan_part(problem, part, tile, offsets))
        least = min(least, tile.lines)
    for launch in launches:
        if launch.grid[0] > _MOST_BLOCKS:
            return Rejected(f"{launch.grid[0]} blocks are more than one launch takes ({_MOST_BLOCKS})")
    spaces = (Workspace("stats", (problem.B * problem.H, problem.M, 2), "float32"),)
    if offsets is not None:  # in which there is room for any table
        spaces += tables(call, max(problem.M, problem.N), least)
    return Plan(tuple(launches), spaces)


def parts_of(problem: Problem) -> tuple[Part, ...]:
    """dk and dv are made apart, each with scores of its own, where registers do not hold the sums of both."""
    apart = padded(problem.D) + padded(problem.E) > _SUMS
    of_keys = (Part(True, True, False), Part(True, False, True)) if apart else (Part(True, True, True),)
    return (*of_keys, Part(False, True, False))


def tile_for(problem: Problem, part: Part, call: Call) -> Tile:
    """The first tile that registers hold without a spill and shared memory as often as it should."""
    d, e, ragged = padded(problem.D), padded(problem.E), call.has("cu_seqlens_q")
    few = (problem.N if part.keys else problem.M) <= _FEW
    tile = _TILES[-1][0]
    for tile, resident in _TILES:
        taken = resident * tile.shared(part, d, e) + (resident - 1) * _RESERVED
        wide = registers(problem, part, tile, ragged) > _REGISTERS or (few and tile.groups > 1)
        if taken <= call.device.shared_memory and not wide:
            break
    return _configured(tile, part, call.config)


def _configured(tile: Tile, part: Part, config: Any) -> Tile:
    before = "" if part.keys else "DQ_"
    named = {"step": "STEP", "warps": "WARPS", "groups": "GROUPS"}
    return tile._replace(
        **{field: config[before + name] for field, name in named.items() if config.get(before + name)}
    )


def _unfit(problem: Problem, offsets: int) -> Rejected | None:
    if problem.dtype not in ELEMENTS:
        return Rejected(f"{problem.dtype} has no matrix instruction here; bfloat16 and float16 have")
    if max(problem.M, problem.N, offsets) > _MOST_ROWS:
        return Rejected(f"more than {_MOST_ROWS} queries, keys or offsets")
    if problem.softcap is not None and not problem.softcap > 0:
        return Rejected(f"a softcap of {problem.softcap} is not positive")
    if not all(abs(each) < _MOST_FACTOR for each in (problem.scale, *problem.score_factors)):
        return Rejected(f"a scale of {problem.scale} or its cap leaves float32")
    return None


def _plan_rows(problem: Problem) -> Launch:
    kernel = NativeKernel(
        HERE / "bwd_preprocess.cu",
        "attention_backward_mma_rows",
        256,
        (
            ("ELEMENT", ELEMENTS[problem.dtype]),
            ("COPY_BYTES", copied_bytes(problem, "do", "o")),
            ("DLSE", int(problem.has("dlse"))),
        ),
    )
    return statistics_launch(problem, kernel, _ROWS, ("stats",))


def _plan_part(problem: Problem, part: Part, tile: Tile, offsets: int | None) -> Launch:
    d, e = padded(problem.D), padded(problem.E)
    own, passing, results = ("k", "v"), ("q", "do"), ("dk", "dv")
    if not part.keys:
        own, passing, results = passing, own, ("dq", None)
    written = tuple(
        name for name, made in zip(results, (part.of_d, part.of_e), strict=True) if made and name is not None
    )
    by_chunks = all((problem.E if name == "dv" else problem.D) % 8 == 0 for name in written)
    kernel = NativeKernel(
        HERE / "bwd.cu",
        "attention_backward_mma",
        32 * tile.warps,
        (
            ("ELEMENT", ELEMENTS[problem.dtype]),
            ("KEYS", int(part.keys)),
            ("HEAD_D", d),
            ("HEAD_E", e),
            ("SUM_D", int(part.of_d)),
            ("SUM_E", int(part.of_e)),
            ("STEP", tile.step),
            ("WARPS", tile.warps),
            ("GROUPS", tile.groups),
            ("COPY_BYTES", copied_bytes(problem, *own, *passing)),
            ("STORE_BYTES", copied_bytes(problem, *written) if by_chunks else 2),
            ("SOFTCAP", int(problem.softcap is not None)),
            ("BIAS", int(problem.has("bias"))),
            ("RAGGED", int(offsets is not None)),
        ),
        tile.shared(part, d, e),
    )
    tokens, heads = (problem.N, problem.G) if part.keys else (problem.M, problem.H)
    tiles = -(-tokens // tile.lines) if offsets is None else entries_of(tokens, offsets, tile.lines)
    diagonal = problem.N - problem.M if offsets is None else 0
    args: tuple[tuple[str, Argument], ...] = (
        ("own_d", Pointer(own[0])),
        ("own_e", Pointer(own[1])),
        ("passing_d", Pointer(passing[0])),
        ("passing_e", Pointer(passing[1])),
        ("bias", optional(problem, "bias")),
        ("stats", Pointer("stats", True)),
        *(
            (f"result_{side}", Pointer(name) if name in written else Scalar("i64", 0))
            for side, name in zip("de", results, strict=True)
        ),
        *table_arguments(offsets),
        *whole({"lines": problem.B * heads, "heads": heads, "tiles": tiles}),
        *whole({"share": problem.share, "queries": problem.M, "keys": problem.N}),
        *whole({"width_d": problem.D, "width_e": problem.E, **diagonals(problem, diagonal)}),
        *scales(problem),
        ("factor", Scalar("f32", problem.scale)),
        *(
            each
            for name, tensor in zip(
                ("own_d", "own_e", "passing_d", "passing_e", "bias", "result_d", "result_e"),
                (*own, *passing, "bias", *results),
                strict=True,
            )
            for each in strides(problem, tensor or "", name)
        ),
    )
    return Launch(kernel, (tiles * problem.B * heads, 1, 1), args)
