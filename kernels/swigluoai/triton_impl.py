"""swigluoai and its gradient in Triton: tensors are one row each, of pairs in x and dx."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from portable.dtypes import itemsize
from portable.kernels._lib.triton.math import sigmoid_factors
from portable.kernels._lib.triton.pdl import enter_pdl, pdl_constant
from portable.kernels._lib.triton.rows import MAX_GRID, UNFUSED, RowTile, divisible, setting, warps
from portable.layout import ceil_div
from portable.plan import Argument, Call, Launch, Plan, Pointer, Rejected, Scalar


@triton.jit
def pairs_of(x_ptr, start, length, BLOCK: tl.constexpr):
    """(gate, up) of the BLOCK pairs from `start` on, in float32; zeros beyond `length` pairs."""
    place = 2 * start + tl.arange(0, 2 * BLOCK)
    x = tl.load(x_ptr + place, mask=place < 2 * length, other=0.0).to(tl.float32)
    return tl.split(tl.reshape(x, (BLOCK, 2)))


@triton.jit
def limited(gate, up, limit):
    """gate at most `limit`, up from -limit to limit; NaN stays NaN."""
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    return tl.where(gate > limit, limit, gate), up


@triton.jit
def swigluoai_elements(
    x_ptr, y_ptr, length, alpha, limit, PDL: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr
):
    """y = (up + 1) * gate * sigmoid(alpha * gate) for BLOCK pairs."""
    enter_pdl(PDL)
    WIDE: tl.constexpr = y_ptr.dtype.element_ty.primitive_bitwidth > 16
    length = divisible(length, UNIT)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    gate, up = pairs_of(x_ptr, start, length, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    gate, up = limited(gate, up, limit)  # pyright: ignore[reportGeneralTypeIssues]
    left, right, last, _ = sigmoid_factors(alpha * gate, WIDE)  # pyright: ignore[reportGeneralTypeIssues]
    y = (gate * left) * ((up + 1.0) * right) * last
    col = start + tl.arange(0, BLOCK)
    tl.store(y_ptr + col, y.to(y_ptr.dtype.element_ty), mask=col < length)


@triton.jit
def swigluoai_backward_elements(
    dy_ptr, x_ptr, dx_ptr, length, alpha, limit, PDL: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr
):
    """With s = sigmoid(alpha * gate): dgate = dy * (up + 1) * s * (1 + alpha * gate * (1 - s)) and
    dup = dy * gate * s; 0 where the limit holds, and where the argument is NaN, as for torch's clamp."""
    enter_pdl(PDL)
    WIDE: tl.constexpr = dx_ptr.dtype.element_ty.primitive_bitwidth > 16
    length = divisible(length, UNIT)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    col = start + tl.arange(0, BLOCK)
    dy = tl.load(dy_ptr + col, mask=col < length, other=0.0).to(tl.float32)
    gate, up = pairs_of(x_ptr, start, length, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    g, u = limited(gate, up, limit)  # pyright: ignore[reportGeneralTypeIssues]
    v = alpha * g
    left, right, last, complement = sigmoid_factors(v, WIDE)  # pyright: ignore[reportGeneralTypeIssues]
    dy *= right
    dgate = ((u + 1.0) * tl.fma(v, complement, 1.0) * left) * dy * last
    dup = (g * left) * dy * last
    dgate = tl.where(gate <= limit, dgate, 0.0)
    dup = tl.where(tl.abs(up) <= limit, dup, 0.0)
    dx = tl.reshape(tl.join(dgate, dup), (2 * BLOCK,))
    place = 2 * start + tl.arange(0, 2 * BLOCK)
    tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=place < 2 * length)


def forward(call: Call) -> Plan | Rejected:
    """Plan y, [*, N], from x, [*, N, 2], both contiguous and of one dtype."""
    return _plan(call, ("x", "y"), call["y"].numel, swigluoai_elements)


def backward(call: Call) -> Plan | Rejected:
    """Plan dx, [*, N, 2], from dy and x."""
    return _plan(call, ("dy", "x", "dx"), call["dy"].numel, swigluoai_backward_elements)


def _plan(call: Call, names: tuple[str, ...], length: int, function: Any) -> Plan | Rejected:
    """Programs of TILE pairs; a thread takes 16 bytes of x."""
    block, per_thread = setting(call, "TILE"), 8 // itemsize(call["x"].dtype)
    aligned = all(call[name].alignment >= 16 for name in names)
    unit = 2 * per_thread if aligned and length % (2 * per_thread) == 0 else 1
    programs = ceil_div(length, block)
    if programs > MAX_GRID:
        return Rejected(f"{programs} tiles of {block} pairs: more than {MAX_GRID}")
    tile = RowTile(1, block, unit, warps(call.device, block // per_thread), False)
    args: list[tuple[str, Argument]] = [(f"{name}_ptr", Pointer(name, aligned)) for name in names]
    args.append(("length", Scalar("i64", length)))
    args += [(name, Scalar("f32", call.params[name])) for name in ("alpha", "limit")]
    kernel = tile.kernel(function, pdl_constant(call.device), options=UNFUSED)
    return Plan((Launch(kernel, (programs, 1, 1), tuple(args)),))
