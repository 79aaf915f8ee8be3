"""The plan of dbias.cu: the bias's own gradient by a warp's matrix instructions, sm_80 and later."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from portable.kernels.attention.plan_arguments import ELEMENTS
from portable.kernels.attention.problem import Problem, problem_of
from portable.kernels.attention.sm80.fwd_plan import copied_bytes, padded, unfit
from portable.kernels.attention.sm90.fwd_plan import bounds
from portable.plan import Argument, Call, Device, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar

_SOURCE = Path(__file__).resolve().parent / "dbias.cu"
_MOST_BLOCKS = 2**31 - 1
_RESERVED = 1024  # bytes of shared memory that each block of a multiprocessor takes besides its own
_MOST_STEPS = 16
_BLOCKS = {1: 8, 2: 2}  # of a multiprocessor, by groups, that more steps are not to take from it


class Tile(NamedTuple):
    """Keys of a step, warps of a block, and groups of 16 queries of a warp."""

    n: int
    warps: int
    groups: int

    @property
    def m(self) -> int:
        return self.warps * self.groups * 16

    def shared(self, d: int, e: int) -> int:
        """Queries and do, keys and values, each line 16 bytes longer."""
        return (self.m + self.n) * (2 * d + 16 + 2 * e + 16)


# Measured 2026-11-22 on the H200, 16 heads of 128, two groups and one, us: 4096 full 566 and 664, causal 371
# and 398, 1024 full 44 and 64; heads of 64, 4096 causal 362 and 318. Eight warps of one group: 796 and 491.
_TILES = (Tile(64, 4, 2), Tile(64, 4, 1), Tile(32, 4, 1))


def tile_for(problem: Problem, device: Device, bias_bytes: int, config: Any) -> Tile:
    """The largest of which a multiprocessor holds two blocks, else of which it holds one. Two groups leave no
    registers to read the bias by the element, and spill on sm_100."""
    d, e = padded(problem.D), padded(problem.E)
    two_groups = device.arch.startswith("sm_90") and max(d, e) > 64 and bias_bytes == 16
    tiles = _TILES if two_groups else _TILES[1:]
    rooms = ((device.shared_memory - _RESERVED) // 2, device.shared_memory)
    fitting = (tile for room in rooms for tile in tiles if tile.shared(d, e) <= room)
    tile = next(fitting, tiles[-1])
    named = {"n": "TILE_N", "warps": "WARPS", "groups": "GROUPS"}
    return tile._replace(**{field: config[name] for field, name in named.items() if config.get(name)})


def steps_for(call: Call, tile: Tile, tiles: int, steps: int) -> int:
    """Blocks of keys that a block of queries walks: many, so that queries are read once, but not so many that
    multiprocessors stand idle."""
    if call.config.get("STEPS"):
        return call.config["STEPS"]
    enough = -(-tiles * steps // (_BLOCKS.get(tile.groups, 2) * call.device.multiprocessors))
    return min(_MOST_STEPS, 1 << max(enough - 1, 0).bit_length())


def plan_dbias(call: Call) -> Plan | Rejected:
    """dbias: a block per tile of queries and chunk of keys of a head."""
    problem = problem_of(call)
    if isinstance(problem, Rejected):
        return problem
    if (reason := unfit(problem)) is not None:
        return reason
    bias_bytes = 2 if problem.N % 8 else copied_bytes(problem, "bias", "dbias")
    d, e, tile = padded(problem.D), padded(problem.E), tile_for(problem, call.device, bias_bytes, call.config)
    if tile.shared(d, e) > call.device.shared_memory:
        return Rejected(f"{tile.m} queries and {tile.n} keys a block take {tile.shared(d, e)} bytes")
    tiles, steps = -(-problem.M // tile.m), -(-problem.N // tile.n)
    chunk = tile.n * steps_for(call, tile, tiles * problem.B * problem.H, steps)
    chunks = -(-problem.N // chunk)
    blocks = tiles * chunks * problem.B * problem.H
    if blocks > _MOST_BLOCKS:
        return Rejected(f"{blocks} blocks are more than one launch takes ({_MOST_BLOCKS})")
    left, right = bounds(problem)
    kernel = NativeKernel(
        _SOURCE,
        "attention_dbias_mma",
        threads=32 * tile.warps,
        defines=(
            ("ELEMENT", ELEMENTS[problem.dtype]),
            ("HEAD_D", d),
            ("HEAD_E", e),
            ("TILE_N", tile.n),
            ("WARPS", tile.warps),
            ("GROUPS", tile.groups),
            ("COPY_BYTES", 2 if problem.E % 8 else copied_bytes(problem, "q", "k", "v", "do", "o")),
            ("BIAS_BYTES", bias_bytes),
            ("LEFT", int(left is not None)),
            ("RIGHT", int(right is not None)),
            ("SOFTCAP", int(problem.softcap is not None)),
            ("DLSE", int(problem.has("dlse"))),
        ),
        shared=tile.shared(d, e),
    )
    return Plan((Launch(kernel, (blocks, 1, 1), _arguments(problem, tiles, chunks, chunk)),))


def _arguments(problem: Problem, tiles: int, chunks: int, chunk: int) -> tuple[tuple[str, Argument], ...]:
    left, right = bounds(problem)
    integers = {
        "m": problem.M, "n": problem.N, "d": problem.D, "e": problem.E, "heads": problem.H,
        "share": problem.share, "tiles": tiles, "chunks": chunks, "chunk": chunk,
        "left": left or 0, "right": right or 0,
    }  # fmt: skip
    to_score, cap = problem.score_factors
    scale, inner = (to_score, 0.0) if problem.softcap is None else (cap, to_score)
    names = {"dout": "do", "q": "q", "k": "k", "v": "v", "out": "o", "lse": "lse", "dlse": "dlse"}
    names |= {"bias": "bias", "dbias": "dbias"}
    heads = {name: problem.heads.get(tensor) for name, tensor in names.items()}
    return (
        *((name, Pointer(tensor) if heads[name] else Scalar("i64", 0)) for name, tensor in names.items()),
        *((name, Scalar("i32", value)) for name, value in integers.items()),
        ("scale", Scalar("f32", scale)),
        ("inner", Scalar("f32", inner)),
        *(
            (f"{name}_{side}", Scalar("i64", getattr(each, side) if each else 0))
            for name, each in heads.items()
            for side in ("batch", "head", "row")
        ),
    )
