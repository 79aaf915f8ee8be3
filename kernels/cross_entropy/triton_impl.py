"""cross_entropy and its gradient in Triton: one pass over the logits each."""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.triton.log_sum_exp import (
    LOWEST,
    exponential,
    gradient_plan,
    lane_add,
    merge_lanes,
    scan_plan,
)
from portable.kernels._lib.triton.math import softcapped
from portable.kernels._lib.triton.pdl import enter_pdl
from portable.kernels._lib.triton.rows import divisible, element_tile, row_starts
from portable.kernels.cross_entropy.columns_triton import columns_plan
from portable.kernels.cross_entropy.loss_triton import row_gradient, row_loss
from portable.layout import are_rows
from portable.plan import Argument, Call, Plan, Rejected, Scalar


@triton.jit
def cross_entropy_rows(
    logits_ptr, target_ptr, weight_ptr, loss_ptr, lse_ptr, logits_stride, count, length,
    ignore_index, label_smoothing, softcap, z_loss,
    PDL: tl.constexpr, SOFTCAP: tl.constexpr, SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """loss and lse of ROWS rows of any length. Rows whose target is ignore_index are not read; no address
    follows from a target outside its row, whose loss is NaN."""
    enter_pdl(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    target = tl.load(target_ptr + row, mask=row < count, other=ignore_index).to(tl.int64)
    ignored = target == ignore_index
    legal = (target >= 0) & (target < length) & (ignored == 0)
    starts = row_starts(logits_ptr, row, logits_stride, UNIT)
    picked = tl.load(logits_ptr + row * logits_stride + target, mask=legal, other=float("nan")).to(tl.float32)
    if SOFTCAP:
        picked, _slope = softcapped(picked, softcap)
    read = (ignored == 0)[:, None]
    length = divisible(length, UNIT)
    lane = tl.arange(0, BLOCK)[None, :]
    highest = tl.full([ROWS, LANES], LOWEST, tl.float32)
    total = tl.zeros([ROWS, LANES], tl.float32)
    even = tl.zeros([ROWS, BLOCK], tl.float32)
    weights = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        col = start + lane
        mask = read & (col < length)
        x = tl.load(starts + col, mask=mask, other=0.0).to(tl.float32)
        if SOFTCAP:
            x, _curve = softcapped(x, softcap)
        if SMOOTHING:
            if weight_ptr is not None:
                of_class = tl.load(weight_ptr + col, mask=col < length, other=0.0)
                even += of_class * x
                weights += of_class
            else:
                even += tl.where(mask, x, 0.0)
        x = tl.where(mask, x, -float("inf"))
        highest, total, _moment = lane_add(x, highest, total, total, False, ROWS, BLOCK, UNIT, LANES)
    most, whole, _sum = merge_lanes(highest, total, total, False)
    loss, lse = row_loss(
        most, whole, picked, tl.sum(even, axis=1), tl.sum(weights, axis=1), weight_ptr, target, legal, length,
        label_smoothing, z_loss, SMOOTHING, Z_LOSS,
    )  # fmt: skip
    tl.store(loss_ptr + row, tl.where(ignored, 0.0, loss), mask=row < count)
    tl.store(lse_ptr + row, tl.where(ignored, 0.0, lse), mask=row < count)


@triton.jit
def cross_entropy_backward_elements(
    dloss_ptr, dlse_ptr, logits_ptr, target_ptr, weight_ptr, weight_mean_ptr, lse_ptr, dlogits_ptr,
    logits_stride, dlogits_stride, count, length, chunks, ignore_index, label_smoothing, softcap, z_loss,
    PDL: tl.constexpr, SOFTCAP: tl.constexpr, SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of one tile; zeros in ignored rows, which are not read."""
    enter_pdl(PDL)
    row, col, mask = element_tile(count, length, chunks, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    target, kept, upstream, lse, own, factor = row_gradient(
        row, count, length, dloss_ptr, dlse_ptr, target_ptr, weight_ptr, weight_mean_ptr, lse_ptr,
        ignore_index, label_smoothing, z_loss, SMOOTHING, Z_LOSS,
    )  # fmt: skip
    read = mask & kept[:, None]
    x = tl.load(row_starts(logits_ptr, row, logits_stride, UNIT) + col, mask=read, other=0.0).to(tl.float32)
    slope = 1.0
    if SOFTCAP:
        x, slope = softcapped(x, softcap)
    dx = factor[:, None] * exponential(x - lse[:, None])
    if SMOOTHING:
        even = (upstream * label_smoothing / length)[:, None]
        if weight_ptr is not None:
            even *= tl.load(weight_ptr + tl.minimum(col, length - 1))
        dx -= even
    dx = tl.where(col == target[:, None], dx - (upstream * own)[:, None], dx)
    dx *= slope
    out = row_starts(dlogits_ptr, row, dlogits_stride, UNIT) + col
    tl.store(out, dx.to(dlogits_ptr.dtype.element_ty), mask=mask)


def forward(call: Call) -> Plan | Rejected:
    """Plan loss and lse from logits, target and weight."""
    names = ("logits", "target", "weight", "loss", "lse")
    if not are_rows(call["logits"]):
        return columns_plan(call, names, _numbers(call), *_constants(call))
    return scan_plan(call, names, cross_entropy_rows, _numbers(call), *_constants(call))


def backward(call: Call) -> Plan | Rejected:
    """Plan dlogits from dloss, dlse, logits, target, the weights and lse."""
    names = ("dloss", "dlse", "logits", "target", "weight", "weight_mean", "lse", "dlogits")
    if not (are_rows(call["logits"]) and are_rows(call["dlogits"])):
        return columns_plan(call, names, _numbers(call), *_constants(call))
    return gradient_plan(call, names, cross_entropy_backward_elements, _numbers(call), *_constants(call))


def _constants(call: Call) -> tuple[tuple[str, bool], ...]:
    """What the kernel leaves out where it is not asked for."""
    given = call.params
    return (
        ("SOFTCAP", given["softcap"] is not None),
        ("SMOOTHING", given["label_smoothing"] != 0.0),
        ("Z_LOSS", given["z_loss"] != 0.0),
    )


def _numbers(call: Call) -> tuple[tuple[str, Argument], ...]:
    given = call.params
    return (
        ("ignore_index", Scalar("i64", given["ignore_index"])),
        ("label_smoothing", Scalar("f32", given["label_smoothing"])),
        ("softcap", Scalar("f32", 1.0 if given["softcap"] is None else given["softcap"])),
        ("z_loss", Scalar("f32", given["z_loss"])),
    )
