"""The plans of fwd.cu: attention by a warp's matrix instructions, sm_80 and later. Packed sequences
come after the table of tiles that varlen_tiles.cu makes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from portable.kernels.attention.packed import MOST_TOKENS, entries_of, packed, plan_tables, tables
from portable.kernels.attention.plan_arguments import ELEMENTS
from portable.kernels.attention.problem import Problem, problem_of
from portable.kernels.attention.sm90.fwd_plan import bounds
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar

_SOURCE = Path(__file__).resolve().parent / "fwd.cu"
_LOG2_E = math.log2(math.e)
_MOST_ROWS = 2**30 - 1024  # a row's place and a window's side are added in 32 bits
_MOST_BLOCKS = 2**31 - 1
_MOST_FACTOR = 2.0**100  # beyond, a score times it may leave float32
_FEW_QUERIES = 64
_RESERVED = 1024  # bytes of shared memory that each block of a multiprocessor takes besides its own


class Tile(NamedTuple):
    """Keys of a step, warps of a block, and groups of 16 queries of a warp."""

    n: int
    warps: int
    groups: int

    @property
    def m(self) -> int:
        return self.warps * self.groups * 16

    def shared(self, d: int, e: int) -> int:
        """Queries, keys and values, each line 16 bytes longer; o takes their place."""
        inputs = (self.m + self.n) * (2 * d + 16) + self.n * (2 * e + 16)
        return max(inputs, self.m * (2 * e + 16))


def padded(size: int) -> int:
    """A head size as the kernel holds it: whole matrix instructions."""
    return -(-size // 16) * 16


def tile_for(problem: Problem, queries: int, call: Call) -> Tile:
    """What registers hold without a spill (64 keys a step of heads of 128 do not), with shared memory for two
    blocks a multiprocessor. A second group of queries halves what a product reads of shared memory; it
    changes no row's bits. Measured 2026-11-22 on the H200, heads of 256, 32, 48 and 64 keys a step: 256, 278
    and 297 TFLOP/s full, 243, 261 and 287 causal."""
    d, e, config = padded(problem.D), padded(problem.E), call.config
    groups = 1 if queries <= _FEW_QUERIES else 2
    if max(d, e) <= 128:
        tile = Tile(64 if max(d, e) <= 64 else 48, 4, groups)
    else:
        tile = Tile(64, 4, 1)
        if 2 * (tile.shared(d, e) + _RESERVED) > call.device.shared_memory + _RESERVED:
            tile = Tile(32, 4, 1)
    named = {"n": "TILE_N", "warps": "WARPS", "groups": "GROUPS"}
    return tile._replace(**{field: config[name] for field, name in named.items() if config.get(name)})


def copied_bytes(problem: Problem, *names: str) -> int:
    """How wide these tensors' rows are copied: 16 bytes, or an element."""
    for name in names:
        heads = problem.heads[name]
        keys = name in ("k", "v", "dk", "dv")
        sizes = (problem.B, problem.G if keys else problem.H, problem.N if keys else problem.M)
        steps = zip(sizes, (heads.batch, heads.head, heads.row), strict=True)
        if heads.alignment < 16 or any(size > 1 and step % 8 for size, step in steps):
            return 2
    return 16


def _factors(problem: Problem) -> tuple[float, float]:
    """The kernel's `scale` and `inner`."""
    if problem.softcap is not None:
        return problem.softcap * _LOG2_E, 2 * problem.scale / problem.softcap * _LOG2_E
    if problem.scale > 0:
        return problem.scale * _LOG2_E, 0.0
    return 1.0, problem.scale * _LOG2_E


def unfit(problem: Problem) -> Rejected | None:
    """Why no kernel by a warp's matrix instructions takes the problem, if none does."""
    if problem.dtype not in ELEMENTS:
        return Rejected(f"{problem.dtype} has no matrix instruction here; bfloat16 and float16 have")
    if max(problem.M, problem.N) > _MOST_ROWS:
        return Rejected(f"a sequence exceeds {_MOST_ROWS}")
    if problem.softcap is not None and not problem.softcap > 0:
        return Rejected(f"a softcap of {problem.softcap} is not positive")
    if not all(abs(each) < _MOST_FACTOR for each in _factors(problem)):
        return Rejected(f"a scale of {problem.scale} or its cap leaves float32")
    return None


def _biased(problem: Problem) -> Rejected | None:
    return Rejected("it adds no bias") if problem.has("bias") else None


def plan_forward(call: Call) -> Plan | Rejected:
    """o and lse of `attention`: a block per tile of queries of a head."""
    problem = problem_of(call)
    if isinstance(problem, Rejected):
        return problem
    if (reason := unfit(problem) or _biased(problem)) is not None:
        return reason
    tile = tile_for(problem, problem.M, call)
    tiles = -(-problem.M // tile.m)
    launch = _launch(call, problem, tile, tiles * problem.B * problem.H, _arguments(call, problem, tiles))
    return launch if isinstance(launch, Rejected) else Plan((launch,))


def plan_varlen(call: Call) -> Plan | Rejected:
    """o and lse of `attention_varlen`: the table of tiles, then a block for each that there may be."""
    problem = packed(call, MOST_TOKENS)
    if isinstance(problem, Rejected):
        return problem
    count = call.axes["C"]
    if (reason := unfit(problem) or _biased(problem)) is not None:
        return reason
    tile = tile_for(problem, problem.M // max(count - 1, 1), call)
    blocks = entries_of(problem.M, count, tile.m) * problem.H if problem.M else 0
    args: tuple[tuple[str, Argument], ...] = (
        *_arguments(call, problem, 0),
        ("bounds", Pointer("bounds")),
        ("tile_list", Pointer("tiles")),
        ("counts", Pointer("counts")),
        ("count", Scalar("i32", count)),
    )
    launch = _launch(call, problem, tile, blocks, args, ragged=True)
    if isinstance(launch, Rejected):
        return launch
    left, right = bounds(problem)
    backwards = right is not None and left is None  # a sequence's last queries see most keys
    table = plan_tables(call, problem, tile.m, of_keys=False, together=1, backwards=backwards)
    return Plan((table, launch), tables(call, problem.M, tile.m))


def _launch(
    call: Call,
    problem: Problem,
    tile: Tile,
    blocks: int,
    args: tuple[tuple[str, Argument], ...],
    ragged: bool = False,
) -> Launch | Rejected:
    d, e = padded(problem.D), padded(problem.E)
    if tile.shared(d, e) > call.device.shared_memory:
        return Rejected(f"{tile.m} queries and {tile.n} keys a block take {tile.shared(d, e)} bytes")
    if blocks > _MOST_BLOCKS:
        return Rejected(f"{blocks} blocks are more than one launch takes ({_MOST_BLOCKS})")
    left, right = bounds(problem)
    kernel = NativeKernel(
        _SOURCE,
        "attention_forward_mma",
        threads=32 * tile.warps,
        defines=(
            ("ELEMENT", ELEMENTS[problem.dtype]),
            ("HEAD_D", d),
            ("HEAD_E", e),
            ("TILE_N", tile.n),
            ("WARPS", tile.warps),
            ("GROUPS", tile.groups),
            ("COPY_BYTES", copied_bytes(problem, "q", "k", "v")),
            ("STORE_BYTES", 2 if problem.E % 8 else copied_bytes(problem, "o")),
            ("LEFT", int(left is not None)),
            ("RIGHT", int(right is not None)),
            ("SCALED", int(problem.softcap is None and not problem.scale > 0)),
            ("SOFTCAP", int(problem.softcap is not None)),
            ("SINKS", int(call.has("sinks"))),
            ("RAGGED", int(ragged)),
        ),
        shared=tile.shared(d, e),
    )
    return Launch(kernel, (blocks, 1, 1), args)


def _arguments(call: Call, problem: Problem, tiles: int) -> tuple[tuple[str, Argument], ...]:
    left, right = bounds(problem)
    integers = {
        "m": problem.M, "n": problem.N, "d": problem.D, "e": problem.E, "heads": problem.H,
        "share": problem.share, "tiles": tiles, "left": left or 0, "right": right or 0,
    }  # fmt: skip
    scale, inner = _factors(problem)
    strides = {
        f"{name}_{side}": getattr(problem.heads[name], side)
        for name in ("q", "k", "v", "o", "lse")
        for side in ("batch", "head", "row")
    }
    return (
        *((name, Pointer(name)) for name in ("q", "k", "v")),
        ("sinks", Pointer("sinks") if call.has("sinks") else Scalar("i64", 0)),
        ("o", Pointer("o")),
        ("lse", Pointer("lse")),
        *((name, Scalar("i32", value)) for name, value in integers.items()),
        ("scale", Scalar("f32", scale)),
        ("inner", Scalar("f32", inner)),
        *((name, Scalar("i64", value)) for name, value in strides.items()),
    )
