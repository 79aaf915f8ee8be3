"""The plan of sample.cu: a block per row."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._lib.plans.row_class import MAX_GRID, RowClass, pointer, power_of_two, vector_length
from portable.layout import ceil_div, rows
from portable.plan import Call, Launch, Plan, Rejected, Scalar

SOURCE = Path(__file__).with_name("sample.cu")
SETTINGS = ("offset", "temperature", "top_k", "top_p", "min_p")
KEY_SHIFT = {"bfloat16": 16, "float16": 13, "float32": 0}
"""The low bits of a float32 that a number of the type does not have: places are shorter by them."""
MOST_THREADS = 512
"""Of 1024 each would have 64 registers, and the sums of a search and their loads need more."""
LEAST_THREADS = 128
"""The draw cuts a row by the warps of a block, of which it needs two."""
CHUNKS = 2


def forward(call: Call) -> Plan | Rejected:
    """Plan the tokens: one launch."""
    logits = call["logits"]
    view = rows(logits)
    if view.count > MAX_GRID:
        return Rejected(f"{view.count} rows: more than {MAX_GRID} blocks")
    vector = vector_length(logits.dtype, [(logits, view.stride)])
    chunks = CHUNKS if vector > 1 else 4 * CHUNKS
    threads = power_of_two(ceil_div(view.length, vector * chunks))
    threads = max(LEAST_THREADS, min(threads, MOST_THREADS))
    kind = RowClass(logits.dtype, vector, view.length % vector != 0, threads, threads, chunks, False)
    defines = (
        ("KEY_SHIFT", KEY_SHIFT[logits.dtype]),
        *((f"HAS_{name.upper()}", int(call.has(name))) for name in SETTINGS),
    )
    args = (
        *(pointer(call, name) for name in ("logits", "seed", *SETTINGS, "token")),
        ("length", Scalar("i32", view.length)),
        ("logits_stride", Scalar("i64", view.stride)),
    )
    return Plan((Launch(kind.kernel(SOURCE, "sample", defines), (view.count, 1, 1), args),))
