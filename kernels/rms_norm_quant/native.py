"""The plan of the C++ kernel of both ops: rms_norm's rows, and quantize_fp8's codes and scales."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._lib.plans.row_class import (
    HOPPER,
    MAX_GRID,
    held_chunks,
    length_argument,
    parameter_defines,
    pointer,
    row_class,
    row_count_argument,
    row_launch,
    scalar_arguments,
    stride_arguments,
)
from portable.kernels.quantize_fp8.native import code_defines
from portable.layout import rows
from portable.plan import Call, Plan, Rejected

VECTORS = 4
"""That a lane of Hopper's aims at: what each lane does once, two reductions and two divisions, is then for 32
elements (16384x4096 in bfloat16 61.8 us with two, 52.7 with four; H200, 2026-11-28). A sum of two rows moves
more, and is as fast with either."""
_SOURCE = Path(__file__).with_name("rows.cu")


def row(call: Call) -> Plan | Rejected:
    """q and scale from x and weight, or from x + residual, which is new_residual: one launch."""
    added = ("residual", "new_residual") if call.has("residual") else ()
    views, dtype = {name: rows(call[name]) for name in ("x", "q", *added)}, call["x"].dtype
    first = views["x"]
    aligned = [(call[name], view.stride) for name, view in views.items()]
    if call.has("weight"):
        aligned.append((call["weight"], 0))
    most = held_chunks(call.device, dtype, 2 if added else 1, otherwise=4)
    aimed = VECTORS if call.device.arch == HOPPER and not added else 2
    kind = row_class(call.device, dtype, first.length, aligned, most_chunks=most, aimed=aimed)
    if first.count > MAX_GRID * kind.rows_per_block:
        return Rejected(f"{first.count} rows exceed the grid")
    args = (
        *(pointer(call, name) for name in ("x", "weight", "q", "scale", *added)),
        *row_count_argument(kind, first.count),
        length_argument(kind, first.length),
        *stride_arguments(views),
        *scalar_arguments(call, ("eps", "scale_eps")),
    )
    defines = (("PASS", "FORWARD"), *parameter_defines(call, dtype, ("weight",)), *code_defines(call))
    defines += (("ADD", 1),) if added else ()
    variant = "" if kind.resident else "_stream"
    kernel = kind.kernel(_SOURCE, "rms_norm_quant", defines, variant)
    return Plan((row_launch(kernel, kind, first, args),))
