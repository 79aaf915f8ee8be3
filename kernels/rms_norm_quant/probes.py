"""Exact answers of rms_norm_quant.

A probe is a function of a call of the op (its arguments by name, answering q and the scales), a dtype and a
device. With eps=0 the norms of numbers of one magnitude are 1 and -1, and one number among N - 1 zeros has
the norm sqrt(N): in float32 to within the rounding of a reciprocal root, in 16 bits exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.kernels._lib import minifloat
from portable.kernels.quantize_fp8 import reference as quantiser
from portable.kernels.quantize_fp8.codes import DTYPES, OF_NAN, codes_of, numbers

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
ROOTS = (4, 8, 32, 64, 256, 512)
"""sqrt(N) of rows that have one number: of the last ones a row is read several times."""


def _answers(
    call: Call, x: Tensor, weight: Tensor | None, device: torch.device, **params: Any
) -> tuple[Tensor, Tensor]:
    """The codes, any NaN as OF_NAN, and the scales."""
    weight = weight if weight is None else weight.to(device)
    q, scale = call({"x": x.to(device), "weight": weight, "eps": 0.0, **params})
    return codes_of(q.cpu()), scale.cpu()[:, 0]


def _signs(count: int, length: int, dtype: torch.dtype) -> Tensor:
    """Rows of 1 and -1 in an order of their own."""
    place = torch.arange(count * length).view(count, length)
    return (1 - 2 * (place * 7919 // 13 % 2)).to(dtype)


def _are(scale: Tensor, wanted: float, dtype: torch.dtype) -> bool:
    """Whether the scales are float32(wanted): in float32 to within roundings of the norm."""
    exact = torch.full_like(scale, wanted)
    within = 2.0**-21 if dtype == torch.float32 else 0.0
    return bool(((scale - exact).abs() <= within * exact).all())


def one_number(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """one huge number of a row becomes the largest of the type, wherever it is, and its scale is of its norm
    after the weight"""
    huge = 2.0**6 if dtype == torch.float16 else 2.0**60
    for root in ROOTS:
        length = root * root
        places = torch.tensor([0, length // 2 + 1, length - 1])
        x = torch.zeros(len(places), length, dtype=dtype)
        x[torch.arange(len(places)), places] = -huge
        weight = torch.full((length,), 4.0, dtype=dtype)
        weight[places] = 0.5
        codes, scale = _answers(call, x, weight, device, dtype=torch.float8_e4m3fn)
        top = codes_of(torch.tensor(-448.0).to(torch.float8_e4m3fn))
        wanted = torch.zeros_like(codes)
        wanted[torch.arange(len(places)), places] = top
        if not _are(scale, root / 2 / 448, dtype) or not torch.equal(
            codes & ~((codes == 0x80) * 0x80), wanted
        ):
            return False
    return True


def every_number(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """weights that are the type's numbers come back as their codes, with x's signs"""
    for kind in DTYPES:
        found = torch.tensor(numbers(kind)[1:])
        x = _signs(3, len(found), dtype)
        codes, scale = _answers(call, x, found.to(dtype), device, dtype=kind)
        if not _are(scale, 1.0, dtype) or not torch.equal(codes, codes_of((x.float() * found).to(kind))):
            return False
    return True


def weights_of_zeros(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """weights of 0 leave scale_eps / largest; with an offset of 2 the norm is 2"""
    for kind in DTYPES:
        most = numbers(kind)[-1]
        weight, x = torch.zeros(70, dtype=dtype), _signs(2, 70, dtype) * 3
        codes, scale = _answers(call, x, weight, device, dtype=kind, scale_eps=most * 2.0**-9)
        if (codes & 0x7F).any() or not (scale == 2.0**-9).all():
            return False
        codes, scale = _answers(call, x, weight, device, dtype=kind, weight_offset=2.0)
        wanted = codes_of((x.sign().float() * most).to(kind))
        if not torch.equal(codes, wanted) or not _are(scale, 2 / most, dtype):
            return False
    return True


def of_the_rounded_norm(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the scale is that of the norm as x's dtype has it: 1 + 2^-12 is 1 in 16 bits"""
    x, weight = _signs(2, 90, dtype), torch.ones(90, dtype=dtype)
    y = float((1 + torch.tensor(2.0**-12)).to(dtype))
    for kind in DTYPES:
        _, scale = _answers(call, x, weight, device, dtype=kind, weight_offset=2.0**-12)
        if not _are(scale, y / numbers(kind)[-1], dtype):
            return False
    return True


def as_the_quantiser(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """where the norm is known, in 16 bits, q and scale have the bits of quantize_fp8"""
    narrow = torch.float16 if dtype == torch.float32 else dtype
    length = 1003
    weight = ((torch.arange(length) * 7919 % 1009 - 500) / 64).to(narrow)
    x = _signs(3, length, narrow)
    for kind in DTYPES:
        name = str(kind).removeprefix("torch.")
        for power_of_2 in (False, True):
            codes, scale = _answers(call, x, weight, device, dtype=kind, power_of_2=power_of_2)
            y = x.double() * weight.double()
            wanted, own = quantiser.row(y, power_of_2, 1e-10, {"Q": name})
            code = codes_of(minifloat.encode(wanted, name).view(kind))
            if not torch.equal(codes, code) or not torch.equal(scale.double(), own[:, 0]):
                return False
    return True


def without_numbers(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a NaN or an Inf makes its row and its scale NaN; the row beside is as it was"""
    x = _signs(5, 9, dtype)
    x[1, 2], x[2, 8], x[3, 0] = torch.nan, torch.inf, -torch.inf
    for kind in DTYPES:
        codes, scale = _answers(call, x, None, device, dtype=kind)
        most = numbers(kind)[-1]
        wanted = codes_of((x.float() * most).to(kind))
        if not (codes[1:4] == OF_NAN).all() or not scale[1:4].isnan().all():
            return False
        if not torch.equal(codes[::4], wanted[::4]) or not _are(scale[::4], 1 / most, dtype):
            return False
    return True


PROBES = (one_number, every_number, weights_of_zeros, of_the_rounded_norm, as_the_quantiser, without_numbers)
