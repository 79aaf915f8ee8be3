"""cross_entropy and its gradient in Triton of logits in any strides, such as those of x @ weight.T as
(weight @ x.T).T, whose rows lie side by side.

A tile is BLOCK classes of ROWS rows of logits. ADJACENT says that neighbouring rows are neighbours in memory;
UNIT of them are then accessed at once.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from portable.dtypes import itemsize
from portable.kernels._lib.triton.log_sum_exp import LOWEST, Arguments, addend, exponential
from portable.kernels._lib.triton.math import softcapped
from portable.kernels._lib.triton.pdl import enter_pdl, pdl_constant
from portable.kernels._lib.triton.rows import MAX_GRID, UNFUSED, divisible, warps
from portable.kernels.cross_entropy.loss_triton import row_gradient, row_loss
from portable.layout import ceil_div
from portable.plan import Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel

_WIDTH, _THREADS = 32, 512
"""Rows of logits that a program of the forward pass takes, and its threads: 4096 rows are 128 programs, each
with 32 KB of loads in flight."""
_GRADIENT_WIDTH, _GRADIENT_THREADS = 128, 256
_FARTHEST_CLASS = 2**30


@triton.jit
def column_starts(ptr, row, stride, ADJACENT: tl.constexpr):
    """Pointers [1, ROWS] to the first class of each of the rows `row`, which are 64-bit numbers."""
    if ADJACENT:
        return ptr + row[None, :]
    else:
        return ptr + (row * stride)[None, :]


@triton.jit
def cross_entropy_columns(
    logits_ptr, target_ptr, weight_ptr, loss_ptr, lse_ptr, row_stride, class_stride, count, length,
    ignore_index, label_smoothing, softcap, z_loss,
    PDL: tl.constexpr, SOFTCAP: tl.constexpr, SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr,
    ADJACENT: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """loss and lse of ROWS rows. Each of LANES lanes of a row keeps a running maximum; no address follows
    from a target outside its row, whose loss is NaN."""
    enter_pdl(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    target = tl.load(target_ptr + row, mask=row < count, other=ignore_index).to(tl.int64)
    ignored = target == ignore_index
    legal = (target >= 0) & (target < length) & (ignored == 0)
    place = logits_ptr + row * row_stride + target * class_stride
    picked = tl.load(place, mask=legal, other=float("nan")).to(tl.float32)
    if SOFTCAP:
        picked, _slope = softcapped(picked, softcap)
    starts = column_starts(logits_ptr, row, row_stride, ADJACENT)
    step = divisible(class_stride, UNIT)
    there = (row < divisible(count, UNIT))[None, :]
    lane = tl.arange(0, BLOCK)
    highest = tl.full([LANES, ROWS], LOWEST, tl.float32)
    total = tl.zeros([LANES, ROWS], tl.float32)
    even = tl.zeros([LANES, ROWS], tl.float32)
    weights = tl.zeros([BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        index = start + lane
        mask = (index < length)[:, None] & there
        x = tl.load(starts + (index.to(tl.int64) * step)[:, None], mask=mask, other=0.0).to(tl.float32)
        if SOFTCAP:
            x, _curve = softcapped(x, softcap)
        if SMOOTHING:
            share = tl.where(mask, x, 0.0)
            if weight_ptr is not None:
                of_class = tl.load(weight_ptr + index, mask=index < length, other=0.0)
                share *= of_class[:, None]
                weights += of_class
            even += tl.sum(tl.reshape(share, [BLOCK // LANES, LANES, ROWS]), axis=0)
        x = tl.reshape(tl.where(mask, x, -float("inf")), [BLOCK // LANES, LANES, ROWS])
        larger = tl.maximum(highest, tl.max(x, axis=0))
        more = tl.sum(addend(larger[None, :, :] - x), axis=0)
        total = tl.fma(addend(larger - highest), total, more)
        highest = larger
    most = tl.max(highest, axis=0)
    whole = tl.sum(total * addend(most[None, :] - highest), axis=0)
    loss, lse = row_loss(
        most, whole, picked, tl.sum(even, axis=0), tl.sum(weights, axis=0), weight_ptr, target, legal, length,
        label_smoothing, z_loss, SMOOTHING, Z_LOSS,
    )  # fmt: skip
    tl.store(loss_ptr + row, tl.where(ignored, 0.0, loss), mask=row < count)
    tl.store(lse_ptr + row, tl.where(ignored, 0.0, lse), mask=row < count)


@triton.jit
def cross_entropy_columns_backward(
    dloss_ptr, dlse_ptr, logits_ptr, target_ptr, weight_ptr, weight_mean_ptr, lse_ptr, dlogits_ptr,
    row_stride, class_stride, dlogits_row_stride, dlogits_class_stride, count, length, across, ignore_index,
    label_smoothing, softcap, z_loss,
    PDL: tl.constexpr, SOFTCAP: tl.constexpr, SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr,
    ADJACENT: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of one tile of the logits; zeros in ignored rows. `across` tiles lie side by side."""
    enter_pdl(PDL)
    pid = tl.program_id(0)
    row = (pid % across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    index = (pid // across).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = (index < length)[:, None] & (row < divisible(count, UNIT))[None, :]
    starts = column_starts(logits_ptr, row, row_stride, ADJACENT)
    x = tl.load(starts + (index * divisible(class_stride, UNIT))[:, None], mask=mask, other=0.0).to(
        tl.float32
    )
    target, kept, upstream, lse, own, factor = row_gradient(
        row, count, length, dloss_ptr, dlse_ptr, target_ptr, weight_ptr, weight_mean_ptr, lse_ptr,
        ignore_index, label_smoothing, z_loss, SMOOTHING, Z_LOSS,
    )  # fmt: skip
    slope = 1.0
    if SOFTCAP:
        x, slope = softcapped(x, softcap)
    dx = factor[None, :] * exponential(x - lse[None, :])
    if SMOOTHING:
        even = (upstream * label_smoothing / length)[None, :]
        if weight_ptr is not None:
            even *= tl.load(weight_ptr + tl.minimum(index, length - 1))[:, None]
        dx -= even
    dx = tl.where(index[:, None] == target[None, :], dx - (upstream * own)[None, :], dx)
    dx = tl.where(kept[None, :], dx * slope, 0.0)
    out = column_starts(dlogits_ptr, row, dlogits_row_stride, ADJACENT)
    out += (index * divisible(dlogits_class_stride, UNIT))[:, None]
    tl.store(out, dx.to(dlogits_ptr.dtype.element_ty), mask=mask)


def columns_plan(
    call: Call, names: tuple[str, ...], numbers: Arguments, *constants: tuple[str, Any]
) -> Plan | Rejected:
    """One launch: the forward pass, or the backward pass where `dlogits` is among `names`. The kernels take
    `<name>_ptr` of each that is there (None else), the strides of the logits and of dlogits by row and by
    class, count, length and `numbers`."""
    backward = "dlogits" in names
    matrices = ("logits", "dlogits") if backward else ("logits",)
    count, length = call["logits"].shape
    unit = 16 // itemsize(call["logits"].dtype)
    adjacent = all(call[name].strides[0] == 1 for name in matrices)
    aligned = all(call[name].alignment >= 16 and call[name].strides[1] % unit == 0 for name in matrices)
    if not adjacent or not aligned or count % unit:
        unit = 1
    width, threads = (_GRADIENT_WIDTH, _GRADIENT_THREADS) if backward else (_WIDTH, _THREADS)
    across = ceil_div(count, width)
    lanes = threads * unit // width  # classes of one access
    block = lanes * 8 if backward else lanes * 4
    programs = across * ceil_div(length, block) if backward else across
    if programs > MAX_GRID or length > _FARTHEST_CLASS:
        return Rejected(f"{count} rows of {length} elements: more than {MAX_GRID} programs")
    present = [each for each in names if call.has(each)]
    strides = [stride for name in matrices for stride in call[name].strides]
    labels = ("row_stride", "class_stride", "dlogits_row_stride", "dlogits_class_stride")
    args = [
        *((f"{each}_ptr", Pointer(each, unit > 1 and each in matrices)) for each in present),
        *((label, Scalar("i64", stride)) for label, stride in zip(labels, strides, strict=False)),
        ("count", Scalar("i64", count)),
        ("length", Scalar("i64" if backward else "i32", length)),
        *((("across", Scalar("i32", across)),) if backward else ()),
        *numbers,
    ]
    function = cross_entropy_columns_backward if backward else cross_entropy_columns
    own = (("ADJACENT", adjacent), ("UNIT", unit), ("ROWS", width), ("BLOCK", block), ("LANES", lanes))
    fixed = tuple(pair for pair in own if pair[0] in function.arg_names)
    absent = tuple((f"{each}_ptr", None) for each in names if not call.has(each))
    kernel = TritonKernel(
        function, (*constants, *fixed, pdl_constant(call.device), *absent), warps(call.device, threads),
        options=() if backward else UNFUSED,
    )  # fmt: skip
    return Plan((Launch(kernel, (programs, 1, 1), tuple(args)),))
