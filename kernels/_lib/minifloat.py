"""Floating point types of 8 and 4 bits: exact conversions for the references, and parameters for kernels.

`minifloat.h` and `triton/minifloat.py` compute the same. All of them take the formats' facts from
portable.dtypes, round to nearest even, saturate (a finite number too large, and Inf, become the largest
finite number of that sign) and keep NaN where the type has one; where it has none NaN becomes 0. A zero keeps
its sign but in the fnuz types, which have no negative zero. torch's own conversions differ from release to
release: 2.11 makes NaN of what 2.13 saturates (pytorch#178817).

A code is an element's bits as uint8. Two codes of float4_e2m1fn share a byte, the first in the lower half.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portable import dtypes

OF_8_BITS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
"""The signed types of 8 bits."""
_MANTISSA, _BIAS = 52, 1023  # of float64


def encode(values: Tensor, dtype: str) -> Tensor:
    """The codes of float64 `values` in a signed type of 8 or 4 bits, of the same shape."""
    kind = dtypes.of(dtype)
    values = values.to(torch.float64)
    size = values.abs()
    drop = _MANTISSA - kind.mantissa
    bits = size.view(torch.int64)
    rounded = bits + ((1 << drop - 1) - 1) + (bits >> drop & 1)
    code = (rounded >> drop) - (_BIAS - kind.bias << kind.mantissa)
    # Beside this number, the step of float64 is that of the subnormal numbers: the addition rounds.
    magic = 2.0 ** (1 - kind.bias - kind.mantissa + _MANTISSA)
    smallest_normal = 2.0 ** (1 - kind.bias)
    below = (size.clamp(max=smallest_normal) + magic).view(torch.int64) - _bits(magic)
    code = torch.where(size < smallest_normal, below, code).clamp(max=kind.largest_code)
    negative = values.signbit() & (
        (code > 0) if kind.name.endswith("fnuz") else torch.ones_like(code, dtype=torch.bool)
    )
    code = code | negative.to(torch.int64) << kind.bits - 1
    return torch.where(values.isnan(), kind.nan_code or 0, code).to(torch.uint8)


def decode(codes: Tensor, dtype: str) -> Tensor:
    """The float64 numbers of codes, of the same shape; float8_e8m0fnu too, whose 0 is 2^-127."""
    kind = dtypes.of(dtype)
    code = codes.to(torch.int64)
    exponent = code >> kind.mantissa & (1 << kind.exponent) - 1
    fraction = code & (1 << kind.mantissa) - 1
    if not kind.signed:  # exponents alone
        return torch.where(code == kind.nan_code, torch.nan, torch.exp2(code.double() - kind.bias))
    step = 2.0 ** (1 - kind.bias - kind.mantissa)
    normal = (fraction + (1 << kind.mantissa)).double() * torch.exp2(exponent.double() - 1) * step
    size = torch.where(exponent == 0, fraction.double() * step, normal)
    if kind.has_infinity:
        top = exponent == (1 << kind.exponent) - 1
        size = torch.where(top, torch.where(fraction == 0, torch.inf, torch.nan), size)
    elif kind.nan_code is not None:
        size = torch.where((code == kind.nan_code) | (code == kind.nan_code | 0x80), torch.nan, size)
    return torch.where(code >> kind.bits - 1 == 1, -size, size)


def rounded(values: Tensor, dtype: str) -> Tensor:
    """`values` as the type has them, in float64."""
    return decode(encode(values, dtype), dtype)


def largest(dtype: str) -> float:
    """The largest finite number of a signed type."""
    kind = dtypes.of(dtype)
    exponent = kind.largest_code >> kind.mantissa
    fraction = kind.largest_code & (1 << kind.mantissa) - 1
    return (1 + fraction / (1 << kind.mantissa)) * 2.0 ** (exponent - kind.bias)


def pack(codes: Tensor) -> Tensor:
    """Codes of 4 bits, (..., 2 N), as bytes, (..., N): the first of two in the lower half."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack(packed: Tensor) -> Tensor:
    """What `pack` packed."""
    packed = packed.view(torch.uint8)
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)


def format_type(dtype: str) -> str:
    """The format as minifloat.h spells it, for a define."""
    kind = dtypes.of(dtype)
    nan = -1 if kind.nan_code is None else kind.nan_code
    fnuz = str(kind.name.endswith("fnuz")).lower()
    return f"Minifloat<{kind.bits},{kind.mantissa},{kind.bias},{kind.largest_code},{nan},{fnuz}>"


def constants(dtype: str) -> dict[str, int]:
    """The format as the functions of triton/minifloat.py take it."""
    kind = dtypes.of(dtype)
    return {
        "BITS": kind.bits,
        "MANTISSA": kind.mantissa,
        "BIAS": kind.bias,
        "LARGEST": kind.largest_code,
        "NAN": -1 if kind.nan_code is None else kind.nan_code,
        "FNUZ": int(kind.name.endswith("fnuz")),
    }


def _bits(value: float) -> int:
    return int(torch.tensor(value, dtype=torch.float64).view(torch.int64))
