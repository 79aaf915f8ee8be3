"""Conversions to and from types of 8 and 4 bits: every code, and every number near a midpoint of two."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch

from portable import dtypes
from portable.kernels._lib import minifloat

SIGNED = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn_x2"]
# Largest number, smallest normal and subnormal, codes of NaN (OCP's 8-bit and MX formats, CDNA3's ISA).
FACTS = {
    "float8_e4m3fn": (448.0, 2.0**-6, 2.0**-9, {0x7F, 0xFF}),
    "float8_e5m2": (57344.0, 2.0**-14, 2.0**-16, {0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF}),
    "float8_e4m3fnuz": (240.0, 2.0**-7, 2.0**-10, {0x80}),
    "float8_e5m2fnuz": (57344.0, 2.0**-15, 2.0**-17, {0x80}),
    "float4_e2m1fn_x2": (6.0, 1.0, 0.5, set()),
}


def codes(dtype: str) -> torch.Tensor:
    return torch.arange(1 << dtypes.of(dtype).bits, dtype=torch.int64).to(torch.uint8)


def finite(dtype: str) -> list[float]:
    """The finite numbers from 0 on, in order."""
    values = minifloat.decode(codes(dtype), dtype)
    return sorted({abs(v) for v in values[values.isfinite()].tolist()})


def nearest(value: float, numbers: list[float]) -> float:
    """The nearest of a type's numbers, the one of an even code of two, by fractions."""
    exact = Fraction(abs(value))
    gaps = {place: abs(exact - Fraction(each)) for place, each in enumerate(numbers)}
    least = min(gaps.values())
    best = [place for place, gap in gaps.items() if gap == least]
    return numbers[next(place for place in best if len(best) == 1 or place % 2 == 0)]


def near_midpoints(dtype: str, type_: torch.dtype) -> torch.Tensor:
    """Each midpoint of two neighbours, each number, and what is next to them in `type_`; both signs."""
    numbers = finite(dtype)
    middles = [(a + b) / 2 for a, b in itertools.pairwise(numbers)]
    points = torch.tensor(
        [*numbers, *middles, numbers[-1] * 1.5, 2.0**100, 2.0**-100], dtype=torch.float64
    ).to(type_)
    beside = [torch.nextafter(points, torch.full_like(points, end)) for end in (torch.inf, -torch.inf)]
    points = torch.cat([points, *beside])
    return torch.cat([points, -points])


@pytest.mark.parametrize("dtype", SIGNED)
def test_every_code_is_the_number_that_the_specification_gives(dtype):
    largest, normal, subnormal, nans = FACTS[dtype]
    values, kind = minifloat.decode(codes(dtype), dtype), dtypes.of(dtype)
    assert set(codes(dtype)[values.isnan()].tolist()) == nans
    assert (max(finite(dtype)), finite(dtype)[1]) == (largest, subnormal)
    assert finite(dtype)[1 << kind.mantissa] == normal
    assert values[kind.largest_code] == largest
    if kind.per_item == 1:
        torch_dtype = dtypes.of(dtype).torch
        assert torch_dtype is not None
        of_torch = codes(dtype).view(torch_dtype).to(torch.float64)
        assert torch.equal(values.nan_to_num(nan=-1.0), of_torch.nan_to_num(nan=-1.0))
        assert torch.equal(values.signbit()[~values.isnan()], of_torch.signbit()[~values.isnan()])
    else:
        assert finite(dtype) == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


@pytest.mark.parametrize("dtype", SIGNED)
def test_every_code_comes_back(dtype):
    values = minifloat.decode(codes(dtype), dtype)
    keep = values.isfinite()
    assert torch.equal(minifloat.encode(values[keep], dtype), codes(dtype)[keep])


@pytest.mark.parametrize("type_", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", SIGNED)
def test_what_lies_near_a_midpoint_is_rounded_to_nearest_even(dtype, type_):
    points, numbers = near_midpoints(dtype, type_), finite(dtype)
    got = minifloat.rounded(points, dtype).tolist()
    for value, made in zip(points.tolist(), got, strict=True):
        wanted = nearest(value, numbers)
        assert abs(made) == wanted and (not made or (made < 0) == (value < 0)), value


@pytest.mark.parametrize("dtype", SIGNED)
def test_the_ends(dtype):
    largest, *_, nans = FACTS[dtype]
    ends = torch.tensor([torch.inf, -torch.inf, 1e300, -1e300, 0.0, -0.0, torch.nan], dtype=torch.float64)
    made = minifloat.encode(ends, dtype)
    values = minifloat.decode(made, dtype)
    assert values[:4].tolist() == [largest, -largest, largest, -largest]
    negative_zero = not dtype.endswith("fnuz")
    assert values[4:6].tolist() == [0.0, 0.0] and values[4:6].signbit().tolist() == [False, negative_zero]
    assert (int(made[6]) in nans) if nans else True


def test_exponents_alone():
    values = minifloat.decode(codes("float8_e8m0fnu"), "float8_e8m0fnu")
    assert values[0] == 2.0**-127 and values[127] == 1 and values[254] == 2.0**127 and values[255].isnan()


def test_two_codes_share_a_byte_the_first_in_the_lower_half():
    packed = minifloat.pack(torch.tensor([1, 2, 15, 0], dtype=torch.uint8))
    assert packed.tolist() == [0x21, 0x0F] and minifloat.unpack(packed).tolist() == [1, 2, 15, 0]
