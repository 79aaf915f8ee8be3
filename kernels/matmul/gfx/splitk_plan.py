"""Split-K on CDNA: where a product has fewer tiles than the GPU has compute units and a long K, mfma.hip
computes each tile in parts along K, and splitk_reduce.hip adds them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from portable import dtypes
from portable.kernels.matmul.gfx.plan import ALIGNED, FEW_ROWS, MFMA, Tile, aligned, launch, row_major, unfit
from portable.kernels.matmul.launch_args import (
    ACTIVATIONS,
    bias,
    ceil,
    pointer,
    preactivation_define,
    z_pointer,
)
from portable.kernels.matmul.problem import Operand, Problem, for_call
from portable.plan import Call, Device, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar, Workspace

_SOURCE = MFMA.with_name("splitk_reduce.hip")
_THREADS = 256
_RUN = 8  # columns that a thread of the reduction finishes


class Rates(NamedTuple):
    """A compute unit's products and the GPU's bytes from memory in a clock, as in pipe_model.yaml."""

    products: int
    memory: int


_RATES = {"gfx90a": Rates(512, 941), "gfx942": Rates(1024, 2000), "gfx950": Rates(2048, 2917)}
# Clocks, estimates: from a load of a K step to its arrival (about 1000 on gfx950 by
# ROCm/gfx950-gluon-tutorials, tcp_bound_tile_model.md), and a second launch with its gap.
_STEP, _LAUNCH = 1000.0, 5000.0
_MIN_STEPS, _MAX_PARTS = 4, 32  # K steps of a part
_WORTH = 0.9  # of the time without split-K


class Split(NamedTuple):
    tile: Tile
    k_step: int  # elements of K in a part

    def parts(self, problem: Problem) -> int:
        return ceil(problem.K, self.k_step)

    def clocks(self, problem: Problem, device: Device, share: float) -> float:
        """Estimated: a K step takes as long as its products or a load, the whole at least as its bytes."""
        rates, tile = _RATES[device.arch], self.tile
        parts = self.parts(problem)
        blocks = ceil(problem.M, tile.m) * ceil(problem.N, tile.n) * parts
        products = ceil(blocks, device.multiprocessors) * tile.m * tile.n * tile.k / (rates.products * share)
        steps = ceil(self.k_step, tile.k) * max(products, _STEP)
        memory = (problem.M + problem.N) * problem.K * 2 / rates.memory
        sums = parts * problem.M * problem.N * 8 / rates.memory  # written and read
        return max(steps, memory) + (0.0 if parts == 1 else _LAUNCH + sums)


def split_of(problem: Problem, device: Device) -> Split | None:
    """The fastest parts and tile by the estimate; None where the product is as fast in one part."""
    tiles = ((FEW_ROWS._replace(aligned=True), 0.35),) if problem.M <= 32 else ALIGNED

    def best(parts: range) -> tuple[float, Split] | None:
        found = [
            (split.clocks(problem, device, share), split)
            for tile, share in tiles
            for split in (Split(tile, ceil(ceil(problem.K, tile.k), count) * tile.k) for count in parts)
        ]
        return min(found, key=lambda each: each[0], default=None)

    whole = best(range(1, 2))
    split = best(range(2, min(_MAX_PARTS, ceil(problem.K, 64) // _MIN_STEPS) + 1))
    if whole is None or split is None or split[0] >= _WORTH * whole[0]:
        return None
    return split[1]


def plan_splitk(problem: Problem, call: Call) -> Plan | Rejected:
    """mfma.hip in parts along K, then splitk_reduce.hip. Their number depends on M."""
    if (reason := unfit(problem)) is not None:
        return reason
    problem = row_major(problem)
    if problem.batches > 1 or not aligned(problem):
        return Rejected("split-K takes one product whose operands' lines start and end at 16 bytes")
    split = split_of(problem, call.device)
    if split is None:
        return Rejected(f"split-K not needed for {problem.M}x{problem.N}x{problem.K}")
    return planned(problem, split)


plan = for_call(plan_splitk)


def planned(problem: Problem, split: Split) -> Plan | Rejected:
    parts, row = split.parts(problem), ceil(problem.N, _RUN) * _RUN
    sums = problem.M * row

    def part_of(operand: Operand, stride: int) -> Operand:
        return replace(operand, batch=(0, split.k_step * stride))

    products = launch(
        replace(
            problem,
            batch=(1, parts),
            a=part_of(problem.a, problem.a.col),
            b=part_of(problem.b, problem.b.row),
            c=Operand("partials", "float32", row, 1, (0, sums), 16),
            bias=None,
            activation=None,
            preactivation=None,
        ),
        MFMA,
        "matmul_mfma",
        split.tile,
        k_step=split.k_step,
    )
    if isinstance(products, Rejected):
        return products
    kernel = NativeKernel(
        _SOURCE,
        "matmul_splitk_reduce",
        threads=_THREADS,
        defines=(
            ("T", dtypes.of(problem.dtype).c),
            ("THREADS", _THREADS),
            ("C_ROW_MAJOR", int(problem.c.unit_stride == "col")),
            ("BIAS", int(problem.bias is not None)),
            ("ACTIVATION", ACTIVATIONS[problem.activation]),
            *preactivation_define(problem),
        ),
    )
    counts = {"M": problem.M, "N": problem.N, "parts": parts}
    strides = {"row": row, "apart": sums, "c_row": problem.c.row, "c_col": problem.c.col}
    args = (
        ("partials", Pointer("partials")),
        ("c", pointer(problem.c)),
        *z_pointer(problem),
        ("bias", bias(problem)),
        *((name, Scalar("i32", value)) for name, value in counts.items()),
        *((name, Scalar("i64", value)) for name, value in strides.items()),
    )
    reduce = Launch(kernel, (ceil(sums // _RUN, _THREADS), 1, 1), args)
    return Plan((products, reduce), (Workspace("partials", (parts * sums,), "float32"),))
