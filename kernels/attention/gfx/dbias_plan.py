"""The plan of the bias's gradient on AMD's matrix units: bwd_preprocess.hip, then dbias.hip."""

from __future__ import annotations

from portable.kernels.attention.gfx.bwd_plan import (
    HERE,
    MOST_ROWS,
    plan_rows,
    statistics,
    too_many_blocks,
)
from portable.kernels.attention.plan_arguments import ELEMENTS, scales, sizes, strides, whole
from portable.kernels.attention.problem import Problem, problem_of
from portable.plan import Call, Device, Launch, NativeKernel, Plan, Pointer, Rejected

TILE, PIECE = 128, 64  # queries, and keys, of a block; columns of a head at a time
SMALL_TILE, SMALL_PIECE = 64, 32  # where there are no more of either
WAVE_QUERIES = 64


def plan_bias_backward(call: Call) -> Plan | Rejected:
    """dbias of 16-bit heads of any size: each query's statistics, then each tile of scores alone."""
    problem = problem_of(call)
    if isinstance(problem, Rejected):
        return problem
    if problem.softcap == 0:
        return Rejected("a softcap of 0 leaves no scores")
    if max(problem.M, problem.N) > MOST_ROWS:
        return Rejected(f"more than {MOST_ROWS} queries or keys")
    launches = (plan_rows(problem), plan_tiles(problem, call.device))
    return too_many_blocks(launches) or Plan(launches, statistics(problem))


def plan_tiles(problem: Problem, device: Device) -> Launch:
    small = max(problem.M, problem.N) <= SMALL_TILE
    tile, piece = (SMALL_TILE, SMALL_PIECE) if small else (TILE, PIECE)
    wave_keys = 64 if device.warp_size == 64 else 32
    threads = tile // WAVE_QUERIES * (tile // wave_keys) * device.warp_size
    kernel = NativeKernel(
        HERE / "dbias.hip",
        "attention_dbias",
        threads,
        (
            ("T", ELEMENTS[problem.dtype]),
            ("TILE", tile),
            ("PIECE", piece),
            ("WHOLE_HEADS", int(problem.D % piece == problem.E % piece == 0)),
            ("SOFTCAP", int(problem.softcap is not None)),
        ),
    )
    key_tiles = -(-problem.N // tile)
    tiles = -(-problem.M // tile) * key_tiles
    blocks = tiles * problem.B * problem.H
    numbers = sizes(problem, problem.N - problem.M)
    args = (
        ("dout", Pointer("do")),
        *((each, Pointer(each)) for each in ("q", "k", "v", "bias")),
        ("peak", Pointer("peak", True)),
        ("delta", Pointer("delta", True)),
        ("dbias", Pointer("dbias")),
        *whole(numbers),
        *scales(problem),
        *whole({"key_tiles": key_tiles, "tiles": tiles, "blocks": blocks}),
        *(each for name in ("do", "q", "k", "v", "bias", "dbias") for each in strides(problem, name)),
    )
    return Launch(kernel, (blocks, 1, 1), args)
