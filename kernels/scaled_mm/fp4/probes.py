"""Exact answers of products of 4 bits: sums of small integers, single elements, NaN in a scale.

A probe is a function of a call of the op (its arguments by name), the dtype of mat_a and a device. `Kind`
says what differs between scaled_mm_mxfp4 and scaled_mm_nvfp4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.kernels.quantize_fp8.codes import FP4

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
RESULTS = (torch.bfloat16, torch.float16, torch.float32)
SIZES = (
    (3, 136, 3584),
    (5, 264, 1056),
    (33, 40, 288),
    (2, 576, 288),
    (7, 129, 65),
    (130, 130, 65),
    (36, 36, 576),
)
"""M, N and bytes along k: long sums, ends of groups, as many columns as k, as many rows as columns."""


@dataclass(frozen=True)
class Kind:
    """Numbers that share a scale, and the codes of scales 1, 2, 4 and so on."""

    group: int
    dtype: torch.dtype
    one: int
    step: int
    nan: int
    whole: dict[str, Tensor]

    def scales(self, exponents: Tensor) -> Tensor:
        return (self.one + self.step * exponents).to(torch.uint8).view(self.dtype)


def _exponents(kind: Kind, rows: int, columns: int, length: int) -> tuple[Tensor, Tensor]:
    """Of scales of which those of neighbouring lines and groups differ."""
    group = torch.arange(-(-length // kind.group))
    m, n = torch.arange(rows)[:, None], torch.arange(columns)[:, None]
    return (5 * m + 2 * group) % 6, (3 * n + group) % 5


def _codes(rows: int, length: int, seed: int) -> Tensor:
    """Codes of 0, 0.5, 1, 1.5, 2 and their negatives."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.randint(0, 5, (rows, length), generator=generator)
    return size + 8 * torch.randint(0, 2, (rows, length), generator=generator)


def _packed(codes: Tensor) -> Tensor:
    """Two in a byte, the first in the lower half."""
    return (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8)


def _meaning(kind: Kind, a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor) -> Tensor:
    """The product of codes, rows of a and columns of b, under exponents of two."""
    table = torch.tensor([*FP4, *(-each for each in FP4)], dtype=torch.float64)
    wide = [
        table[codes] * torch.exp2(exponents.double()).repeat_interleave(kind.group, 1)[:, : codes.shape[1]]
        for codes, exponents in ((a, of_a), (b, of_b))
    ]
    c = wide[0] @ wide[1].T
    for each in kind.whole.values():
        c = c * each.double()
    return c


def _called(call: Call, kind: Kind, device: torch.device, *matrices: Tensor, **more: Any) -> Tensor:
    given = dict(zip(("mat_a", "mat_b", "scale_a", "scale_b"), matrices, strict=True))
    given |= {"bias": None} | kind.whole | more
    moved = {name: each.to(device) if isinstance(each, Tensor) else each for name, each in given.items()}
    return call(moved)[0].cpu()


def exact_sums(call: Call, dtype: torch.dtype, device: torch.device, kind: Kind) -> bool:
    """sums of small numbers under distinct powers of two come out exactly"""
    for number, (rows, columns, half) in enumerate(SIZES):
        a, b = _codes(rows, 2 * half, number), _codes(columns, 2 * half, number + 50)
        of_a, of_b = _exponents(kind, rows, columns, 2 * half)
        result = RESULTS[number % 3] if rows * half > 7000 else torch.float32
        bias = None if number % 2 else (torch.arange(columns) % 7 - 3.0).to(result)
        ref = _meaning(kind, a, b, of_a, of_b)
        ref = ref if bias is None else ref + bias.double()
        scales = kind.scales(of_a), kind.scales(of_b)
        for right in (_packed(b).t(), _packed(b).t().contiguous()):
            c = _called(call, kind, device, _packed(a), right, *scales, bias=bias, output_dtype=result)
            if not torch.equal(c.double(), ref.to(result).double()):
                return False
    return True


def one_hot(call: Call, dtype: torch.dtype, device: torch.device, kind: Kind) -> bool:
    """a row with one 1 gives that row of b, times its scales, bit for bit, whatever its codes are"""
    rows, columns, length = 70, 48, 192
    b = (torch.arange(columns)[:, None] + 5 * torch.arange(length)) % 16
    a = torch.zeros(rows, length, dtype=torch.long)
    a[torch.arange(rows), torch.arange(rows) * 37 % length] = 2
    of_a, of_b = _exponents(kind, rows, columns, length)
    scales = kind.scales(of_a), kind.scales(of_b)
    c = _called(call, kind, device, _packed(a), _packed(b).t(), *scales, output_dtype=torch.float32)
    return torch.equal(c.double(), _meaning(kind, a, b, of_a, of_b))


def every_scale(call: Call, dtype: torch.dtype, device: torch.device, kind: Kind) -> bool:
    """each code of a scale is its number, subnormal ones too, on either side; of e8m0 those from 2^-110 to
    2^110, where numbers are normal in bfloat16"""
    codes = torch.arange(256)
    values = codes.to(torch.uint8).view(kind.dtype).double()
    fits = values.isfinite() & (values.abs() <= 2.0**110) & ((values == 0) | (values.abs() >= 2.0**-110))
    codes = codes[fits]
    ones = torch.tensor([[2, 1]]).repeat(len(codes), 1)
    given = codes.to(torch.uint8).view(kind.dtype)[:, None]
    one = torch.tensor([[kind.one]], dtype=torch.uint8).view(kind.dtype)
    other = torch.tensor([[2, 3]])
    wanted = given[:, 0].double() * 1.75
    for each in kind.whole.values():
        wanted = wanted * each.double()
    left = _called(
        call, kind, device, _packed(ones), _packed(other).t(), given, one, output_dtype=torch.float32
    )
    right = _called(
        call, kind, device, _packed(other), _packed(ones).t(), one, given, output_dtype=torch.float32
    )
    return torch.equal(left[:, 0].double(), wanted) and torch.equal(right[0].double(), wanted)


def nan_poisons(call: Call, dtype: torch.dtype, device: torch.device, kind: Kind) -> bool:
    """NaN as a scale of a poisons its row, as one of b its column, and nothing else, also where all of its
    numbers are 0"""
    rows, columns, length = 40, 136, 200
    a, b = _codes(rows, length, 1), _codes(columns, length, 2)
    a[17], b[128] = 0, 0
    of_a, of_b = _exponents(kind, rows, columns, length)
    for row, column, group in ((0, 0, 0), (39, 135, length // kind.group), (17, 128, 3)):
        for side in (0, 1):
            scales = [kind.scales(each).view(torch.uint8).clone() for each in (of_a, of_b)]
            scales[side][(row, column)[side], group] = kind.nan
            of_nan = [each.view(kind.dtype) for each in scales]
            c = _called(call, kind, device, _packed(a), _packed(b).t(), *of_nan, output_dtype=torch.float32)
            expected = torch.zeros(rows, columns, dtype=torch.bool)
            expected[(row, slice(None)) if side == 0 else (slice(None), column)] = True
            if not torch.equal(c.isnan(), expected):
                return False
    return True


def empty(call: Call, dtype: torch.dtype, device: torch.device, kind: Kind) -> bool:
    """a product over no k is the bias, or zeros; one of no rows or columns is empty"""
    for rows, columns, length in ((0, 24, 160), (24, 0, 160), (24, 40, 0), (0, 0, 0)):
        a, b = _packed(_codes(rows, length, 1)), _packed(_codes(columns, length, 2)).t()
        scales = [kind.scales(each) for each in _exponents(kind, rows, columns, length)]
        for bias in (None, torch.arange(columns).to(torch.bfloat16)):
            c = _called(call, kind, device, a, b, *scales, bias=bias, output_dtype=torch.bfloat16)
            ref = torch.zeros(rows, columns) if bias is None else bias.float().expand(rows, columns)
            if c.shape != (rows, columns) or not torch.equal(c.float(), ref):
                return False
    return True


def probes_of(kind: Kind) -> tuple[Any, ...]:
    """The probes of an op of this kind."""
    made = []
    for each in (exact_sums, one_hot, every_scale, nan_poisons, empty):
        found: Any = partial(each, kind=kind)
        found.__name__, found.__doc__ = each.__name__, each.__doc__
        made.append(found)
    return tuple(made)
