"""The plans of the C++ kernel of all the dequantisers: elements of y, each by its group's scale."""

from __future__ import annotations

from pathlib import Path

from portable.dtypes import itemsize
from portable.kernels._lib.minifloat import format_type
from portable.kernels._lib.plans.elementwise_plan import element_class
from portable.kernels._lib.plans.row_class import MAX_GRID, pointer, stride_arguments
from portable.kernels.dequantize_fp8.reference import FP4, GROUP, MX_GROUP, NV_GROUP
from portable.layout import Rows, ceil_div, rows
from portable.plan import Call, Launch, Plan, Rejected, Scalar

_SOURCE = Path(__file__).with_name("dequantize.cu")
CHUNKS = 2
"""Vectors of a lane: 8192x14336 by row one 0.939 of the copy, two 0.980, four 0.968 (H200, 2026-11-27)."""


def row(call: Call) -> Plan | Rejected:
    """y by a scale, and perhaps a zero point, per row."""
    return _plan(call, 0, 1)


def groups(call: Call) -> Plan | Rejected:
    """y by a scale per 128 columns."""
    return _plan(call, GROUP, 1)


def tiles(call: Call) -> Plan | Rejected:
    """y by a scale per 128 x 128."""
    return _plan(call, GROUP, GROUP)


def mx(call: Call) -> Plan | Rejected:
    """y by a power of two per 32 columns."""
    return _plan(call, MX_GROUP, 1)


def mxfp4(call: Call) -> Plan | Rejected:
    """y from two codes in a byte, by a power of two per 32 columns."""
    return _plan(call, MX_GROUP, 1, FP4)


def nvfp4(call: Call) -> Plan | Rejected:
    """y from two codes in a byte, by a scale per 16 columns and, where there is one, one of all of q."""
    return _plan(call, NV_GROUP, 1, FP4)


def _plan(call: Call, group: int, side: int, packed: str | None = None) -> Plan | Rejected:
    """One launch, with a scale per `group` columns, or per row where that is 0, of `side` rows. With
    `packed`, the format of its codes, q is bytes of two of them, and lengths and strides count codes."""
    views = {name: rows(call[name]) for name in ("q", "y")}
    if packed is not None:
        of_bytes = views["q"]
        views["q"] = Rows(of_bytes.count, 2 * of_bytes.length, 2 * of_bytes.stride)
    first = views["q"]
    dense = all(view.stride == view.length for view in views.values())
    if group and side == 1 and dense and first.length % group == 0:  # one long row
        total = first.count * first.length
        views = dict.fromkeys(views, Rows(1, total, total))
        first = views["q"]
    height = call["q"].shape[-2] if side > 1 else 1
    kind, across, grid = element_class(call, call["y"].dtype, views, CHUNKS)
    if grid > MAX_GRID:
        return Rejected(f"{grid} blocks exceed the grid")
    args = (
        *(pointer(call, name) for name in ("q", "scale")),
        pointer(call, "zero_point") if call["q"].dtype == "int8" else ("zero_point", Scalar("i64", 0)),
        pointer(call, "y"),
        ("rows", Scalar("i64", first.count)),
        ("length", Scalar("i64", first.length)),
        *stride_arguments(views),
        ("across", Scalar("i32", across)),
        ("groups", Scalar("i64", ceil_div(first.length, group) if group else 1)),
        ("height", Scalar("i64", max(height, 1))),
        ("down", Scalar("i64", ceil_div(height, side))),
    )
    if call.has("global_scale"):
        args = (*args, pointer(call, "global_scale"))
    defines: tuple[tuple[str, int | str], ...] = (
        ("S", "uint8_t" if itemsize(call["scale"].dtype) == 1 else "float"),
        ("GROUP", group),
        ("SIDE", side),
    )
    if call["q"].dtype != "int8":
        defines = (*defines, ("FORMAT", format_type(packed or call["q"].dtype)))
    if call["scale"].dtype == "float8_e4m3fn":
        defines = (*defines, ("SCALE_FORMAT", format_type(call["scale"].dtype)))
    if call.has("global_scale"):
        defines = (*defines, ("HAS_GLOBAL", 1))
    return Plan((Launch(kind.kernel(_SOURCE, "dequantize", defines), (grid, 1, 1), args),))
