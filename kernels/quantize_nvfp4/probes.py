"""Exact answers of quantize_nvfp4, by tables of its types' numbers.

A probe is a function of a call of the op (its arguments by name, answering q and the scales), a dtype and a
device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from portable.kernels.quantize_fp8.codes import FP4, fp4_codes_of, fp4_points, numbers

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
ONE, LEAST, MOST, NAN = 0x38, 0x08, 0x7E, 0x7F
"""Codes of scales: of 1, 2^-6, 448 and NaN."""


def _answers(call: Call, x: Tensor, whole: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """The codes of the numbers and those of the scales."""
    q, scale = call({"x": x.to(device), "global_scale": torch.tensor([whole], device=device)})
    return fp4_codes_of(q.cpu()), scale.cpu().view(torch.uint8).int()


def scales_nearest_even(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a scale is the nearest to amax / 6 over the global scale, of two the one of an even code, from 2^-6 to
    448; beside midpoints the amax is the next number of x's type"""
    found = numbers(torch.float8_e4m3fn)
    middle = [(a + b) / 2 for a, b in itertools.pairwise(found)]
    exact, wanted = [*found, *middle], [*range(len(found)), *(i + i % 2 for i in range(len(middle)))]
    amax = 6 * torch.tensor(exact, dtype=torch.float64)
    beside = 6 * torch.tensor(middle, dtype=torch.float64)
    for whole in (1.0, 2.0**-3):
        scaled = (beside * whole).to(dtype)
        above, below = (torch.nextafter(scaled, torch.full_like(scaled, end)) for end in (torch.inf, 0.0))
        most = torch.cat([(amax * whole).to(dtype), above, below])
        codes = torch.tensor([*wanted, *range(1, len(found)), *range(len(middle))]).clamp(LEAST, MOST)
        x = torch.zeros(len(most), 16, dtype=dtype)
        x[torch.arange(len(most)), torch.arange(len(most)) % 16] = -most
        _, scale = _answers(call, x, whole, device)
        if scale[:, 0].tolist() != codes.tolist():
            return False
    return True


def nearest_even(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """x over both scales is rounded to the nearest, of two the one of an even code, in both halves of a byte;
    what is above 6 saturates where the scale was rounded down"""
    points, wanted = fp4_points()
    inside = points.abs() <= 6.25
    points, wanted = points[inside], wanted[inside]
    for whole in (1.0, 2.0**-6):
        for shift in (0, 1):
            x = pad(points, (shift, -(len(points) + shift) % 15)).view(-1, 15)
            x = (pad(x, (0, 1), value=6.25) * whole).to(torch.float32)
            narrow = x.to(dtype)
            kept = (narrow.float() == x)[:, :15].reshape(-1)[shift : shift + len(points)]
            codes, scale = _answers(call, narrow, whole, device)
            got = codes[:, :15].reshape(-1)[shift : shift + len(points)]
            if not (scale == ONE).all() or not torch.equal(got[kept], wanted[kept]):
                return False
            if not (codes[:, 15] == 7).all():
                return False
    return True


def greatest_anywhere(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the greatest magnitude of a group is found wherever it is, and groups do not meet"""
    for length in (16, 17, 48, 1000, 66000):
        starts = {0, (length - 1) // 16 * 16, length // 32 * 16}
        inside = {start + each for start in starts for each in (0, 1, 7, 8, 15) if start + each < length}
        places = torch.tensor(sorted(inside))
        x = torch.full((len(places), length), 0.75, dtype=dtype)
        x[torch.arange(len(places)), places] = -6.0
        codes, scale = _answers(call, x, 1.0, device)
        with_six = torch.arange(-(-length // 16)) == (places // 16)[:, None]
        if not torch.equal(scale, torch.where(with_six, ONE, ONE - 24).int()):
            return False
        if length % 2 and codes[:, -1].any():
            return False
    return True


def too_large(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """beyond 6 * 448 * global_scale both the scale and the numbers saturate, Inf too"""
    x = torch.full((2, 16), 6 * 448.0, dtype=dtype)
    x[0, :3] = torch.tensor([30000.0, -60000.0, 448.0])
    x[1, 3] = -torch.inf
    codes, scale = _answers(call, x, 1.0, device)
    return bool(
        (scale == MOST).all()
        and codes[0].tolist() == [7, 15, 2, *[7] * 13]
        and codes[1].tolist() == [7, 7, 7, 15, *[7] * 12]
    )


def without_numbers(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """NaN makes its scale NaN and its group 0, nothing else; of zeros the scale is 2^-6 and the signs stay; a
    global scale of NaN makes all scales NaN"""
    x = torch.full((3, 40), -6.0, dtype=dtype)
    x[1, 20], x[2, 39] = torch.nan, torch.nan
    x[0, 16:32] = 0.0
    x[0, 24] = -0.0
    codes, scale = _answers(call, x, 1.0, device)
    wanted = torch.full((3, 40), 15, dtype=torch.int16)
    wanted[1, 16:32], wanted[2, 32:], wanted[0, 16:32] = 0, 0, 0
    wanted[0, 24] = 8
    scales = [[ONE, LEAST, ONE], [ONE, NAN, ONE], [ONE, ONE, NAN]]
    if not torch.equal(codes, wanted) or scale.tolist() != scales:
        return False
    codes, scale = _answers(call, x, torch.nan, device)
    return bool((scale == NAN).all() and (codes == 0).all())


def ends_of_float32(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """no subnormal number is taken for 0: of a global scale, of amax / 6, of x, of what x is multiplied by;
    where that is Inf, 0 stays 0 and the rest saturates"""
    least = 2.0**-24 if dtype == torch.float16 else 2.0**-127
    points = torch.tensor([6.0, 0.0, 1.0, 2.0, 3.0, 4.0, -6.0, -1.0], dtype=torch.float64)
    codes, scale = _answers(call, points.to(dtype).repeat(2)[None], 2.0**-130, device)
    if scale.item() != MOST or codes[0].tolist() != 2 * [7, 0, 7, 7, 7, 7, 15, 15]:
        return False
    codes, scale = _answers(call, (points * least).to(dtype).repeat(2)[None], least, device)
    if scale.item() != ONE or codes[0].tolist() != 2 * [7, 0, 2, 4, 5, 6, 15, 10]:
        return False
    if dtype == torch.float16:
        return True
    large = (points * 2.0**125).to(dtype).repeat(2)[None]  # times 2^-125 / 4, which is subnormal
    codes, scale = _answers(call, large, 2.0**123, device)
    if scale.item() != ONE + 16 or codes[0].tolist() != 2 * [7, 0, 2, 4, 5, 6, 15, 10]:
        return False
    codes, scale = _answers(call, large, 2.0**125, device)
    return scale.item() == ONE and codes[0].tolist() == 2 * [7, 0, 2, 4, 5, 6, 15, 10]


def _nearest(value: Tensor, found: list[float]) -> Tensor:
    """The places in `found` of the numbers nearest to float64 values from 0 on, of two the even place."""
    table = torch.tensor(found, dtype=torch.float64)
    middle = (table[1:] + table[:-1]) / 2
    place = torch.bucketize(value, middle)  # of a midpoint the lower one
    tie = value == torch.nn.functional.pad(middle, (0, 1), value=torch.inf)[place]
    return torch.where(tie & (place % 2 == 1), place + 1, place)


def _rounded(value: Tensor) -> Tensor:
    return value.float().double()


def every_rounding(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the quotients are rounded one by one, in the order of the summary, in rows of whole groups and others:
    amax and x go past where the code changes in steps of float32, as x's type has them"""
    scales = (1 / 3, 0.7, 1.1, 2.0**-5 * 1.37, 2.0**-70 * 1.37)
    for whole in scales[:-1] if dtype == torch.float16 else scales:
        for more in (0, 1):
            if not _rounded_one_by_one(call, dtype, device, whole, more):
                return False
    return True


def _rounded_one_by_one(
    call: Call, dtype: torch.dtype, device: torch.device, whole: float, more: int
) -> bool:
    """`every_rounding` of one global scale; rows have `more` columns of zeros beyond whole groups."""
    found = numbers(torch.float8_e4m3fn)[LEAST:]
    scales = torch.tensor(found, dtype=torch.float64)
    steps = torch.arange(-7, 8) * 2.0**-23
    given = torch.tensor(whole).double()
    middle = (scales[1:] + scales[:-1]) / 2
    amax = ((6 * middle * given)[:, None] * (1 + steps)).flatten().to(dtype)
    _, code = _answers(call, pad(amax[:, None], (3, 12 + more)), whole, device)
    wanted = _nearest(_rounded(_rounded(amax.double() / 6) / given), found) + LEAST
    if not torch.equal(code[:, 0], wanted.int()):
        return False
    points = torch.tensor([(a + b) / 2 for a, b in itertools.pairwise(FP4)], dtype=torch.float64)
    ends = (scales[::5, None] * points * given).flatten()
    x = torch.cat([ends[:, None] * (1 + steps), (6 * scales[::5] * given).repeat_interleave(7)[:, None]], 1)
    x = x.to(dtype)
    codes, code = _answers(call, pad(x, (0, more)), whole, device)
    inverse = _rounded(_rounded(1 / given) / torch.tensor(numbers(torch.float8_e4m3fn))[code[:, :1]].double())
    return torch.equal(codes.long()[:, : x.shape[1]], _nearest(_rounded(x.double() * inverse), FP4))


PROBES = (
    scales_nearest_even, nearest_even, every_rounding, greatest_anywhere, too_large, without_numbers,
    ends_of_float32,
)  # fmt: skip
