"""Exact answers of sparse_scaled_mm, as probes.py has them of sparse_mm, and one that a sum kept in 13 bits
misses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.kernels.scaled_mm.probes import LOST, of_rows
from portable.kernels.sparse_mm.probes import SIZES, drawn, packed_places
from portable.kernels.sparse_mm.reference import PLACES, dense, sparse_scaled_mm

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
RESULTS = (torch.bfloat16, torch.float16)


def _called(call: Call, device: torch.device, **arguments: Any) -> Tensor:
    given = {"bias": None, "output_dtype": torch.bfloat16} | arguments
    moved = {name: each.to(device) if isinstance(each, Tensor) else each for name, each in given.items()}
    return call(moved)[0].cpu()


def _scales(rows: int, columns: int) -> dict[str, Tensor]:
    scale_a, scale_b = of_rows(rows, columns, 0)
    return {"scale_a": scale_a, "scale_b": scale_b}


def sums_of_integers(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """mat_a and values from -2 to 2, any pairs of places, scales of powers of two of which neighbours differ,
    with a bias and without: the sums are exact, and one rounding is left; one scale for all has stride 0"""
    for number, (rows, columns, width) in enumerate((*SIZES, (64, 64, 8))):
        a = (drawn(5, (rows, 8 * width), number) - 2).to(dtype)
        values = (drawn(5, (columns, 4 * width), 10 + number) - 2).to(dtype)
        meta = packed_places(drawn(len(PLACES), (columns, 2 * width), 20 + number))
        result = RESULTS[number % 2]
        bias = (torch.arange(columns) % 9 - 4).to(result)
        one = {
            "scale_a": torch.full((1, 1), 0.5).expand(rows, 1),
            "scale_b": torch.ones(1, 1).expand(1, columns),
        }
        for scales, added in ((_scales(rows, columns), None), (_scales(rows, columns), bias), (one, None)):
            wide = {name: each.double() for name, each in scales.items()}
            ref = sparse_scaled_mm(a.double(), values.double(), meta, **wide)
            ref = ref if added is None else ref + added.double()
            c = _called(
                call, device, mat_a=a, values=values, meta=meta, bias=added, output_dtype=result, **scales
            )
            if not torch.equal(c, ref.to(result)):
                return False
    return True


def single_values(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """one k at a time: w comes out element by element, every pair of places in every group of 512 k; its two
    values differ, and so do those of neighbouring groups and rows"""
    width, rows = 64, 48
    pair = (torch.arange(2 * width)[None] + torch.arange(rows)[:, None]) % len(PLACES)
    codes = 1 + (torch.arange(4 * width)[None] * 3 + torch.arange(rows)[:, None] * 7) % 126
    values, meta = codes.to(torch.uint8).view(dtype), packed_places(pair)
    a = torch.eye(8 * width).to(dtype)
    w = dense(values, meta).float()
    for part in (a, a[40:60]):  # many rows, and few
        ones = {"scale_a": torch.ones(len(part), 1), "scale_b": torch.ones(1, rows)}
        c = _called(call, device, mat_a=part, values=values, meta=meta, **ones)
        if not torch.equal(c.float(), part.float() @ w.T):
            return False
    return True


def promoted(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a long sum of positive numbers is not kept in 13 bits to its end; the result's own rounding is less"""
    for width in (1024, 4096):
        generator = torch.Generator().manual_seed(width)
        a = torch.rand(16, 8 * width, generator=generator).to(dtype)
        values = torch.rand(16, 4 * width, generator=generator).to(dtype)
        meta = packed_places(drawn(len(PLACES), (16, 2 * width), width))
        scales = _scales(16, 16)
        scales["scale_a"] = scales["scale_a"] / 2048  # float16 has the sums then
        ref = sparse_scaled_mm(a.double(), values.double(), meta, **scales)
        c = _called(call, device, mat_a=a, values=values, meta=meta, output_dtype=torch.float16, **scales)
        if not bool(((c.double() - ref).abs() <= (LOST + 2.0**-11) * ref).all()):
            return False
    return True


def nan_of_values(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a NaN of a value poisons its column alone, one of mat_a where w has a value its row"""
    width = 32
    for rows in (5, 140):
        a, values = torch.ones(rows, 8 * width), torch.ones(16, 4 * width)
        meta = packed_places(torch.ones(16, 2 * width, dtype=torch.long))  # places 0 and 2
        a[1, 64], values[3, 7], values[12, 100] = torch.nan, torch.nan, torch.nan
        ref = torch.full((rows, 16), 4.0 * width)
        ref[1], ref[:, 3], ref[:, 12] = torch.nan, torch.nan, torch.nan
        ones = {"scale_a": torch.ones(rows, 1), "scale_b": torch.ones(1, 16)}
        c = _called(call, device, mat_a=a.to(dtype), values=values.to(dtype), meta=meta, **ones).float()
        if not torch.equal(c.nan_to_num(-1.0), ref.nan_to_num(-1.0)):
            return False
    return True


def codes_of_zero_and_nan(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """-0 is a zero of both operands and NaN of either sign is one, wherever they lie; gfx942's instructions
    read -0 as NaN, and NaN as a number"""
    for rows, columns, width in ((5, 24, 32), (140, 130, 17)):
        a = drawn(3, (rows, 8 * width), rows) - 1.0
        values = drawn(3, (columns, 4 * width), columns) - 1.0
        meta = packed_places(torch.full((columns, 2 * width), len(PLACES) - 1))  # places 2 and 3
        a, values = (torch.where(each == 0, -0.0, each).to(dtype) for each in (a, values))
        scales = _scales(rows, columns)
        for found in (False, True):
            if found:
                bits_a, bits_values = a.view(torch.uint8), values.view(torch.uint8)
                bits_a[1, -1], bits_a[rows - 1, 2] = 0xFF, 0x7F
                bits_values[3, 0], bits_values[columns - 1, -1] = 0xFF, 0x7F
            ref = sparse_scaled_mm(a.double(), values.double(), meta, **scales).float()
            c = _called(call, device, mat_a=a, values=values, meta=meta, **scales).float()
            ref = ref.to(torch.bfloat16).float()
            if not torch.equal(c.nan_to_num(-1e9), ref.nan_to_num(-1e9)):
                return False
    return True


def large_scales(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a scale of 2^127 of the smallest numbers: no factor of the codes' format makes it infinite"""
    width = 16
    a, values = (torch.full((16, size * width), 2.0**-9).to(dtype) for size in (8, 4))
    meta = packed_places(torch.zeros(16, 2 * width, dtype=torch.long))
    scales = {"scale_a": torch.full((16, 1), 2.0**127), "scale_b": torch.ones(1, 16)}
    c = _called(call, device, mat_a=a, values=values, meta=meta, **scales)
    return torch.equal(c.double(), torch.full((16, 16), 4.0 * width * 2.0**109, dtype=torch.float64))


def empty(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a product over no k is the bias, or 0; one of no rows or columns is empty"""
    for rows, columns, width in ((0, 24, 16), (24, 0, 16), (24, 40, 0), (3, 40, 0), (0, 0, 0)):
        a, values = torch.ones(rows, 8 * width).to(dtype), torch.ones(columns, 4 * width).to(dtype)
        meta = packed_places(torch.zeros(columns, 2 * width, dtype=torch.long))
        for bias in (None, torch.arange(columns).to(torch.bfloat16)):
            c = _called(call, device, mat_a=a, values=values, meta=meta, bias=bias, **_scales(rows, columns))
            ref = torch.zeros(rows, columns) if bias is None else bias.float().expand(rows, columns)
            if c.shape != (rows, columns) or not torch.equal(c.float(), ref):
                return False
    return True


PROBES = (
    *(sums_of_integers, single_values, promoted, nan_of_values),
    *(codes_of_zero_and_nan, large_scales, empty),
)
