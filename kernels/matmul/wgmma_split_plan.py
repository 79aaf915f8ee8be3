"""wgmma.cu for few tiles and a long k: parts of k on several multiprocessors, added up by a second launch."""

from __future__ import annotations

from typing import NamedTuple

from portable.kernels.matmul.launches import (
    ACTIVATIONS,
    ELEMENTS,
    HERE,
    bias,
    ceil,
    pointer,
    preactivation_define,
    sizes,
    z_pointer,
)
from portable.kernels.matmul.packed_plan import packing
from portable.kernels.matmul.problem import Problem
from portable.kernels.matmul.wgmma_plan import Costs, WgmmaTile, c_by_engine, launch, unsuited, wgmma_tile
from portable.plan import Call, Device, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar, Workspace

_TILES = (WgmmaTile(256, 4), WgmmaTile(128, 6), WgmmaTile(128, 8, m=64), WgmmaTile(64, 8))
_MOST_PARTS = 32
_LEAST_STEPS = 4  # of 64 k in a part
# Clocks that the second launch takes, and how many bytes of sums it reads in one.
_SECOND, _BYTES = 4000.0, 1500.0


class Split(NamedTuple):
    tile: WgmmaTile
    parts: int

    def nbytes(self, problem: Problem) -> int:
        return self.tile.clusters(problem) * self.parts * self.tile.m * self.tile.n * 4

    def clocks(self, problem: Problem, device: Device) -> float:
        costs = Costs(problem, device)
        costs.steps = ceil(costs.steps, self.parts)
        return costs.of_tile(self.tile) + _SECOND + self.nbytes(problem) / _BYTES


def split_of(problem: Problem, device: Device) -> Split | None:
    """The tile and parts of k that take the least time, or None where k is better left whole."""
    steps = ceil(problem.K, 64)
    options = []
    for tile in _TILES:
        if tile.misfit(problem, device) is not None or not tile.clusters(problem):
            continue
        parts = min(device.multiprocessors // tile.clusters(problem), steps // _LEAST_STEPS, _MOST_PARTS)
        if parts > 1:
            options.append(Split(tile, parts))
    if not options:
        return None
    best = min(options, key=lambda option: option.clocks(problem, device))
    whole = Costs(problem, device).total(wgmma_tile(problem, device, {}))
    return best if best.clocks(problem, device) < 0.9 * whole else None


def plan_split(problem: Problem, call: Call) -> Plan | Rejected:
    """wgmma.cu in parts of k, its operands packed first where they are not aligned."""
    if problem.c.unit == "row" and problem.bias is None:
        problem = problem.transposed()
    packed = packing(problem, call)
    if isinstance(packed, Rejected):
        return packed
    problem = packed.problem
    if (reason := unsuited(problem)) is not None:
        return reason
    split = split_of(problem, call.device)
    if split is None:
        return Rejected("its tiles keep the card busy without parts of k")
    tile, parts = split
    across, down, batches = tile.grid(problem)
    kernel = NativeKernel(
        HERE / "wgmma_sum.cu",
        "matmul_wgmma_sum",
        threads=128,
        defines=(
            ("ELEMENT", ELEMENTS[problem.dtype]),
            ("TILE_M", tile.m),
            ("TILE_N", tile.n),
            ("PARTS", parts),
            ("C_BY_ENGINE", int(c_by_engine(problem))),
            ("C_TOUCHES", int(problem.c.col == 1)),
            ("BIAS", int(problem.bias is not None)),
            ("ACTIVATION", ACTIVATIONS[problem.activation]),
            *preactivation_define(problem),
        ),
    )
    tiles = (("tiles_m", Scalar("i32", across)), ("tiles_n", Scalar("i32", down)))
    outputs = (("c", pointer(problem.c)), *z_pointer(problem))
    args = (("sums", Pointer("sums", True)), ("bias", bias(problem)), *outputs, *tiles, *sizes(problem))
    grid = (across * tile.m // 64, down * tile.n // 64, batches)
    sums = Workspace("sums", (split.nbytes(problem) // 4,), "float32")
    launches = (
        *packed.launches,
        launch(problem, call, tile.deepest(call.device), True, parts),
        Launch(kernel, grid, args),
    )
    return Plan(launches, (*packed.workspaces, sums))
