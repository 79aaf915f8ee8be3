"""The gradient of linear's activation as a native kernel, alone and with its sums over the rows."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._lib.plans.column_sum import column_sum
from portable.kernels._lib.plans.elementwise_plan import elementwise_plan
from portable.kernels._lib.plans.row_class import (
    MAX_GRID,
    RowClass,
    pointer,
    power_of_two,
    stride_arguments,
    vector_length,
)
from portable.layout import rows
from portable.plan import Call, Launch, Plan, Pointer, Rejected, Scalar

SOURCE = Path(__file__).with_name("activation.cu")
SUMS_SOURCE = Path(__file__).with_name("activation_sums.cu")
NAMES = ("dy", "z", "dz")
THREADS = 256
DEFAULTS = {"ROWS": 64, "UNROLL": 4, "LANES": 32}
MOST_BLOCKS = 64  # per multiprocessor: beyond, a block takes more rows, so that there are fewer sums to add


def native(call: Call) -> Plan | Rejected:
    """dz from dy and z: one launch."""
    return elementwise_plan(call, NAMES, SOURCE, "activation_backward", (activation_define(call),))


def activation_define(call: Call) -> tuple[str, str]:
    """-DACTIVATION, by the names of _lib/rows/activation.h."""
    return "ACTIVATION", f"ACTIVATION_{call.params['activation'].upper()}"


def sums(call: Call) -> Plan | Rejected:
    """dz, and dbias, the sums of its columns: two launches."""
    config = {**DEFAULTS, **call.config}
    views = {name: rows(call[name]) for name in NAMES}
    count, length = views["dy"].count, views["dy"].length
    dtype = call["dy"].dtype
    vector = vector_length(dtype, [(call[name], view.stride) for name, view in views.items()])
    chunks = 1 if vector > 1 else 4
    lanes = min(power_of_two(-(-length // (vector * chunks))), config["LANES"])
    kind = RowClass(dtype, vector, length % vector != 0, THREADS, lanes, chunks, False)
    across = -(-length // (lanes * chunks * vector))
    at_once = kind.rows_per_block * config["UNROLL"]
    groups = min(-(-count // config["ROWS"]), max(MOST_BLOCKS * call.device.multiprocessors // across, 1))
    most = -(-count // max(groups, 1) // at_once) * at_once if groups else at_once
    groups = -(-count // most)
    if across * groups > MAX_GRID:
        return Rejected(f"{across * groups} blocks exceed the grid")
    kernel = kind.kernel(
        SUMS_SOURCE, "activation_sums", (activation_define(call), ("UNROLL", config["UNROLL"]))
    )
    args = (
        *(pointer(call, name) for name in NAMES),
        ("partial", Pointer("partial", aligned=True)),
        ("rows", Scalar("i64", count)),
        ("length", Scalar("i64", length)),
        *stride_arguments(views),
        ("across", Scalar("i32", across)),
        ("most", Scalar("i64", most)),
    )
    adding, partial = column_sum(call, "partial", ["dbias"], groups, length)
    return Plan((Launch(kernel, (across * groups, 1, 1), args), adding), (partial,))
