"""Split-K on CDNA: where a product has fewer tiles than the GPU has compute units and a long K, mfma.hip
computes each tile in parts along K, and splitk_reduce.hip adds them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from portable import dtypes
from portable.kernels.matmul.gfx.plan import ALIGNED, MFMA, aligned, launch, least_clocks, row_major, unfit
from portable.kernels.matmul.gfx.tile_cost import Tile, clocks
from portable.kernels.matmul.launch_args import (
    ACTIVATIONS,
    bias,
    ceil,
    gated_define,
    pointer,
    preactivation_define,
    z_pointer,
)
from portable.kernels.matmul.problem import Operand, Problem, for_call
from portable.plan import Call, Device, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar, Workspace

_SOURCE = MFMA.with_name("splitk_reduce.hip")
_THREADS = 256
_RUN = 8  # columns that a thread of the reduction finishes

_MIN_STEPS, _MAX_PARTS = 2, 32  # K steps of a part
_WORTH = 0.9  # of the clocks without split-K, by an estimate that errs by 0.1


class Split(NamedTuple):
    tile: Tile
    k_step: int  # elements of K in a part

    def parts(self, problem: Problem) -> int:
        return ceil(problem.K, self.k_step)


def split_of(problem: Problem, device: Device) -> Split | None:
    """The tile and parts of the least estimated clocks (tile_cost.py); None where the product is as fast in
    one part."""
    splits = (
        Split(tile, ceil(ceil(problem.K, tile.k), parts) * tile.k)
        for tile in ALIGNED
        for parts in range(2, min(_MAX_PARTS, ceil(problem.K, tile.k) // _MIN_STEPS) + 1)
    )
    found = [(clocks(split.tile, problem, device, split.k_step), split) for split in splits]
    best = min(found, key=lambda each: each[0], default=None)
    return best[1] if best is not None and best[0][0] < _WORTH * least_clocks(problem, device) else None


def plan_splitk(problem: Problem, call: Call) -> Plan | Rejected:
    """mfma.hip in parts along K, then splitk_reduce.hip. Their number depends on M."""
    if (reason := unfit(problem)) is not None:
        return reason
    problem = row_major(problem)
    if problem.batches > 1 or not aligned(problem):
        return Rejected("split-K takes one product whose operands' lines start and end at 16 bytes")
    split = split_of(problem.product, call.device)
    if split is None:
        return Rejected(f"split-K not needed for {problem.M}x{problem.N}x{problem.K}")
    return planned(problem, split)


plan = for_call(plan_splitk)


def planned(problem: Problem, split: Split) -> Plan | Rejected:
    parts, row = split.parts(problem), ceil(problem.product.N, _RUN) * _RUN
    sums = problem.M * row

    def part_of(operand: Operand, stride: int) -> Operand:
        return replace(operand, batch=(operand.batch[0], split.k_step * stride))

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
            *gated_define(problem),
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
