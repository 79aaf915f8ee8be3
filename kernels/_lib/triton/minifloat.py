"""Floating point types of 8 and 4 bits in Triton: what minifloat.h computes, on any GPU, by any release.

A FORMAT is the values of portable.kernels._lib.minifloat.constants, in their order.
"""

from __future__ import annotations

import re

import triton
import triton.language as tl

from portable.kernels._lib.minifloat import constants
from portable.plan import Device

_CONVERTED = ("float8_e4m3fn", "float8_e5m2")


def format_of(dtype: str) -> tuple[int, ...]:
    """The FORMAT of a type."""
    return tuple(constants(dtype).values())


def converts(device: Device, dtype: str) -> bool:
    """Whether the GPU rounds to this type in one instruction that saturates and keeps NaN, has one from it to
    float16, and Triton uses both: cvt.rn of sm_89 and later. A code written out is fifteen instructions."""
    number = re.fullmatch(r"sm_(\d+)[af]?", device.arch)
    return number is not None and int(number[1]) >= 89 and dtype in _CONVERTED


@triton.jit
def encode(x, FORMAT: tl.constexpr, CONVERT: tl.constexpr = False):  # pyright: ignore[reportArgumentType]
    """The codes of float32 numbers, as uint8; with CONVERT, by the GPU's instruction (`converts`)."""
    if CONVERT:
        if FORMAT[1] == 3:
            codes = x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        else:
            codes = x.to(tl.float8e5).to(tl.uint8, bitcast=True)
    else:
        codes = written_out(x, FORMAT)
    return codes


@triton.jit
def written_out(x, FORMAT: tl.constexpr):
    """The same from integer operations and one addition."""
    BITS: tl.constexpr = FORMAT[0]
    MANTISSA: tl.constexpr = FORMAT[1]
    BIAS: tl.constexpr = FORMAT[2]
    LARGEST: tl.constexpr = FORMAT[3]
    NAN: tl.constexpr = FORMAT[4]
    FNUZ: tl.constexpr = FORMAT[5]
    DROP: tl.constexpr = 23 - MANTISSA
    MAGIC: tl.constexpr = (1 - BIAS - MANTISSA + 23 + 127) << 23
    SMALLEST_NORMAL: tl.constexpr = (1 - BIAS + 127) << 23
    whole = x.to(tl.int32, bitcast=True)
    bits = whole & 0x7FFFFFFF
    below = (bits.to(tl.float32, bitcast=True) + 2.0 ** (1 - BIAS - MANTISSA + 23)).to(
        tl.int32, bitcast=True
    ) - MAGIC
    rounded = (bits + ((1 << (DROP - 1)) - 1) + ((bits >> DROP) & 1)) >> DROP  # pyright: ignore[reportOperatorIssue]
    code = tl.where(bits < SMALLEST_NORMAL, below, rounded - ((127 - BIAS) << MANTISSA))
    # Of a number of the greatest exponent the sum is beyond int32: it is too large in any case.
    code = tl.where(bits >= 0x7F000000, LARGEST, tl.minimum(code, LARGEST))
    sign = ((whole >> 31) & 1) << (BITS - 1)
    code = tl.where(code == 0, 0, code | sign) if FNUZ else code | sign
    code = tl.where(bits > 0x7F800000, NAN if NAN >= 0 else 0, code)
    return code.to(tl.uint8)


@triton.jit
def decode(codes, FORMAT: tl.constexpr, CONVERT: tl.constexpr = False):  # pyright: ignore[reportArgumentType]
    """The float32 numbers of codes; with CONVERT, of uint8, by the GPU's instruction (`converts`) to float16,
    which has them all."""
    if not CONVERT:
        return decode_written_out(codes, FORMAT)
    else:
        return decode_halves(codes, FORMAT).to(tl.float32)


@triton.jit
def decode_halves(codes, FORMAT: tl.constexpr):
    """The float16 numbers of codes, uint8, by the GPU's instruction."""
    if FORMAT[1] == 3:
        x = codes.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    else:
        x = codes.to(tl.float8e5, bitcast=True).to(tl.float16)
    return x


@triton.jit
def decode_written_out(codes, FORMAT: tl.constexpr, BY_PRODUCT: tl.constexpr = False):  # pyright: ignore[reportArgumentType]
    """The same from integer operations and one product. BY_PRODUCT, without the choice of subnormal numbers,
    is the dequantisers'; not timed in products of matrices."""
    BITS: tl.constexpr = FORMAT[0]
    MANTISSA: tl.constexpr = FORMAT[1]
    BIAS: tl.constexpr = FORMAT[2]
    LARGEST: tl.constexpr = FORMAT[3]
    NAN: tl.constexpr = FORMAT[4]
    FNUZ: tl.constexpr = FORMAT[5]
    SIGN: tl.constexpr = 1 << (BITS - 1)  # pyright: ignore[reportOperatorIssue]
    code = codes.to(tl.int32)
    size = code & (SIGN - 1)
    if BY_PRODUCT:  # the bits where float32 has them: all are too small by the difference of the biases
        x = (size << (23 - MANTISSA)).to(tl.float32, bitcast=True) * 2.0 ** (127 - BIAS)
    else:
        normal = ((size << (23 - MANTISSA)) + ((127 - BIAS) << 23)).to(tl.float32, bitcast=True)
        subnormal = size < (1 << MANTISSA)  # pyright: ignore[reportOperatorIssue]
        x = tl.where(subnormal, size.to(tl.float32) * 2.0 ** (1 - BIAS - MANTISSA), normal)
    if NAN >= 0:
        if FNUZ:
            x = tl.where(code == NAN, float("nan"), x)
        else:
            x = tl.where(size > LARGEST, float("nan"), x)
            if MANTISSA == 2:
                x = tl.where(size == LARGEST + 1, float("inf"), x)
    return tl.where((code & SIGN) != 0, -x, x)
