"""The plan of fwd.cu: attention by Hopper's warpgroup products, fed by the bulk copy engine."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from portable.backends.cuda.tensor_map import TensorMap
from portable.kernels.attention.plan_arguments import ELEMENTS
from portable.kernels.attention.problem import Heads, Problem, problem_of
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar

_SOURCE = Path(__file__).resolve().parent / "fwd.cu"
_LOG2_E = math.log2(math.e)
_MOST_ROWS = 2**30 - 1024  # a row's place and a window's side are added in 32 bits
MOST_TILES = 2**30
_REGISTERS = 190  # of a consumer's 232, for sums, scores and weights
_RAGGED_BARRIERS = 64  # bytes: the next tile, its barriers, and those of values that cross an end


class Tile(NamedTuple):
    """Keys a block, consumer warpgroups of 64 queries, and whether consumers take turns. Then microseconds of
    a block of keys, and of the rest of a tile, where tiles are compared; and blocks of keys in flight."""

    n: int
    consumers: int
    turns: int
    block: float = 1.0
    rest: float = 1.0
    stages: int = 2

    @property
    def m(self) -> int:
        return 64 * self.consumers

    def fits(self, d: int, e: int, shared: int) -> bool:
        """Whether a consumer's registers and the block's shared memory hold it."""
        return e // 2 + self.n * 3 // 4 <= _REGISTERS and self.shared(d, e, 1) <= shared

    def shared(self, d: int, e: int, q_stages: int) -> int:
        barriers = 16 * (q_stages + 2 * self.stages)
        return 1024 + 2 * (q_stages * self.m * d + self.stages * self.n * (d + e)) + barriers


# By padded head sizes, from sequences of 512 and 8192 on one H200, 2026-11-21 and 22. Other head sizes take
# the first that fits.
_TILES = {
    (64, 64): (Tile(128, 3, 0, 1.541, 2.8), Tile(64, 4, 1, 1.06, 2.2, 4), Tile(128, 2, 0, 1.207, 1.24)),
    (128, 128): (Tile(80, 3, 1, 1.42, 3.57), Tile(128, 2, 0, 1.623, 1.72)),
    (256, 256): (Tile(80, 2, 0, 1.742, 4.2), Tile(64, 2, 0, 1.52, 3.9)),
}
_OTHER_TILES = tuple(Tile(n, 2, 1) for n in (128, 112, 96, 80, 64))
_UNEVEN = 1.02  # the last multiprocessor's time over the mean, where heads are walked together
_BYTES_PER_US = 3e6  # of keys and values from memory


def padded(size: int) -> int:
    """A head size as the kernel holds it: whole 128-byte lines."""
    return -(-size // 64) * 64


def bounds(problem: Problem) -> tuple[int | None, int | None]:
    """The window's sides as 32-bit numbers; None where a side bounds nothing."""
    M, N = problem.M, problem.N
    left = None if problem.left is None or problem.left >= N - 1 else max(problem.left, -M)
    right = None if problem.right is None or problem.right >= M - 1 else max(problem.right, -N)
    return left, right


def _blocks_of(problem: Problem, tile: Tile, row: int) -> int:
    """Blocks of keys of the tile whose first query is `row`."""
    left, right = bounds(problem)
    M, N = problem.M, problem.N
    first = 0 if left is None else min(max(row + N - M - left, 0), N - 1) // tile.n
    end = N if right is None else min(row + tile.m + N - M + right, N)
    return max(-(-end // tile.n) - first, 1)


class Costs(NamedTuple):
    """Of a head's tiles: how many, and the mean and most blocks of keys."""

    tiles: int
    mean: float
    most: int


def _costs(problem: Problem, tile: Tile) -> Costs:
    tiles = -(-problem.M // tile.m)
    rows = range(0, tiles * tile.m, tile.m * max(tiles // 64, 1)) or range(1)  # a sample will do
    counts = [_blocks_of(problem, tile, row) for row in rows]
    return Costs(tiles, sum(counts) / len(counts), max(counts))


def tiles_of(call: Call, problem: Problem) -> tuple[Tile, ...]:
    """The tiles to choose from: for long sequences first."""
    d, e = padded(problem.D), padded(problem.E)
    fitting = (tile for tile in _OTHER_TILES if tile.fits(d, e, call.device.shared_memory))
    return _TILES.get((d, e)) or (next(fitting),)


def configured(tile: Tile, call: Call) -> Tile:
    """The tile with the config's values over it."""
    config = call.config
    given = {name.lower(): config[name] for name in ("CONSUMERS", "TURNS") if config.get(name) is not None}
    if config.get("TILE_N"):
        given["n"] = config["TILE_N"]
    return tile._replace(**given)


def _tile(call: Call, problem: Problem) -> Tile:
    """The tile that takes the least time on a full card, so that a row's result does not depend on how many
    batches there are."""
    tiles = tiles_of(call, problem)

    def time(tile: Tile) -> float:
        costs = _costs(problem, tile)
        return costs.tiles * (costs.mean * tile.block + tile.rest)

    return configured(min(tiles, key=time), call)


def _band(call: Call, problem: Problem, tile: Tile) -> int:
    """The kernel's `band`. Tiles that cost the same go in order, 1. Where costs fall: a dear tile and a cheap
    one as a pair, head after head, 0; or all heads' dearest tiles first, which is more even, but brings keys
    and values from memory again and again where they exceed L2 (2026-11-21, pairs and all heads, us: heads of
    128, 512 99, 126; 2048 244, 302; 8192 927, 913; heads of 256, 2048 230, 258; 8192 825, 807)."""
    if call.config.get("BAND"):
        return call.config["BAND"]
    left, right = bounds(problem)
    if right is None or left is not None:
        return 1
    costs, heads, multiprocessors = _costs(problem, tile), problem.B * problem.H, call.device.multiprocessors
    if costs.tiles % 2 or not heads:
        return heads
    cost, tiles = costs.mean * tile.block + tile.rest, costs.tiles * heads
    busy, streamed = tiles / multiprocessors * cost, 0.0
    all_keys = 2 * problem.B * problem.G * problem.N * (problem.D + problem.E)
    if all_keys > call.device.l2_bytes / 2:
        sharing = problem.share * max(1.0, multiprocessors / heads)
        streamed = 2 * tiles * costs.mean * tile.n * (problem.D + problem.E) / sharing / _BYTES_PER_US
    together = max(_UNEVEN * busy, costs.most * tile.block + tile.rest)
    pairs = -(-tiles // 2 // multiprocessors) * 2 * cost
    return 0 if pairs < together or streamed > busy / 4 else heads


def _unfit(problem: Problem) -> Rejected | None:
    if problem.has("bias"):
        return Rejected("it adds no bias")
    if problem.N == 0:
        return Rejected("no keys to copy")
    if max(problem.M, problem.N) > _MOST_ROWS:
        return Rejected(f"a sequence exceeds {_MOST_ROWS}")
    for name, size in (("q and k", problem.D), ("v", problem.E)):
        if size % 8:
            return Rejected(f"the head size of {name}, {size}, is no multiple of 8")
    if problem.softcap is not None and not problem.softcap > 0:
        return Rejected(f"a softcap of {problem.softcap} is not positive")
    if problem.softcap is None and not problem.scale > 0:
        return Rejected(f"a scale of {problem.scale} is not positive")
    return None


def _sizes(problem: Problem, name: str) -> tuple[int, int, int, int]:
    """Columns, rows, heads, batches."""
    columns = problem.D if name in ("q", "k") else problem.E
    rows, heads = (problem.M, problem.H) if name in ("q", "o") else (problem.N, problem.G)
    return columns, rows, heads, problem.B


def _no_map(heads: Heads, sizes: tuple[int, int, int, int]) -> Rejected | None:
    strides = (heads.row, heads.head, heads.batch)
    steps = [step for size, step in zip(sizes[1:], strides, strict=True) if size > 1]
    if heads.alignment < 16 or any(step % 8 for step in steps):
        return Rejected(f"{heads.tensor} has rows that do not start at multiples of 16 bytes")
    if sizes[1] > 1 and heads.row < sizes[0]:
        return Rejected(f"{heads.tensor} has rows that overlap")
    if any(step < 0 or step >= 2**39 for step in steps):
        return Rejected(f"{heads.tensor} has strides that a tensor map does not take")
    return None


def _map(problem: Problem, name: str, columns: int, rows: int, pack: int = 1) -> TensorMap:
    """Boxes of 64 columns of `rows` rows of `pack` heads. Dimensions that do not step have size 1."""
    heads, sizes = problem.heads[name], _sizes(problem, name)
    steps = (heads.row, heads.head, heads.batch)
    walked = tuple(size if step else 1 for size, step in zip(sizes[1:], steps, strict=True))
    strides = tuple(2 * (step if size > 1 else columns) for size, step in zip(walked, steps, strict=True))
    return TensorMap(name, problem.dtype, (sizes[0], *walked), strides, (64, rows, pack, 1))


def refused(problem: Problem) -> Rejected | None:
    """Why the kernel does not take the problem, if it does not."""
    if (reason := _unfit(problem)) is not None:
        return reason
    for name in ("q", "k", "v", "o"):
        if (reason := _no_map(problem.heads[name], _sizes(problem, name))) is not None:
            return reason
    return None


def kernel_of(
    call: Call, problem: Problem, tile: Tile, ragged: bool = False, pack: int = 1
) -> NativeKernel | Rejected:
    """The kernel for a tile of queries of `pack` heads; `ragged` for packed sequences."""
    d, e = padded(problem.D), padded(problem.E)
    extra = _RAGGED_BARRIERS if ragged else 0
    q_stages = 2 if tile.shared(d, e, 2) + extra <= call.device.shared_memory else 1
    shared = tile.shared(d, e, q_stages) + extra
    if shared > call.device.shared_memory:
        return Rejected(f"{tile.m} queries and {tile.n} keys a block take {shared} bytes of shared memory")
    left, right = bounds(problem)
    return NativeKernel(
        _SOURCE,
        "attention_forward",
        threads=128 * (1 + tile.consumers),
        defines=(
            ("ELEMENT", ELEMENTS[problem.dtype]),
            ("HEAD_D", d),
            ("HEAD_E", e),
            ("TILE_N", tile.n),
            ("CONSUMERS", tile.consumers),
            ("Q_STAGES", q_stages),
            ("STAGES", tile.stages),
            ("TURNS", tile.turns),
            ("LEFT", int(left is not None)),
            ("RIGHT", int(right is not None)),
            ("SOFTCAP", int(problem.softcap is not None)),
            ("SINKS", int(call.has("sinks"))),
            ("RAGGED", int(ragged)),
            ("PACK", pack),
        ),
        shared=shared,
        pdl=ragged,
    )


def arguments_of(
    call: Call, problem: Problem, tile: Tile, band: int, pack: int = 1
) -> tuple[tuple[str, Argument], ...]:
    """The kernel's arguments, without those of packed sequences."""
    left, right = bounds(problem)
    steps = 0
    for bit, (name, stride) in enumerate((name, stride) for name in "qkv" for stride in ("head", "batch")):
        steps |= bool(getattr(problem.heads[name], stride)) << bit
    o, lse = problem.heads["o"], problem.heads["lse"]
    ints = {
        "m": problem.M, "n": problem.N, "e": problem.E, "heads": problem.H, "share": problem.share,
        "left": left or 0, "right": right or 0,
        "band": band, "batches": problem.B * problem.H, "steps": steps,
    }  # fmt: skip
    scale = problem.softcap if problem.softcap is not None else problem.scale
    inner = 2 * problem.scale / problem.softcap if problem.softcap is not None else 0.0
    floats = {"scale": scale * _LOG2_E, "inner": inner * _LOG2_E}
    longs = {
        "o_batch": o.batch, "o_head": o.head, "o_row": o.row,
        "lse_batch": lse.batch, "lse_head": lse.head, "lse_row": lse.row,
    }  # fmt: skip
    return (
        ("map_q", _map(problem, "q", padded(problem.D), tile.m // pack, pack)),
        ("map_k", _map(problem, "k", padded(problem.D), tile.n)),
        ("map_v", _map(problem, "v", padded(problem.E), tile.n)),
        ("sinks", Pointer("sinks") if call.has("sinks") else Scalar("i64", 0)),
        ("o", Pointer("o", aligned=True)),
        ("lse", Pointer("lse")),
        *((name, Scalar("i32", value)) for name, value in ints.items()),
        *((name, Scalar("f32", value)) for name, value in floats.items()),
        *((name, Scalar("i64", value)) for name, value in longs.items()),
    )


def plan_forward(call: Call) -> Plan | Rejected:
    problem = problem_of(call)
    if isinstance(problem, Rejected):
        return problem
    if (reason := refused(problem)) is not None:
        return reason
    tile = _tile(call, problem)
    kernel = kernel_of(call, problem, tile)
    if isinstance(kernel, Rejected):
        return kernel
    tiles, band = -(-problem.M // tile.m) * problem.B * problem.H, _band(call, problem, tile)
    if tiles > MOST_TILES:
        return Rejected(f"{tiles} tiles exceed {MOST_TILES}")
    blocks = min(tiles if band else tiles // 2, call.device.multiprocessors)
    return Plan((Launch(kernel, (blocks, 1, 1), arguments_of(call, problem, tile, band)),))
