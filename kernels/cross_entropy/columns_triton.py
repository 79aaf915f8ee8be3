"""cross_entropy and its gradient in Triton of logits in any strides, such as those of x @ weight.T as
(weight @ x.T).T, whose rows lie side by side.

A tile is BLOCK classes of ROWS rows of logits. ADJACENT says that neighbouring rows are neighbours in memory;
UNIT of them are then accessed at once.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from portable.plan import Call, Launch, Plan, Pointer, Rejected, Scalar, TritonKernel, Workspace

_WIDTH, _THREADS = 32, 512
"""Rows of logits that a program of the forward pass takes, and its threads: 4096 rows are 128 programs, each
with 32 KB of loads in flight."""
_GRADIENT_WIDTH, _GRADIENT_THREADS = 128, 256
SPAN = 2048
"""Of rows with more than twice so many classes a program takes that many; a second launch merges these parts.
Both follow from the classes alone, so that a row's bits do not depend on the other rows."""
_PART_WIDTH, _PART_THREADS, _PART_ACCESSES = 64, 128, 4
_MERGE_WIDTH, _MERGE_THREADS, _MERGE_LANES = 32, 128, 16
_FARTHEST_CLASS = 2**30


@triton.jit
def column_starts(ptr, row, stride, ADJACENT: tl.constexpr):
    """Pointers [1, ROWS] to the first class of each of the rows `row`, which are 64-bit numbers."""
    if ADJACENT:
        return ptr + row[None, :]
    else:
        return ptr + (row * stride)[None, :]


@triton.jit
def column_sums(
    logits_ptr, weight_ptr, row, begin, end, row_stride, class_stride, count, softcap,
    SOFTCAP: tl.constexpr, SMOOTHING: tl.constexpr,
    ADJACENT: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """(maximum, sum of exponentials about it, sum of the scores times their weights, sum of the weights) of
    the classes begin to end - 1 of ROWS rows. Each of LANES lanes of a row keeps a running maximum."""
    starts = column_starts(logits_ptr, row, row_stride, ADJACENT)
    step = divisible(class_stride, UNIT)
    there = (row < divisible(count, UNIT))[None, :]
    lane = tl.arange(0, BLOCK)
    highest = tl.full([LANES, ROWS], LOWEST, tl.float32)
    total = tl.zeros([LANES, ROWS], tl.float32)
    even = tl.zeros([LANES, ROWS], tl.float32)
    weights = tl.zeros([BLOCK], tl.float32)
    for start in range(begin, end, BLOCK):
        index = start + lane
        mask = (index < end)[:, None] & there
        x = tl.load(starts + (index.to(tl.int64) * step)[:, None], mask=mask, other=0.0).to(tl.float32)
        if SOFTCAP:
            x, _curve = softcapped(x, softcap)
        if SMOOTHING:
            share = tl.where(mask, x, 0.0)
            if weight_ptr is not None:
                of_class = tl.load(weight_ptr + index, mask=index < end, other=0.0)
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
    return most, whole, tl.sum(even, axis=0), tl.sum(weights, axis=0)


@triton.jit
def store_losses(
    row, most, whole, even, weights, logits_ptr, target_ptr, weight_ptr, loss_ptr, lse_ptr,
    row_stride, class_stride, count, length, ignore_index, label_smoothing, softcap, z_loss,
    SOFTCAP: tl.constexpr, SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr,
):  # fmt: skip
    """loss and lse of rows from `column_sums` of all classes; no address follows from a target outside its
    row, whose loss is NaN."""
    target = tl.load(target_ptr + row, mask=row < count, other=ignore_index).to(tl.int64)
    ignored = target == ignore_index
    legal = (target >= 0) & (target < length) & (ignored == 0)
    place = logits_ptr + row * row_stride + target * class_stride
    picked = tl.load(place, mask=legal, other=float("nan")).to(tl.float32)
    if SOFTCAP:
        picked, _slope = softcapped(picked, softcap)  # pyright: ignore[reportGeneralTypeIssues]
    loss, lse = row_loss(  # pyright: ignore[reportGeneralTypeIssues]
        most, whole, picked, even, weights, weight_ptr, target, legal, length,
        label_smoothing, z_loss, SMOOTHING, Z_LOSS,
    )  # fmt: skip
    tl.store(loss_ptr + row, tl.where(ignored, 0.0, loss), mask=row < count)
    tl.store(lse_ptr + row, tl.where(ignored, 0.0, lse), mask=row < count)


@triton.jit
def cross_entropy_columns(
    logits_ptr, target_ptr, weight_ptr, loss_ptr, lse_ptr, row_stride, class_stride, count, length,
    ignore_index, label_smoothing, softcap, z_loss,
    PDL: tl.constexpr, SOFTCAP: tl.constexpr, SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr,
    ADJACENT: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """loss and lse of ROWS rows."""
    enter_pdl(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    most, whole, even, weights = column_sums(
        logits_ptr, weight_ptr, row, 0, length, row_stride, class_stride, count, softcap,
        SOFTCAP, SMOOTHING, ADJACENT, UNIT, ROWS, BLOCK, LANES,
    )  # fmt: skip
    store_losses(
        row, most, whole, even, weights, logits_ptr, target_ptr, weight_ptr, loss_ptr, lse_ptr,
        row_stride, class_stride, count, length, ignore_index, label_smoothing, softcap, z_loss,
        SOFTCAP, SMOOTHING, Z_LOSS,
    )  # fmt: skip


@triton.jit
def cross_entropy_column_parts(
    logits_ptr, weight_ptr, parts_ptr, row_stride, class_stride, count, length, across, softcap,
    PDL: tl.constexpr, SOFTCAP: tl.constexpr, SMOOTHING: tl.constexpr,
    ADJACENT: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    LANES: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """The sums of SPAN classes of ROWS rows: 2 or 4 numbers of each, [parts, numbers, rows]. `across`
    programs lie side by side."""
    enter_pdl(PDL)
    pid = tl.program_id(0)
    part = pid // across
    row = (pid % across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    begin = part * SPAN
    most, whole, even, weights = column_sums(
        logits_ptr, weight_ptr, row, begin, tl.minimum(begin + SPAN, length), row_stride, class_stride, count,
        softcap, SOFTCAP, SMOOTHING, ADJACENT, UNIT, ROWS, BLOCK, LANES,
    )  # fmt: skip
    out = parts_ptr + part.to(tl.int64) * (4 if SMOOTHING else 2) * count + row
    tl.store(out, most, mask=row < count)
    tl.store(out + count, whole, mask=row < count)
    if SMOOTHING:
        tl.store(out + 2 * count, even, mask=row < count)
        tl.store(out + 3 * count, tl.zeros([ROWS], tl.float32) + weights, mask=row < count)


@triton.jit
def cross_entropy_merge_parts(
    logits_ptr, target_ptr, weight_ptr, loss_ptr, lse_ptr, parts_ptr, row_stride, class_stride, count, length,
    parts, ignore_index, label_smoothing, softcap, z_loss,
    PDL: tl.constexpr, SOFTCAP: tl.constexpr, SMOOTHING: tl.constexpr, Z_LOSS: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """loss and lse of ROWS rows from their `parts`, of which a lane takes every LANES-th."""
    enter_pdl(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, LANES)
    highest = tl.full([LANES, ROWS], LOWEST, tl.float32)
    total = tl.zeros([LANES, ROWS], tl.float32)
    even = tl.zeros([LANES, ROWS], tl.float32)
    weights = tl.zeros([LANES, ROWS], tl.float32)
    numbers: tl.constexpr = 4 if SMOOTHING else 2
    for start in range(0, parts, LANES):
        index = (start + lane)[:, None]
        mask = (index < parts) & (row < count)[None, :]
        place = parts_ptr + index.to(tl.int64) * numbers * count + row[None, :]
        most_of = tl.load(place, mask=mask, other=LOWEST)
        whole_of = tl.load(place + count, mask=mask, other=0.0)
        if SMOOTHING:
            even += tl.load(place + 2 * count, mask=mask, other=0.0)
            weights += tl.load(place + 3 * count, mask=mask, other=0.0)
        larger = tl.maximum(highest, most_of)
        total = total * addend(larger - highest) + whole_of * addend(larger - most_of)
        highest = larger
    most = tl.max(highest, axis=0)
    whole = tl.sum(total * addend(most[None, :] - highest), axis=0)
    store_losses(
        row, most, whole, tl.sum(even, axis=0), tl.sum(weights, axis=0), logits_ptr, target_ptr, weight_ptr,
        loss_ptr, lse_ptr, row_stride, class_stride, count, length, ignore_index, label_smoothing, softcap,
        z_loss, SOFTCAP, SMOOTHING, Z_LOSS,
    )  # fmt: skip


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


@dataclass(frozen=True)
class _Columns:
    """Logits in any strides, and their gradient where it is among `matrices`: `rows` of them and
    accesses * LANES classes make a tile of `threads`."""

    call: Call
    matrices: tuple[str, ...]
    rows: int
    threads: int
    accesses: int

    @property
    def adjacent(self) -> bool:
        return all(self.call[name].strides[0] == 1 for name in self.matrices)

    @property
    def unit(self) -> int:
        """Rows that one access takes."""
        tensors = [self.call[name] for name in self.matrices]
        unit = 16 // itemsize(tensors[0].dtype)
        aligned = all(each.alignment >= 16 and each.strides[1] % unit == 0 for each in tensors)
        return unit if self.adjacent and aligned and tensors[0].shape[0] % unit == 0 else 1

    @property
    def lanes(self) -> int:
        return self.threads * self.unit // self.rows

    @property
    def block(self) -> int:
        return self.lanes * self.accesses

    @property
    def across(self) -> int:
        return ceil_div(self.call["logits"].shape[0], self.rows)

    def pointers(self, names: tuple[str, ...]) -> Arguments:
        wide = self.matrices if self.unit > 1 else ()
        return tuple((f"{each}_ptr", Pointer(each, each in wide)) for each in names if self.call.has(each))

    def strides(self) -> Arguments:
        labels = ("row_stride", "class_stride", "dlogits_row_stride", "dlogits_class_stride")
        strides = [stride for name in self.matrices for stride in self.call[name].strides]
        return tuple((label, Scalar("i64", stride)) for label, stride in zip(labels, strides, strict=False))

    def kernel(
        self, function: Any, names: tuple[str, ...], *constants: tuple[str, Any], options: Any = UNFUSED
    ) -> TritonKernel:
        """`function` with the constants that it has; a None for each of `names` that is absent."""
        own = {"ADJACENT": self.adjacent, "UNIT": self.unit, "ROWS": self.rows, "BLOCK": self.block}
        given = {"LANES": self.lanes, **own, **dict(constants)}
        fixed = tuple(pair for pair in given.items() if pair[0] in function.arg_names)
        absent = tuple((f"{each}_ptr", None) for each in names if not self.call.has(each))
        device = self.call.device
        return TritonKernel(
            function, (*fixed, pdl_constant(device), *absent), warps(device, self.threads), options=options
        )


def columns_plan(
    call: Call, names: tuple[str, ...], numbers: Arguments, *constants: tuple[str, Any]
) -> Plan | Rejected:
    """The forward pass, or the backward pass where `dlogits` is among `names`: one launch, or two of more
    than 2 * SPAN classes forward. The kernels take `<name>_ptr` of each that is there (None else), the
    strides of the logits and of dlogits by row and by class, count, length and `numbers`."""
    count, length = call["logits"].shape
    if "dlogits" in names:
        tiles = _Columns(call, ("logits", "dlogits"), _GRADIENT_WIDTH, _GRADIENT_THREADS, 8)
        function, programs = cross_entropy_columns_backward, tiles.across * ceil_div(length, tiles.block)
    elif length > 2 * SPAN:
        return _parts_plan(call, names, numbers, *constants)
    else:
        tiles = _Columns(call, ("logits",), _WIDTH, _THREADS, 4)
        function, programs = cross_entropy_columns, tiles.across
    if rejected := _too_large(call, programs):
        return rejected
    backward = "dlogits" in names
    args = (
        *tiles.pointers(names),
        *tiles.strides(),
        ("count", Scalar("i64", count)),
        ("length", Scalar("i64" if backward else "i32", length)),
        *((("across", Scalar("i32", tiles.across)),) if backward else ()),
        *numbers,
    )
    kernel = tiles.kernel(function, names, *constants, options=() if backward else UNFUSED)
    return Plan((Launch(kernel, (programs, 1, 1), args),))


def _too_large(call: Call, programs: int) -> Rejected | None:
    count, length = call["logits"].shape
    if programs > MAX_GRID or length > _FARTHEST_CLASS:
        return Rejected(f"{count} rows of {length} elements: more than {MAX_GRID} programs")
    return None


def _parts_plan(
    call: Call, names: tuple[str, ...], numbers: Arguments, *constants: tuple[str, Any]
) -> Plan | Rejected:
    """The sums of SPAN classes each, and what merges them to the losses."""
    count, length = call["logits"].shape
    parts = ceil_div(length, SPAN)
    tiles = _Columns(call, ("logits",), _PART_WIDTH, _PART_THREADS, _PART_ACCESSES)
    if rejected := _too_large(call, tiles.across * parts):
        return rejected
    sizes = (*tiles.strides(), ("count", Scalar("i64", count)), ("length", Scalar("i32", length)))
    space = ("parts_ptr", Pointer("parts"))
    of_parts = ("logits", "weight")
    scan = Launch(
        tiles.kernel(cross_entropy_column_parts, of_parts, *constants, ("SPAN", SPAN)),
        (tiles.across * parts, 1, 1),
        (
            *tiles.pointers(of_parts),
            space,
            *sizes,
            ("across", Scalar("i32", tiles.across)),
            *((name, number) for name, number in numbers if name == "softcap"),
        ),
    )
    merged = _Columns(call, ("logits",), _MERGE_WIDTH, _MERGE_THREADS, 1)
    merge = Launch(
        merged.kernel(cross_entropy_merge_parts, names, *constants, ("LANES", _MERGE_LANES)),
        (merged.across, 1, 1),
        (*merged.pointers(names), space, *sizes, ("parts", Scalar("i32", parts)), *numbers),
    )
    sums = 4 if dict(constants)["SMOOTHING"] else 2
    return Plan((scan, merge), (Workspace("parts", (parts, sums, count), "float32"),))
