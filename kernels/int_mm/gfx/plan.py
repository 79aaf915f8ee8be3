"""The plans of int_mm and int8_scaled_mm in HIP C++: scaled_mm's kernel with sums in int32."""

from __future__ import annotations

from portable.kernels.scaled_mm.gfx.plan import one_launch
from portable.kernels.scaled_mm.problem import product_of
from portable.plan import Argument, Call, Plan, Pointer, Rejected, Scalar


def int_mm(call: Call) -> Plan | Rejected:
    """c [M, N] = a [M, K] @ b [K, N] on AMD's matrix units."""
    return _plan(call, "a", "b")


def int8_scaled_mm(call: Call) -> Plan | Rejected:
    """The same of mat_a and mat_b, with scales, and a bias and zero points where they are there."""
    return _plan(call, "mat_a", "mat_b")


def _plan(call: Call, a: str, b: str) -> Plan | Rejected:
    shifted = call.has("a_zero_point")
    defines = (
        ("INTEGER", 1),
        ("NATIVE", 1),
        ("A_FORMAT", "int8_t"),
        ("B_FORMAT", "int8_t"),
        ("BLOCKED", 0),
        ("SCALED", int(call.has("scale_a"))),
        ("HAS_ZERO_POINT", int(shifted)),
    )
    points: tuple[tuple[str, Argument], ...] = ()
    if shifted:
        step = call["a_zero_point"].strides[0]
        points = (("zero_point", Pointer("a_zero_point")), ("zero_point_row", Scalar("i64", step)))
    return one_launch(product_of(call, a, b), call, defines, points)
