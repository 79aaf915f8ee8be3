"""The plan of fwd.hip: attention on AMD's matrix units, MFMA (gfx9) and WMMA (gfx11, gfx12)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from portable.kernels.attention.packed import entries_of, packed, plan_tables, tables
from portable.kernels.attention.plan_arguments import ELEMENTS, table_arguments
from portable.kernels.attention.problem import Problem, problem_of
from portable.plan import Argument, Call, Device, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar

_SOURCE = Path(__file__).resolve().parent / "fwd.hip"
_POINTERS = ("q", "k", "v", "bias", "sinks", "o", "lse")
_MOST_ROWS = 2**29  # places, and their sums with a window's side, are 32-bit numbers
_MOST_TOKENS = 2**28  # and offsets, as a window's side may be as long as all tokens together, twice
_MOST_THREADS = 2**32 - 1  # of a grid dimension


class Tile(NamedTuple):
    """Keys of a step, waves of a block, and groups of 16 queries of a wave; whether queries lie in LDS; how
    many waves share their queries."""

    n: int
    waves: int
    groups: int
    q_shared: bool = False
    sharers: int = 1

    @property
    def m(self) -> int:
        return self.waves // self.sharers * self.groups * 16

    def shared(self, d: int, e: int) -> int:
        return 2 * (self.n * (d + e) + (self.m * d if self.q_shared else 0))


def padded(size: int) -> int:
    """A head size as the kernel holds it: whole groups of four chunks of 16 bytes."""
    return -(-size // 32) * 32


def tile_for(device: Device, d: int, e: int, bias: bool = False, tiny: bool = False) -> Tile:
    """The tile for padded head sizes: what registers hold without a spill, and two blocks' LDS a CU.

    A tiny problem is one step of one wave.
    """
    most = max(d, e)
    if tiny and most <= 64:
        return Tile(32, 1, 1)
    if device.warp_size == 64:
        return Tile(32 if bias and most > 64 else 64, 4, 2) if most <= 128 else Tile(32, 4, 1)
    if most <= 64:
        return Tile(64, 8, 1)
    if most <= 128:
        return Tile(
            32, 8, 1, q_shared=device.arch.startswith("gfx11")
        )  # an operand there has every element twice
    return Tile(32, 8, 1, q_shared=True, sharers=2)


def plan_forward(call: Call) -> Plan | Rejected:
    """o and lse of `attention`: a block per tile of queries of a head."""
    problem = problem_of(call)
    return problem if isinstance(problem, Rejected) else _plan(call, problem, _MOST_ROWS)


def plan_varlen(call: Call) -> Plan | Rejected:
    """o and lse of `attention_varlen`: the table of tiles, then a block per tile and head."""
    if call.axes["C"] > _MOST_TOKENS:
        return Rejected(f"more than {_MOST_TOKENS} offsets")
    problem = packed(call)
    return problem if isinstance(problem, Rejected) else _plan(call, problem, _MOST_TOKENS)


def _plan(call: Call, problem: Problem, most: int) -> Plan | Rejected:
    if problem.dtype not in ELEMENTS:
        return Rejected(f"{problem.dtype} has no matrix instruction here; bfloat16 and float16 have")
    if max(problem.M, problem.N) > most:
        return Rejected(f"a sequence exceeds {most}")
    d, e = padded(problem.D), padded(problem.E)
    tile = tile_for(call.device, d, e, problem.has("bias"), tiny=problem.M <= 16 and problem.N <= 32)
    threads = tile.waves * call.device.warp_size
    ragged = call.has("cu_seqlens_q")
    tiles = entries_of(problem.M, call.axes["C"], tile.m) if ragged else -(-problem.M // tile.m)
    blocks = tiles * problem.B * problem.H
    if blocks * threads > _MOST_THREADS:
        return Rejected(f"{blocks} blocks of {threads} threads exceed a grid")
    defines = (*tile_defines(tile, problem, d, e), *_scores(call, problem), ("RAGGED", int(ragged)))
    kernel = NativeKernel(_SOURCE, "attention_forward", threads, defines)
    main = Launch(kernel, (blocks, 1, 1), _arguments(call, problem, tiles))
    if not ragged:
        return Plan((main,))
    return Plan((plan_table(call, problem, tile.m, of_keys=False), main), tables(call, problem.M, tile.m))


def tile_defines(tile: Tile, problem: Problem, d: int, e: int) -> tuple[tuple[str, int | str], ...]:
    return (
        ("T", ELEMENTS[problem.dtype]),
        ("HEAD_D", d),
        ("HEAD_E", e),
        ("WHOLE_D", int(d == problem.D)),
        ("WHOLE_E", int(e == problem.E)),
        ("TILE_N", tile.n),
        ("WAVES", tile.waves),
        ("GROUPS", tile.groups),
        ("SHARERS", tile.sharers),
        ("Q_SHARED", int(tile.q_shared)),
    )


def _scores(call: Call, problem: Problem) -> tuple[tuple[str, int | str], ...]:
    scale = problem.scale
    plain = problem.softcap is None and not problem.has("bias") and 0 < scale < 2**100
    return (
        ("LEFT", int(problem.left is not None)),
        ("RIGHT", int(problem.right is not None)),
        ("PLAIN", int(plain)),
        ("SOFTCAP", int(problem.softcap is not None)),
        ("BIAS", int(problem.has("bias"))),
        ("SINKS", int(call.has("sinks"))),
    )


def plan_table(call: Call, problem: Problem, tile: int, *, of_keys: bool) -> Launch:
    """The launch that makes the table for a block per tile."""
    backwards = not of_keys and problem.right is not None and problem.left is None  # last queries see most
    return plan_tables(call, problem, tile, of_keys=of_keys, together=1, backwards=backwards)


def _pointer(call: Call, name: str) -> Argument:
    return Pointer(name) if call.has(name) else Scalar("i64", 0)


def _arguments(call: Call, problem: Problem, tiles: int) -> tuple[tuple[str, Argument], ...]:
    ragged = call.has("cu_seqlens_q")
    diagonal = 0 if ragged else problem.N - problem.M
    integers = {
        "m": problem.M, "n": problem.N, "d": problem.D, "e": problem.E,
        "heads": problem.H, "share": problem.share,
        "low": diagonal - (problem.left or 0), "high": diagonal + (problem.right or 0), "tiles": tiles,
    }  # fmt: skip
    scale, cap = problem.score_factors
    strides: dict[str, int] = {}
    for name in ("q", "k", "v", "bias", "o", "lse"):
        heads = problem.heads.get(name)
        for side in ("batch", "head", "row"):
            strides[f"{name}_{side}"] = getattr(heads, side) if heads is not None else 0
    return (
        *((name, _pointer(call, name)) for name in _POINTERS),
        *table_arguments(call.axes["C"] if ragged else None),
        *((name, Scalar("i32", value)) for name, value in integers.items()),
        ("scale", Scalar("f32", scale)),
        ("cap", Scalar("f32", cap)),
        *((name, Scalar("i64", value)) for name, value in strides.items()),
    )
