"""Exact answers of scaled_mm, and one that a sum kept in 13 bits misses.

A probe is a function of a call of the op (its arguments by name), the dtype of mat_a and a device.
`block_probes.py` asks the same of scaled_mm_block. Scales are powers of two, of neighbours distinct, within
2^10 of each other: sums of products of small integers are then exact in float32, whatever their order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.kernels.scaled_mm import reference

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
Scales = Callable[[int, int, int], tuple[Tensor, Tensor]]
"""The scales of a product of sizes M, N, K."""

RESULTS = (torch.bfloat16, torch.float16, torch.float32)
SIZES = ((3, 136, 7168), (5, 264, 2112), (33, 40, 576), (2, 576, 576), (7, 129, 129), (130, 130, 130))
"""M, N and K: long sums, ends of blocks, as many columns as k, as many rows as columns."""
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
PAIRS = {E4M3: ((E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2))}
"""By the dtype that a probe is asked for, those of mat_a and mat_b; of others both are that one."""
LOST = 2.0e-3
"""Relative error of a sum of positive numbers: by simulation 5e-4 in 13 bits with promotion, and without it
1.3e-2 of 1024 terms, 6.6e-2 of 4096. In float32 it is below 1e-5."""


def of_rows(rows: int, columns: int, _: int) -> tuple[Tensor, Tensor]:
    """scaled_mm's scales: neighbours differ."""
    m, n = torch.arange(rows)[:, None], torch.arange(columns)[None]
    return torch.exp2((5 * m % 6).float()), torch.exp2((3 * n % 5).float())


def of_blocks(rows: int, columns: int, length: int) -> tuple[Tensor, Tensor]:
    """scaled_mm_block's: those of neighbouring rows, blocks along k and blocks of columns differ."""
    along = torch.arange(-(-length // reference.BLOCK))
    m, n = torch.arange(rows)[:, None], torch.arange(-(-columns // reference.BLOCK))[None]
    return torch.exp2(((5 * m + 2 * along) % 6).float()), torch.exp2(((along[:, None] + 2 * n) % 5).float())


def _operands(rows: int, columns: int, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Integers from -2 to 2, b column-major."""
    generator = torch.Generator().manual_seed(rows + columns + length)
    a = torch.randint(-2, 3, (rows, length), generator=generator).float()
    b = torch.randint(-2, 3, (columns, length), generator=generator).float()
    return a.to(dtype), b.to(dtype).t()


def called(call: Call, device: torch.device, **arguments: Any) -> Tensor:
    """c [M, N] of a call on that device, without a bias where none is given."""
    given = {"bias": None} | arguments
    moved = {name: each.to(device) if isinstance(each, Tensor) else each for name, each in given.items()}
    return call(moved)[0].cpu()


def exact_sums(
    call: Call, dtype: torch.dtype, device: torch.device, scales: Scales, meaning: Callable[..., Tensor]
) -> bool:
    """sums of small integers under distinct powers of two come out exactly"""
    for number, (rows, columns, length) in enumerate(SIZES):
        a, b = _operands(rows, columns, length, dtype)
        scale_a, scale_b = scales(rows, columns, length)
        result = RESULTS[number % 3] if rows * length > 7000 else torch.float32
        bias = None if number % 2 else (torch.arange(columns) % 7 - 3.0).to(result)
        wide = [each.double() for each in (a, b, scale_a, scale_b)]
        ref = meaning(*wide, None if bias is None else bias.double())
        for right in (b, b.contiguous()):
            c = called(call, device, mat_a=a, mat_b=right, scale_a=scale_a, scale_b=scale_b, bias=bias,
                        output_dtype=result)  # fmt: skip
            if not torch.equal(c.double(), ref.to(result).double()):
                return False
    return True


def one_hot(
    call: Call, dtype: torch.dtype, device: torch.device, scales: Scales, meaning: Callable[..., Tensor]
) -> bool:
    """a row with one 1 gives that row of b, times its scales, bit for bit, whatever its codes are"""
    length, columns = 192, 256
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    codes = torch.where(codes.isfinite(), codes, 0.0)
    b = torch.stack([codes.roll(shift) for shift in range(length)]).to(dtype)
    a = torch.zeros(70, length)
    at = torch.arange(70) * 37 % length
    a[torch.arange(70), at] = 1.0
    scale_a, scale_b = scales(70, columns, length)
    ref = meaning(*(each.double() for each in (a, b, scale_a, scale_b)))
    c = called(call, device, mat_a=a.to(dtype), mat_b=b, scale_a=scale_a, scale_b=scale_b,
                output_dtype=torch.float32)  # fmt: skip
    return torch.equal(c.double(), ref)


def promoted(
    call: Call, dtype: torch.dtype, device: torch.device, scales: Scales, meaning: Callable[..., Tensor]
) -> bool:
    """a long sum of positive numbers is not kept in 13 bits to its end"""
    for length in (4096, 16384):
        generator = torch.Generator().manual_seed(length)
        a, b = (torch.rand(16, length, generator=generator).to(dtype) for _ in range(2))
        scale_a, scale_b = scales(16, 16, length)
        ref = meaning(*(each.double() for each in (a, b.t(), scale_a, scale_b)))
        c = called(call, device, mat_a=a, mat_b=b.t(), scale_a=scale_a, scale_b=scale_b,
                    output_dtype=torch.float32)  # fmt: skip
        if not bool(((c.double() - ref).abs() <= LOST * ref).all()):
            return False
    return True


def nan_poisons(
    call: Call, dtype: torch.dtype, device: torch.device, scales: Scales, meaning: Callable[..., Tensor]
) -> bool:
    """a NaN in a poisons its row, one in b its column, and nothing else"""
    rows, columns, length = 40, 136, 200
    nan = torch.full((), torch.nan).to(dtype).view(torch.uint8)
    negative = nan if str(dtype).endswith("fnuz") else nan ^ 0x80
    for row, column, k, code in ((0, 0, 0, nan), (39, 135, 199, nan), (17, 128, 131, negative)):
        a, b = _operands(rows, columns, length, dtype)
        scale_a, scale_b = scales(rows, columns, length)
        poisoned_a, poisoned_b = (each.clone().view(torch.uint8) for each in (a, b))
        poisoned_a[row, k] = code
        poisoned_b[k, column] = code
        for left, right, where in (
            (poisoned_a.view(dtype), b, (slice(row, row + 1), slice(None))),
            (a, poisoned_b.view(dtype), (slice(None), slice(column, column + 1))),
        ):
            expected = torch.zeros(rows, columns, dtype=torch.bool)
            expected[where] = True
            c = called(call, device, mat_a=left, mat_b=right, scale_a=scale_a, scale_b=scale_b,
                        output_dtype=torch.float32)  # fmt: skip
            if not torch.equal(c.isnan(), expected):
                return False
    return True


def every_code(
    call: Call, dtype: torch.dtype, device: torch.device, scales: Scales, meaning: Callable[..., Tensor]
) -> bool:
    """the product of any two codes is exact, that of NaN, Inf and zeros of both signs as IEEE 754 has it"""
    for left, right in PAIRS.get(dtype, ((dtype, dtype),)):
        for length, at in ((1, 0), (144, 131)):
            a = torch.zeros(256, length, dtype=torch.uint8)
            b = torch.zeros(256, length, dtype=torch.uint8)
            a[:, at] = b[:, at] = torch.arange(256)
            a, b = a.view(left), b.view(right).t()
            scale_a, scale_b = scales(256, 256, length)
            ref = meaning(*(each.double() for each in (a, b, scale_a, scale_b)))
            for columns in (b, b.contiguous()):
                c = called(call, device, mat_a=a, mat_b=columns, scale_a=scale_a, scale_b=scale_b,
                            output_dtype=torch.float32)  # fmt: skip
                same = (c.double() == ref) | (c.isnan() & ref.isnan())
                if not bool(same.all()):
                    return False
    return True


def finite_results_stay(
    call: Call, dtype: torch.dtype, device: torch.device, scales: Scales, meaning: Callable[..., Tensor]
) -> bool:
    """NaN and Inf leave the bits of results that have none of them among their operands as they were"""
    rows, columns, length = 70, 80, 272
    for left, right in PAIRS.get(dtype, ((dtype, dtype),)):
        generator = torch.Generator().manual_seed(0)
        a = torch.randn(rows, length, generator=generator).to(left)
        b = torch.randn(columns, length, generator=generator).to(right)
        scale_a, scale_b = scales(rows, columns, length)
        found = []
        for _ in range(2):
            found.append(called(call, device, mat_a=a, mat_b=b.t(), scale_a=scale_a, scale_b=scale_b,
                                 output_dtype=torch.float32)[1:, :-1])  # fmt: skip
            a, b = a.clone(), b.clone()
            a[0, 7], b[-1, 260] = torch.inf, -torch.inf  # NaN where a type has no Inf
        if not torch.equal(*found):
            return False
    return True


def empty(
    call: Call, dtype: torch.dtype, device: torch.device, scales: Scales, meaning: Callable[..., Tensor]
) -> bool:
    """a product over no k is the bias, or zeros; one of no rows or columns is empty"""
    for rows, columns, length in ((0, 24, 160), (24, 0, 160), (24, 40, 0), (0, 0, 0)):
        a, b = _operands(rows, columns, length, dtype)
        scale_a, scale_b = scales(rows, columns, length)
        for bias in (None, torch.arange(columns).to(torch.bfloat16)):
            c = called(call, device, mat_a=a, mat_b=b, scale_a=scale_a, scale_b=scale_b, bias=bias,
                        output_dtype=torch.bfloat16)  # fmt: skip
            ref = torch.zeros(rows, columns) if bias is None else bias.float().expand(rows, columns)
            if c.shape != (rows, columns) or not torch.equal(c.float(), ref):
                return False
    return True


KINDS = (exact_sums, one_hot, promoted, nan_poisons, every_code, finite_results_stay, empty)


def named(probe: Callable[..., bool], scales: Scales, meaning: Callable[..., Tensor]) -> Any:
    """A probe of an op with these scales and this reference."""
    found: Any = partial(probe, scales=scales, meaning=meaning)
    found.__name__, found.__doc__ = probe.__name__, probe.__doc__
    return found


PROBES = tuple(named(each, of_rows, reference.scaled_mm) for each in KINDS)
