"""Exact answers of int8_scaled_mm, as probes.py has them of int_mm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.kernels.int_mm.probes import drawn, layouts

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
RESULTS = (torch.bfloat16, torch.float16, torch.float32)


def _called(call: Call, device: torch.device, **arguments: Any) -> Tensor:
    given = {"bias": None, "a_zero_point": None, "output_dtype": torch.float32} | arguments
    moved = {name: each.to(device) if isinstance(each, Tensor) else each for name, each in given.items()}
    return call(moved)[0].cpu()


def _scales(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Powers of two of which neighbours differ, those of rows others than those of columns."""
    m, n = torch.arange(rows)[:, None], torch.arange(columns)[None]
    return torch.exp2((5 * m % 6).float()), torch.exp2((3 * n % 5 - 4).float())


def scales_of_rows_and_columns(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """sums under distinct powers of two come out exactly, of square matrices too, where a scale along the
    wrong axis has the right shape (torch's issue of block scales, vllm#53680); in any layout"""
    for rows, columns, length in ((33, 40, 72), (64, 64, 64), (130, 130, 130)):
        a, b, (scale_a, scale_b) = drawn(rows, length, 1), drawn(length, columns, 2), _scales(rows, columns)
        ref = (a.double() @ b.double()) * scale_a * scale_b
        for left, right in zip(layouts(a), reversed(layouts(b)), strict=True):
            c = _called(call, device, mat_a=left, mat_b=right, scale_a=scale_a, scale_b=scale_b)
            if not torch.equal(c.double(), ref):
                return False
    return True


def zero_points(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """of each row its own, both ends of int8 among them, and one for all with a stride of 0: the sums are
    those of a less its zero point"""
    a, b, (scale_a, scale_b) = drawn(37, 100, 3), drawn(100, 50, 4), _scales(37, 50)
    ends = torch.tensor([-128, 127, 0, -1, 1])
    for zero in (ends[torch.arange(37) % 5][:, None], *(each.reshape(1, 1).expand(37, 1) for each in ends)):
        ref = ((a.double() - zero) @ b.double()) * scale_a * scale_b
        given = {"scale_a": scale_a, "scale_b": scale_b, "a_zero_point": zero.int()}
        if not torch.equal(_called(call, device, mat_a=a, mat_b=b, **given).double(), ref):
            return False
    return True


def corrected_in_integers(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """what is at its zero point is 0, though the sum and its correction are near 2^31 each and no number of
    float32; one step beside it is one column's sum"""
    length = 65793
    one = torch.ones(1, 1)
    b = torch.full((length, 2), 127, dtype=torch.int8)
    b[0, 1] = -126
    for zero in (-128, 127):
        a = torch.full((2, length), zero, dtype=torch.int8)
        a[1, 0] += 1 if zero < 0 else -1
        given = {"scale_a": one.expand(2, 1), "scale_b": one.expand(1, 2)}
        points = torch.full((2, 1), zero, dtype=torch.int32)
        c = _called(call, device, mat_a=a, mat_b=b.t().contiguous().t(), a_zero_point=points, **given)
        step = 1.0 if zero < 0 else -1.0
        if c.tolist() != [[0.0, 0.0], [127.0 * step, -126.0 * step]]:
            return False
    return True


def one_order(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """float32 of the sum, times scale_a, times scale_b, plus bias, each rounded, then once to the result: not
    the sum in 16 bits (torchao multiplies in the scale's type), the scales multiplied first, a fused sum"""
    generator = torch.Generator().manual_seed(5)
    a, b = drawn(40, 2000, 6), drawn(2000, 48, 7)
    acc = (a.double() @ b.double()).float()
    scale_a, scale_b = (torch.rand(shape, generator=generator) / 8 for shape in ((40, 1), (1, 48)))
    for result in RESULTS:
        bias = (torch.randn(48, generator=generator) * 100).to(result)
        for given in (None, bias):
            ref = acc * scale_a * scale_b
            ref = ref if given is None else ref + given.float()
            c = _called(call, device, mat_a=a, mat_b=b, scale_a=scale_a, scale_b=scale_b, bias=given,
                        output_dtype=result)  # fmt: skip
            if not torch.equal(c, ref.to(result)):
                return False
    return True


def empty(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a product over no k is the bias, or 0, whatever the zero points; one of no rows or columns is empty"""
    for rows, columns, length in ((0, 24, 160), (24, 0, 160), (24, 40, 0), (0, 0, 0)):
        a, b, (scale_a, scale_b) = drawn(rows, length, 8), drawn(length, columns, 9), _scales(rows, columns)
        zero = torch.full((rows, 1), 127, dtype=torch.int32)
        for bias in (None, torch.arange(columns).float()):
            c = _called(call, device, mat_a=a, mat_b=b, scale_a=scale_a, scale_b=scale_b, bias=bias,
                        a_zero_point=zero)  # fmt: skip
            ref = torch.zeros(rows, columns) if bias is None else bias.expand(rows, columns)
            if c.shape != (rows, columns) or not torch.equal(c, ref):
                return False
    return True


PROBES = (scales_of_rows_and_columns, zero_points, corrected_in_integers, one_order, empty)
