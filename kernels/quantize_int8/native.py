"""Plans of the C++ kernels of the quantisers to int8, and of those to 4 bits by rows."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._lib.plans.elementwise_plan import element_class
from portable.kernels._lib.plans.row_class import (
    MAX_GRID,
    held_chunks,
    length_argument,
    pointer,
    row_class,
    row_count_argument,
    row_launch,
    stride_arguments,
)
from portable.kernels.quantize_fp8.native import static_chunks
from portable.layout import Rows, rows
from portable.plan import Call, Launch, Plan, Rejected, Scalar

ASYMMETRIC_VECTORS = 4
"""Of a row with a zero point in 8 bits, vectors that a lane of NVIDIA's aims at: what each lane does once,
two reductions and two divisions, is then for 32 elements (8192x7168 in bfloat16 53.9 us with two, 44.8 with
four; H200, 2026-11-28)."""
_SOURCE = Path(__file__).parent / "rows.cu"


def _views(call: Call) -> dict[str, Rows]:
    return {name: rows(call[name]) for name in ("x", "q")}


def quantized_rows(call: Call, bits: int = 8) -> Plan | Rejected:
    """q, scale and, where the op has one, a zero point from x: one launch. Codes have 8 or 4 `bits`."""
    views, dtype = _views(call), call["x"].dtype
    first = views["x"]
    tensors = [(call["x"], first.stride), (call["q"], views["q"].stride * 8 // bits)]  # in elements of x
    most = held_chunks(call.device, dtype, 1, otherwise=4)
    asymmetric = call.has("zero_point")
    aimed = ASYMMETRIC_VECTORS if asymmetric and bits == 8 and call.device.vendor == "cuda" else 2
    kind = row_class(call.device, dtype, first.length, tensors, most_chunks=most, aimed=aimed)
    if first.count > MAX_GRID * kind.rows_per_block:
        return Rejected(f"{first.count} rows exceed the grid")
    args = (
        *(pointer(call, name) for name in ("x", "q", "scale", "zero_point")),
        *row_count_argument(kind, first.count),
        length_argument(kind, first.length),
        *stride_arguments(views),
        ("eps", Scalar("f32", call.params["eps"])),
    )
    variant = "" if kind.resident else "_stream"
    defines = (
        ("PASS", "WHOLE"),
        ("ASYMMETRIC", int(asymmetric)),
        *((("CODE_BITS", bits),) if bits != 8 else ()),
    )
    kernel = kind.kernel(_SOURCE, "quantize_integers", defines, variant)
    return Plan((row_launch(kernel, kind, first, args),))


def static(call: Call) -> Plan | Rejected:
    """q from x, a scale and perhaps a zero point: one launch."""
    views = _views(call)
    if all(view.stride == view.length for view in views.values()):
        total = views["x"].count * views["x"].length
        views = dict.fromkeys(views, Rows(1, total, total))
    first = views["x"]
    kind, across, grid = element_class(call, call["x"].dtype, views, static_chunks(call))
    if grid > MAX_GRID:
        return Rejected(f"{grid} blocks exceed the grid")
    args = (
        *(pointer(call, name) for name in ("x", "scale", "zero_point", "q")),
        ("rows", Scalar("i64", first.count)),
        ("length", Scalar("i64", first.length)),
        *stride_arguments(views),
        ("across", Scalar("i32", across)),
    )
    defines = (("PASS", "ELEMENTS"), ("ASYMMETRIC", int(call.has("zero_point"))))
    return Plan((Launch(kind.kernel(_SOURCE, "quantize_int8_elements", defines), (grid, 1, 1), args),))
