"""selected_logprob and its gradient in Triton: one pass over the logits each."""

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
from portable.kernels._lib.triton.pdl import enter_pdl
from portable.kernels._lib.triton.rows import divisible, element_tile, row_starts
from portable.kernels.selected_logprob.native import BACKWARD, FORWARD, numbers
from portable.plan import Call, Plan, Rejected


@triton.jit
def selected_logprob_rows(
    logits_ptr, index_ptr, logprob_ptr, entropy_ptr, lse_ptr, logits_stride, count, length,
    inverse_temperature, PDL: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """logprob, entropy and lse of ROWS rows of any length. No address follows from an index outside its row,
    whose logprob is NaN."""
    enter_pdl(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < count
    index = tl.load(index_ptr + row, mask=there, other=-1).to(tl.int64)
    legal = (index >= 0) & (index < length)
    picked = tl.load(logits_ptr + row * logits_stride + index, mask=legal, other=float("nan")).to(tl.float32)
    starts = row_starts(logits_ptr, row, logits_stride, UNIT)
    length = divisible(length, UNIT)
    lane = tl.arange(0, BLOCK)[None, :]
    highest = tl.full([ROWS, LANES], LOWEST, tl.float32)
    total = tl.zeros([ROWS, LANES], tl.float32)
    moment = tl.zeros([ROWS, LANES], tl.float32)
    for start in range(0, length, BLOCK):
        col = start + lane
        mask = there[:, None] & (col < length)
        x = tl.load(starts + col, mask=mask, other=-float("inf")).to(tl.float32) * inverse_temperature
        highest, total, moment = lane_add(x, highest, total, moment, True, ROWS, BLOCK, UNIT, LANES)
    most, whole, of_row = merge_lanes(highest, total, moment, True)
    log_sum = tl.log(whole)
    tl.store(logprob_ptr + row, (picked * inverse_temperature - most) - log_sum, mask=there)
    tl.store(entropy_ptr + row, log_sum - of_row / whole, mask=there)
    tl.store(lse_ptr + row, most + log_sum, mask=there)


@triton.jit
def selected_logprob_backward_elements(
    dlogprob_ptr, dentropy_ptr, logits_ptr, index_ptr, entropy_ptr, lse_ptr, dlse_ptr, dlogits_ptr,
    logits_stride, dlogits_stride, count, length, chunks, inverse_temperature,
    PDL: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """With p = exp(score - lse), log(p) = score - lse and H = entropy, for one tile:
    (dlogprob * (one-hot - p) - dentropy * p * (log(p) + H) + dlse * p) / temperature."""
    enter_pdl(PDL)
    row, col, mask = element_tile(count, length, chunks, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    there = row < count
    index = tl.load(index_ptr + row, mask=there, other=0).to(tl.int64)
    of_logprob = tl.load(dlogprob_ptr + row, mask=there, other=0.0)
    of_logprob = tl.where((index < 0) | (index >= length), float("nan"), of_logprob)
    of_entropy = tl.load(dentropy_ptr + row, mask=there, other=0.0)
    entropy = tl.load(entropy_ptr + row, mask=there, other=0.0)
    lse = tl.load(lse_ptr + row, mask=there, other=0.0)
    of_power = -of_logprob
    if dlse_ptr is not None:
        of_power += tl.load(dlse_ptr + row, mask=there, other=0.0)
    x = tl.load(row_starts(logits_ptr, row, logits_stride, UNIT) + col, mask=mask, other=0.0).to(tl.float32)
    log_power = tl.fma(x, inverse_temperature, -lse[:, None])
    power = exponential(log_power)
    surprise = tl.where(power == 0.0, 0.0, power * (log_power + entropy[:, None]))
    dx = of_power[:, None] * power - of_entropy[:, None] * surprise
    dx = tl.where(col == index[:, None], dx + of_logprob[:, None], dx) * inverse_temperature
    out = row_starts(dlogits_ptr, row, dlogits_stride, UNIT) + col
    tl.store(out, dx.to(dlogits_ptr.dtype.element_ty), mask=mask)


def forward(call: Call) -> Plan | Rejected:
    """Plan logprob, entropy and lse from logits and index."""
    return scan_plan(call, FORWARD, selected_logprob_rows, numbers(call))


def backward(call: Call) -> Plan | Rejected:
    """Plan dlogits from the gradients of the three, logits, index, entropy and lse."""
    return gradient_plan(call, BACKWARD, selected_logprob_backward_elements, numbers(call))
