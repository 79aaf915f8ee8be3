"""Exact answers of int8_int4_mm: sums of integers, single codes, groups whose sums float32 does not have.

A probe is a function of a call of the op (its arguments by name), a dtype and a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.kernels._lib import minifloat
from portable.kernels.int4_mm.int8_reference import int8_int4_mm

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
SIZES = (
    *((1, 7, 2, 3), (3, 72, 4, 16), (17, 129, 3, 32), (64, 64, 2, 64), (130, 136, 5, 64)),
    *((33, 40, 1, 144), (24, 24, 2, 12), (200, 64, 9, 16), (2, 8, 3, 48), (65, 256, 2, 128)),
)
"""Rows of mat_a and of the weight, groups, bytes of a group: all lengths that a kernel tells apart."""
RESULTS = (torch.bfloat16, torch.float16)


def _drawn(low: int, high: int, shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def _packed(codes: Tensor) -> Tensor:
    return minifloat.pack(codes.to(torch.uint8)).to(torch.uint8)


def _called(call: Call, device: torch.device, **arguments: Any) -> Tensor:
    given = {"zero_point": None, "bias": None, "output_dtype": torch.bfloat16} | arguments
    moved = {name: each.to(device) if isinstance(each, Tensor) else each for name, each in given.items()}
    return call(moved)[0].cpu()


def _ones(rows: int, columns: int, groups: int = 1) -> dict[str, Tensor]:
    return {"scale_a": torch.ones(rows, 1), "scale": torch.ones(columns, groups)}


def sums_of_integers(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """small mat_a, any codes, scales of powers of two of which those of neighbouring rows, groups and columns
    differ, with zero points and a bias and without: the sums are exact, and one rounding is left"""
    for number, (rows, columns, groups, half) in enumerate(SIZES):
        a = _drawn(-3, 4, (rows, 2 * groups * half), number).to(torch.int8)
        weight = _packed(_drawn(0, 16, (columns, groups, 2 * half), 20 + number))
        n, g = torch.arange(columns)[:, None], torch.arange(groups)[None]
        scales = {
            "scale_a": torch.exp2((5 * torch.arange(rows) % 6)[:, None].float()),
            "scale": torch.exp2(((3 * n + 2 * g) % 5).float()),
        }
        zero = _drawn(0, 17, (columns, groups), 40 + number).to(torch.uint8)
        result = RESULTS[number % 2]
        bias = (torch.arange(columns) % 9 - 4).to(result)
        scales["scale_a"] = scales["scale_a"] / 1024  # float16 has the sums then
        for points, added in ((None, None), (zero, bias), (zero.t().contiguous().t(), None)):
            wide = {name: each.double() for name, each in scales.items()}
            ref = int8_int4_mm(a, weight, **wide, zero_point=points)
            ref = ref if added is None else ref + added.double()
            given = {
                "mat_a": a,
                "weight": weight,
                "zero_point": points,
                "bias": added,
                "output_dtype": result,
            }
            if not torch.equal(_called(call, device, **given, **scales), ref.to(result)):
                return False
    return True


def single_codes(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """one k at a time: the weight comes out number by number, every code at every zero point"""
    groups, half, columns = 4, 64, 40
    codes = (torch.arange(2 * groups * half)[None] * 7 + torch.arange(columns)[:, None] * 3) % 16
    zero = ((torch.arange(columns)[:, None] + 5 * torch.arange(groups)[None]) % 17).to(torch.uint8)
    weight = _packed(codes.unflatten(1, (groups, 2 * half)))
    for points, of in ((None, torch.tensor(8)), (zero, zero.repeat_interleave(2 * half, 1))):
        w = (codes - of).to(torch.bfloat16)
        for a in (
            torch.eye(codes.shape[1]).to(torch.int8),
            -torch.eye(codes.shape[1])[100:117].to(torch.int8),
        ):
            given = {"mat_a": a, "weight": weight, "zero_point": points}
            c = _called(call, device, **given, **_ones(len(a), columns, groups))
            if not torch.equal(c, a.to(torch.bfloat16) @ w.T):
                return False
    return True


def ends_of_int8(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the greatest products, of -128 and 127 with 15 and -16, add up to what int32 has"""
    length = 4096
    for rows in (3, 140):
        a = torch.full((rows, length), -128, dtype=torch.int8)
        a[1::2] = 127
        weight = _packed(
            torch.cat([torch.full((8, 1, length), 15), torch.zeros(8, 1, length, dtype=torch.long)])
        )
        zero = torch.cat([torch.zeros(8, 1), torch.full((8, 1), 16)]).to(torch.uint8)
        scales = {"scale_a": torch.full((rows, 1), 2.0**-8), "scale": torch.full((16, 1), 2.0**-8)}
        ref = int8_int4_mm(
            a, weight, **{name: each.double() for name, each in scales.items()}, zero_point=zero
        ).to(torch.bfloat16)
        if not torch.equal(_called(call, device, mat_a=a, weight=weight, zero_point=zero, **scales), ref):
            return False
    return True


def exact_in_groups(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a group's sum goes far beyond 2^24 and comes back: what is left of it is 1, which float32 would lose"""
    length = 65536
    a = torch.full((5, length), 127, dtype=torch.int8)
    codes = torch.full((8, 1, length), 15)
    a[:, length // 2 :] = -127
    codes[:, :, 0], a[:, 0] = 8, 1  # one term of 0 where 127 * 7 was; its partner goes too
    codes[:, :, -1], a[:, -1] = 9, 1
    c = _called(call, device, mat_a=a, weight=_packed(codes), **_ones(5, 8))
    return torch.equal(c, torch.ones(5, 8, dtype=torch.bfloat16))


def not_rounded_before_the_end(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """sums of groups are added in float32: one of 2^15 + 1 and one of -2^15 leave 1, and a bias of -1 none"""
    for half in (16, 32, 64):
        for rows in (2, 130):
            a = torch.zeros(rows, 4 * half, dtype=torch.int8)
            codes = torch.full((8, 2, 2 * half), 8)
            codes[:, :, :8] = 12
            a[:, :8], a[:, 2 * half : 2 * half + 8] = 127, -127
            a[:, 8], codes[:, 0, 8] = 1, 9
            given = {"mat_a": a, "weight": _packed(codes), "bias": torch.full((8,), -8.0).to(torch.bfloat16)}
            scales = {"scale_a": torch.full((rows, 1), 8.0), "scale": torch.full((8, 2), 1.0)}
            c = _called(call, device, **given, **scales)
            if not torch.equal(c, torch.zeros(rows, 8, dtype=torch.bfloat16)):
                return False
    return True


def empty(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a product over no k is the bias, or 0; one of no rows or columns is empty"""
    for rows, columns, half in ((0, 24, 16), (24, 0, 16), (24, 40, 0), (3, 40, 0), (0, 0, 0)):
        a = torch.ones(rows, 4 * half, dtype=torch.int8)
        weight = _packed(_drawn(0, 16, (columns, 2, 2 * half), 3))
        for bias in (None, torch.arange(columns).to(torch.bfloat16)):
            c = _called(call, device, mat_a=a, weight=weight, bias=bias, **_ones(rows, columns, 2))
            ref = torch.zeros(rows, columns) if bias is None else bias.float().expand(rows, columns)
            if c.shape != (rows, columns) or (half == 0 and not torch.equal(c.float(), ref)):
                return False
    return True


PROBES = (
    *(sums_of_integers, single_codes, ends_of_int8, exact_in_groups, not_rounded_before_the_end, empty),
)
