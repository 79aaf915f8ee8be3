"""swigluoai and its gradient as native kernels: tensors are one row each, of pairs in x and dx."""

from __future__ import annotations

from pathlib import Path

from portable.dtypes import itemsize
from portable.kernels._lib.plans.elementwise_plan import CHUNKS, SCALARS, THREADS
from portable.kernels._lib.plans.row_class import (
    ACCESS_BYTES,
    MAX_GRID,
    RowClass,
    pointer,
    scalar_arguments,
)
from portable.layout import ceil_div
from portable.plan import Call, Launch, Plan, Rejected, Scalar

SOURCE = Path(__file__).with_name("swigluoai.cu")


def forward(call: Call) -> Plan | Rejected:
    """y from x: one launch."""
    return _plan(call, ("x", "y"), call["y"].numel, "swigluoai_forward", "FORWARD")


def backward(call: Call) -> Plan | Rejected:
    """dx from dy and x: one launch."""
    return _plan(call, ("dy", "x", "dx"), call["dy"].numel, "swigluoai_backward", "BACKWARD")


def _plan(call: Call, names: tuple[str, ...], length: int, entry: str, which: str) -> Plan | Rejected:
    """A lane takes 16 bytes of x, half as many elements of y; one where a base is not aligned."""
    dtype = call["x"].dtype
    aligned = all(call[name].alignment >= ACCESS_BYTES for name in names)
    vector = ACCESS_BYTES // itemsize(dtype) // 2 if aligned else 1
    chunks = CHUNKS if aligned else SCALARS
    kind = RowClass(dtype, vector, length % vector != 0, THREADS, THREADS, chunks, False)
    blocks = ceil_div(length, THREADS * chunks * vector)
    if blocks > MAX_GRID:
        return Rejected(f"{blocks} blocks exceed the grid")
    args = (
        *(pointer(call, name) for name in names),
        ("length", Scalar("i64", length)),
        *scalar_arguments(call, ("alpha", "limit")),
    )
    kernel = kind.kernel(SOURCE, entry, (("PASS", which),))
    return Plan((Launch(kernel, (blocks, 1, 1), args),))
