"""The plans of the C++ kernels: quantize_fp8's rows and groups, of what two rows of x make."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._lib.plans.row_class import (
    MAX_GRID,
    held_chunks,
    length_argument,
    pointer,
    row_class,
    row_count_argument,
    row_launch,
    scalar_arguments,
    stride_arguments,
)
from portable.kernels.quantize_fp8.native import GROUP, code_defines, plan_groups
from portable.layout import rows
from portable.plan import Call, Plan, Rejected, Scalar

_FOLDER = Path(__file__).parent


def row(call: Call) -> Plan | Rejected:
    """q and scale from x, [*, 2, N]: one launch."""
    views, dtype = {name: rows(call[name]) for name in ("x", "q")}, call["x"].dtype
    first = views["q"]
    tensors = [(call[name], view.stride) for name, view in views.items()]
    most = held_chunks(call.device, dtype, 2, otherwise=4)
    kind = row_class(call.device, dtype, first.length, tensors, most_chunks=most)
    if first.count > MAX_GRID * kind.rows_per_block:
        return Rejected(f"{first.count} rows exceed the grid")
    args = (
        *(pointer(call, name) for name in ("x", "q", "scale")),
        *row_count_argument(kind, first.count),
        length_argument(kind, first.length),
        *stride_arguments(views),
        *scalar_arguments(call, ("eps",)),
    )
    variant = "" if kind.resident else "_stream"
    defines = (("PASS", "WHOLE"), *code_defines(call))
    kernel = kind.kernel(_FOLDER / "rows.cu", "silu_and_mul_quant", defines, variant)
    return Plan((row_launch(kernel, kind, first, args),))


def groups(call: Call) -> Plan | Rejected:
    """q and a scale per 128 columns: one launch."""
    given = Scalar("f32", call.params["eps"])
    source = _FOLDER / "groups.cu"
    return plan_groups(call, GROUP, code_defines(call), given, source, "silu_and_mul_quant_groups")
