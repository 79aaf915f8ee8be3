"""quantize_nvfp4 in Triton. q and scale are bytes to it: Triton's types of 8 bits are not on all GPUs."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from portable.kernels._lib.triton.minifloat import decode, encode, format_of
from portable.kernels._lib.triton.rows import row_starts
from portable.kernels.quantize_fp8.triton_impl import (
    WITH_SUBNORMALS,
    group_tile,
    magnitudes,
    plan_groups,
    store_pairs,
)
from portable.kernels.quantize_nvfp4.reference import FP4, GROUP, LEAST, OF_SCALES
from portable.plan import Call, Plan, Pointer, Rejected


@triton.jit
def scale_code(most, whole, LEAST: tl.constexpr, FORMAT: tl.constexpr):
    """The codes, uint8, for the bits of groups' greatest magnitudes; NaN stays. As quantize_nvfp4/scale.h."""
    scale = tl.div_rn(tl.div_rn(most.to(tl.float32, bitcast=True), 6.0), whole)
    return encode(tl.where(scale < LEAST, LEAST, scale), FORMAT)


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


def plan(call: Call) -> Plan | Rejected:
    """q and a scale per 16 columns: one launch."""
    constants: tuple[tuple[str, Any], ...] = (
        ("LEAST", LEAST),
        ("SCALE_FORMAT", format_of(OF_SCALES)),
        ("FORMAT", format_of(FP4)),
    )
    given = (("global_scale_ptr", Pointer("global_scale")),)
    return plan_groups(call, quantize_nvfp4, GROUP, constants, given, WITH_SUBNORMALS)
