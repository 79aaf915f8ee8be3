"""Rows of logits in Triton: the logarithm of the sum of a row's exponentials in one pass, and the launch of
elementwise gradients of it.

Every lane of a tile keeps a running maximum of its own and the sum of the exponentials about it; they are
merged at the end of the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl

from portable.dtypes import itemsize
from portable.kernels._lib.triton.pdl import pdl_constant
from portable.kernels._lib.triton.rows import (
    MAX_GRID,
    MIN_BLOCK,
    RowTile,
    row_tile,
    setting,
    too_large,
    unit_of,
    warps,
)
from portable.layout import ceil_div, next_power_of_2, rows
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar

LOWEST = tl.constexpr(-3.4028234663852886e38)
"""Where a running maximum begins: from -inf on, a row that begins with -inf would give -inf - -inf."""
FARTHEST = tl.constexpr(200.0)
"""The exponential of an element farther than that from the maximum is 0, whatever it is multiplied by."""
Arguments = Sequence[tuple[str, Argument]]


@triton.jit
def addend(distance):
    """exp(-distance) of a distance that is not negative, within as many units + 2, 0 below 2^-126: beside the
    1 of the maximum, which the sum has, that is nothing."""
    return tl.exp2(distance * -1.44269504088896340736)


@triton.jit
def lane_add(
    x, highest, total, moment, MOMENT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    UNIT: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """BLOCK more elements of each row, -inf for none, to its LANES: (maximum, sum of exponentials about it,
    sum of each times its element's distance from the maximum if MOMENT), [ROWS, LANES]; an exponential of 0
    adds nothing. A lane's elements are what a thread loads, UNIT neighbours at a time."""
    x = tl.reshape(x, [ROWS, BLOCK // (LANES * UNIT), LANES, UNIT])
    larger = tl.maximum(highest, tl.max(tl.max(x, axis=3), axis=1))
    distance = x - larger[:, None, :, None]
    power = addend(-distance)
    past = highest - larger
    scale = addend(-past)
    if MOMENT:
        more = tl.sum(tl.sum(power * tl.maximum(distance, -FARTHEST), axis=3), axis=1)
        moment = tl.fma(scale, moment + tl.maximum(past, -FARTHEST) * total, more)
    total = tl.fma(scale, total, tl.sum(tl.sum(power, axis=3), axis=1))
    return larger, total, moment


@triton.jit
def merge_lanes(highest, total, moment, MOMENT: tl.constexpr):
    """The same of each row, [ROWS], from its lanes'."""
    most = tl.max(highest, axis=1, keep_dims=True)
    distance = highest - most
    power = addend(-distance)
    whole = tl.sum(total * power, axis=1)
    of_row = whole
    if MOMENT:
        of_row = tl.sum(power * (moment + tl.maximum(distance, -FARTHEST) * total), axis=1)
    return tl.max(highest, axis=1), whole, of_row


@triton.jit
def exponential(x):
    """exp(x) of any x within |x| + 2 units in the last place, subnormal results included."""
    half = tl.exp2(x * 0.72134752044448170368)
    return half * half


def scan_plan(
    call: Call, names: Sequence[str], function: Any, numbers: Arguments, *constants: tuple[str, Any]
) -> Plan | Rejected:
    """One launch over rows; `names` are the logits and the tensors without rows of their own. The kernel
    takes `<name>_ptr` of each that is there (None else), logits_stride, count, length and `numbers`."""
    view, name = rows(call[names[0]]), names[0]
    unit = unit_of(call, [name], [name], view.length)
    tile = row_tile(call, view.length, unit, setting(call, "CHUNK"))
    if rejected := too_large(view.count, view.length, tile):
        return rejected
    args = [
        *((f"{each}_ptr", Pointer(each, unit > 1 and each == name)) for each in names if call.has(each)),
        (f"{name}_stride", Scalar("i64", view.stride)),
        ("count", Scalar("i64", view.count)),
        ("length", Scalar("i32", view.length)),
        *numbers,
    ]
    threads = tile.num_warps * call.device.warp_size
    lanes = min(threads // tile.rows, tile.block // tile.unit)
    kernel = tile.kernel(
        function, *constants, ("LANES", lanes), pdl_constant(call.device), *_absent(call, names)
    )
    return Plan((Launch(kernel, (ceil_div(view.count, tile.rows), 1, 1), tuple(args)),))


def gradient_plan(
    call: Call, names: Sequence[str], function: Any, numbers: Arguments, *constants: tuple[str, Any]
) -> Plan | Rejected:
    """One launch over tiles of TILE elements; of `names` the logits and the last one, their gradient, are
    rows. The kernel takes `<name>_ptr` of each that is there (None else), `<name>_stride` of those two,
    count, length, chunks (tiles per row) and `numbers`."""
    matrices = ("logits", names[-1])
    count, length, _ = rows(call["logits"])
    unit = unit_of(call, matrices, matrices, length)
    size = setting(call, "TILE")
    block = min(size, max(MIN_BLOCK, next_power_of_2(length)))
    per_thread = 16 // itemsize(call["logits"].dtype)
    tile = RowTile(size // block, block, unit, warps(call.device, size // per_thread), length > block)
    chunks = ceil_div(length, block)
    programs = chunks * ceil_div(count, tile.rows)
    if programs > MAX_GRID:
        return Rejected(f"{programs} tiles of {size} elements: more than {MAX_GRID}")
    present = [each for each in names if call.has(each)]
    args = [
        *((f"{each}_ptr", Pointer(each, unit > 1 and each in matrices)) for each in present),
        *((f"{each}_stride", Scalar("i64", rows(call[each]).stride)) for each in matrices),
        ("count", Scalar("i64", count)),
        ("length", Scalar("i64", length)),
        ("chunks", Scalar("i32", chunks)),
        *numbers,
    ]
    kernel = tile.kernel(function, *constants, pdl_constant(call.device), *_absent(call, names), options=())
    return Plan((Launch(kernel, (programs, 1, 1), tuple(args)),))


def _absent(call: Call, names: Sequence[str]) -> tuple[tuple[str, None], ...]:
    return tuple((f"{each}_ptr", None) for each in names if not call.has(each))
