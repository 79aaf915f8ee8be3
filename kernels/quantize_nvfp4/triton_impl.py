"""quantize_nvfp4 in Triton. q and scale are bytes to it: Triton's types of 8 bits are not on all GPUs."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from portable.kernels._lib.triton.minifloat import converts, decode, encode, format_of
from portable.kernels._lib.triton.rows import row_starts
from portable.kernels.quantize_fp8.triton_impl import (
    WITH_SUBNORMALS,
    group_tile,
    magnitudes,
    plan_groups,
    store_pairs,
)
from portable.kernels.quantize_mx.words_triton import (
    codes_of,
    codes_with_nan,
    greatest_of,
    load_words,
    plan_words,
    store_codes,
)
from portable.kernels.quantize_nvfp4.reference import FP4, GROUP, LEAST, OF_SCALES
from portable.plan import Call, Plan, Pointer, Rejected

GIVEN = (("global_scale_ptr", Pointer("global_scale")),)


@triton.jit
def stored(scale, LEAST: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr):
    """The codes of scales, at least LEAST; NaN stays."""
    return encode(tl.where(scale < LEAST, LEAST, scale), FORMAT, CONVERT)


@triton.jit
def scale_code(most, whole, LEAST: tl.constexpr, FORMAT: tl.constexpr):
    """The codes, uint8, for the bits of groups' greatest magnitudes. As quantize_nvfp4/scale.h."""
    scale = tl.div_rn(tl.div_rn(most.to(tl.float32, bitcast=True), 6.0), whole)
    return stored(scale, LEAST, FORMAT, False)  # pyright: ignore[reportArgumentType]


@triton.jit
def quantize_nvfp4(
    x_ptr, x_stride, q_ptr, q_stride, scale_ptr, groups, across, length, global_scale_ptr,
    LEAST: tl.constexpr, SCALE_FORMAT: tl.constexpr, FORMAT: tl.constexpr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS of the `groups`, of BLOCK columns each; a row of x has `across` of them."""
    group, there, row, first, lane, mask = group_tile(groups, across, length, UNIT, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    x = tl.load(row_starts(x_ptr, row, x_stride, UNIT) + first + lane, mask=mask, other=0.0)
    whole = tl.load(global_scale_ptr)
    code = scale_code(tl.max(magnitudes(x), axis=1), whole, LEAST, SCALE_FORMAT)
    tl.store(scale_ptr + group, code, mask=there)
    inverse = tl.div_rn(tl.div_rn(1.0, whole), decode(code, SCALE_FORMAT))
    codes = encode(x.to(tl.float32) * inverse[:, None], FORMAT)
    store_pairs(row_starts(q_ptr, row, q_stride, UNIT), first, length, there, codes, UNIT, ROWS, BLOCK)


@triton.jit
def corrected(a, b, inverse, quotient):
    """`quotient`, which is next to a / b, with its remainder over b."""
    return tl.fma(tl.fma(-b, quotient, a), inverse, quotient)


@triton.jit
def usual_scale_code(most, whole, inverse, LEAST: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr):
    """`scale_code` for a global scale that `is_usual`, by products with its inverse and 1 / 6. One correction
    gives the nearest quotient by 6, of all float32; a second one that by any number. What is 2^20 global
    scales or more saturates, as that number does."""
    amax, end = most.to(tl.float32, bitcast=True), whole * 2.0**20
    amax = tl.where(amax > end, end, amax)  # NaN stays
    of_6 = corrected(amax, 6.0, 1.0 / 6.0, amax * (1.0 / 6.0))
    scale = corrected(of_6, whole, inverse, of_6 * inverse)
    return stored(corrected(of_6, whole, inverse, scale), LEAST, FORMAT, CONVERT)


@triton.jit
def is_usual(whole):
    """Whether a global scale is so far from the ends of float32 that no group of numbers, but of NaN, has
    NaN, and that no quotient that counts is subnormal."""
    return (whole > 2.0**-60) & (whole < 2.0**60)


@triton.jit
def quantize_nvfp4_words(
    x_ptr, q_ptr, scale_ptr, groups, global_scale_ptr,
    LEAST: tl.constexpr, SCALE_FORMAT: tl.constexpr, FORMAT: tl.constexpr, CONVERT: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS of the `groups` of BLOCK numbers, which follow each other."""
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    words, group, there, place = load_words(x_ptr, groups, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    most = greatest_of(words, dtype)
    whole = tl.load(global_scale_ptr)
    of_whole = tl.div_rn(1.0, whole)
    if is_usual(whole):
        code = usual_scale_code(most, whole, of_whole, LEAST, SCALE_FORMAT, CONVERT)
        scale = decode(code, SCALE_FORMAT, CONVERT)
        # Of a number of 4 bits no quotient is near the middle of two: any inverse that is close will do.
        of_scale = 1.0 / scale
        inverse = corrected(of_whole, scale, of_scale, of_whole * of_scale)
        kept = tl.where(scale == scale, -1, 0)
        codes = codes_of(words, inverse[:, None], kept[:, None], dtype)
    else:
        code = scale_code(most, whole, LEAST, SCALE_FORMAT)
        inverse = tl.div_rn(of_whole, decode(code, SCALE_FORMAT))
        codes = codes_with_nan(words, inverse[:, None], dtype, FORMAT)
    tl.store(scale_ptr + group, code, mask=there)
    store_codes(q_ptr, place, codes, there)


def words(call: Call) -> Plan | Rejected:
    """q and a scale per 16 columns, of rows that are whole groups: one launch."""
    planned = plan_words(call, quantize_nvfp4_words, GROUP, _constants(call), GIVEN, WITH_SUBNORMALS)
    return planned or Rejected("rows are not whole groups, not aligned or do not follow each other")


def plan(call: Call) -> Plan | Rejected:
    """q and a scale per 16 columns: one launch."""
    planned = words(call)
    if isinstance(planned, Plan):
        return planned
    return plan_groups(call, quantize_nvfp4, GROUP, _constants(call), GIVEN, WITH_SUBNORMALS)


def _constants(call: Call) -> tuple[tuple[str, Any], ...]:
    return (
        ("LEAST", LEAST),
        ("SCALE_FORMAT", format_of(OF_SCALES)),
        ("FORMAT", format_of(FP4)),
        ("CONVERT", converts(call.device, OF_SCALES)),
    )
