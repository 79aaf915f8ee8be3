"""The plans of int_mm and int8_scaled_mm by Hopper's wgmma: scaled_mm's kernel with sums in int32."""

from __future__ import annotations

from pathlib import Path

from portable.kernels.matmul.launch_args import ceil
from portable.kernels.matmul.problem import Problem
from portable.kernels.scaled_mm.problem import product_of
from portable.kernels.scaled_mm.sm90.wgmma_plan import one_launch
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar, Workspace

_SOURCE = Path(__file__).with_name("column_sums.cu")
_COLUMNS = 8  # of a block of column_sums.cu
_WIDEST = 256  # columns of a tile, to whose end the sums of columns are read


def int_mm(call: Call) -> Plan | Rejected:
    """c [M, N] = a [M, K] @ b [K, N] of a row-major a and a column-major b, with 16-byte aligned lines."""
    return _plan(call, product_of(call, "a", "b"))


def int8_scaled_mm(call: Call) -> Plan | Rejected:
    """The same of mat_a and mat_b, with scales and perhaps a bias. With zero points a first launch adds up
    mat_b's columns."""
    return _plan(call, product_of(call))


def _plan(call: Call, product: Problem) -> Plan | Rejected:
    shifted = call.has("a_zero_point")
    defines = (
        ("INTEGER", 1),
        ("BLOCK_SCALES", 0),
        ("A_SCALES_BULK", 0),
        ("SCALED", int(call.has("scale_a"))),
        ("HAS_ZERO_POINT", int(shifted)),
    )
    points: tuple[tuple[str, Argument], ...] = ()
    if shifted:
        step = Scalar("i64", call["a_zero_point"].strides[0])
        points = (
            ("zero_point", Pointer("a_zero_point")),
            ("column_sums", Pointer("column_sums", True)),
            ("zero_point_row", step),
        )
    made = one_launch(product, call, defines, more=points)
    if isinstance(made, Rejected) or not shifted:
        return made
    space = Workspace("column_sums", (product.N + _WIDEST,), "int32")
    return Plan((_column_sums(product), *made.launches), (space,))


def _column_sums(product: Problem) -> Launch:
    kernel = NativeKernel(
        _SOURCE, "column_sums", threads=_COLUMNS * 32, defines=(("COLUMNS", _COLUMNS),), pdl=True
    )
    args: tuple[tuple[str, Argument], ...] = (
        ("b", Pointer(product.b.tensor, True)),
        ("sums", Pointer("column_sums", True)),
        ("n", Scalar("i32", product.N)),
        ("k", Scalar("i32", product.K)),
        ("leading", Scalar("i64", product.b.leading)),
    )
    return Launch(kernel, (ceil(product.N, _COLUMNS), 1, 1), args)
