"""quantize_mx in Triton. q and scale are bytes to it: Triton's types of 8 bits are not on all GPUs."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from portable.kernels._lib.minifloat import largest
from portable.kernels._lib.triton.minifloat import converts, encode, format_of
from portable.kernels._lib.triton.rows import row_starts
from portable.kernels.quantize_fp8.triton_impl import group_tile, magnitudes, plan_groups, store_pairs
from portable.kernels.quantize_mx.reference import FP4, GROUP, top_exponent
from portable.kernels.quantize_mx.words_triton import (
    codes_of,
    greatest_of,
    load_words,
    plan_words,
    store_codes,
)
from portable.plan import Call, Plan, Rejected


@triton.jit
def scale_code(most, inverse_largest, ROUNDING: tl.constexpr, TOP: tl.constexpr, MANTISSA: tl.constexpr):
    """The e8m0 codes, int32, for the bits of groups' greatest magnitudes; as quantize_mx/scale.h."""
    finite = most < 0x7F800000
    if ROUNDING == "rceil":
        bits = (most.to(tl.float32, bitcast=True) * inverse_largest).to(tl.int32, bitcast=True)
        code = tl.where(bits <= 0x00400000, 0, (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32))
    else:
        if ROUNDING == "even":
            most += 1 << (22 - MANTISSA)  # pyright: ignore[reportOperatorIssue]
        power = (most >> 23) - TOP
        if ROUNDING == "ceil":
            power += ((most & 0x7FFFFF) != 0).to(tl.int32)
        code = tl.maximum(power, 0)
    return tl.where(finite, code, 255)


@triton.jit
def inverse_of(code):
    """What numbers under scales are multiplied by."""
    return tl.where(code == 255, 0x7FC00000, (254 - code) << 23).to(tl.float32, bitcast=True)


@triton.jit
def quantize_mx(
    x_ptr, x_stride, q_ptr, q_stride, scale_ptr, groups, across, length,
    INVERSE_LARGEST: tl.constexpr, ROUNDING: tl.constexpr, TOP: tl.constexpr, FORMAT: tl.constexpr,
    CONVERT: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS of the `groups`, of BLOCK columns each; a row of x has `across` of them."""
    group, there, row, first, lane, mask = group_tile(groups, across, length, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    x = tl.load(row_starts(x_ptr, row, x_stride, UNIT) + first + lane, mask=mask, other=0.0)
    code = scale_code(tl.max(magnitudes(x), axis=1), INVERSE_LARGEST, ROUNDING, TOP, FORMAT[1])
    tl.store(scale_ptr + group, code.to(tl.uint8), mask=there)
    inverse = inverse_of(code)
    codes = encode(x.to(tl.float32) * inverse[:, None], FORMAT, CONVERT)
    q_row = row_starts(q_ptr, row, q_stride, UNIT)
    if FORMAT[0] == 4:
        store_pairs(q_row, first, length, there, codes, UNIT, ROWS, BLOCK)
    else:
        tl.store(q_row + first + lane, codes, mask=mask)


@triton.jit
def quantize_mxfp4_words(
    x_ptr, q_ptr, scale_ptr, groups,
    INVERSE_LARGEST: tl.constexpr, ROUNDING: tl.constexpr, TOP: tl.constexpr, FORMAT: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS of the `groups` of BLOCK numbers, which follow each other, to e2m1."""
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    words, group, there, place = load_words(x_ptr, groups, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    code = scale_code(greatest_of(words, dtype), INVERSE_LARGEST, ROUNDING, TOP, FORMAT[1])
    tl.store(scale_ptr + group, code.to(tl.uint8), mask=there)
    inverse = inverse_of(code)
    kept = tl.where(code == 255, 0, -1)
    store_codes(q_ptr, place, codes_of(words, inverse[:, None], kept[:, None], dtype), there)


def plan(call: Call) -> Plan | Rejected:
    """q and a scale per 32 columns: one launch."""
    constants = _constants(call, call["q"].dtype)
    return plan_groups(call, quantize_mx, GROUP, constants)


def fp4(call: Call) -> Plan | Rejected:
    """The same of numbers of 4 bits, two in a byte of q."""
    constants = _constants(call, FP4)
    planned = plan_words(call, quantize_mxfp4_words, GROUP, constants)
    return planned or plan_groups(call, quantize_mx, GROUP, constants)


def _constants(call: Call, dtype: str) -> tuple[tuple[str, Any], ...]:
    return (
        ("INVERSE_LARGEST", 1 / largest(dtype)),
        ("ROUNDING", call.params["rounding"]),
        ("TOP", top_exponent(dtype)),
        ("FORMAT", format_of(dtype)),
        ("CONVERT", converts(call.device, dtype)),
    )
