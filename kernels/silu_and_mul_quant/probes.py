"""Exact answers of silu_and_mul_quant.

A probe is a function of a call of the op (its arguments by name, answering q and the scales), a dtype and a
device. Beside a gate of 32, whose sigmoid is 1 to within 2^-46, y is 32 * up: in float32 to within the
rounding of a reciprocal, in 16 bits exactly. Rows have at most 128 elements, one group.
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
GATE = 32.0


def _beside(up: Tensor, gate: float = GATE) -> Tensor:
    """[gate | up], gate all one number."""
    return torch.stack([torch.full_like(up, gate), up], -2)


def _answers(call: Call, x: Tensor, device: torch.device, **params: Any) -> tuple[Tensor, Tensor]:
    """The codes, any NaN as OF_NAN, and the scales."""
    q, scale = call({"x": x.to(device), **params})
    return codes_of(q.cpu()), scale.cpu()[:, 0]


def _are(scale: Tensor, wanted: float, dtype: torch.dtype) -> bool:
    """Whether the scales are float32(wanted): in float32 to within roundings of silu."""
    exact = torch.full_like(scale, wanted)
    within = 2.0**-21 if dtype == torch.float32 else 0.0
    return bool(((scale - exact).abs() <= within * exact).all())


def greatest_anywhere(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the greatest magnitude of a group is found wherever it is, in long rows too"""
    for length in (65, 129, 700, 5000, 66000):
        places = torch.tensor([0, 63, 64, length // 2, length - 1])
        up = torch.full((len(places), length), 0.5 / GATE, dtype=dtype)
        up[torch.arange(len(places)), places] = -1.5 / GATE
        _, scale = call({"x": _beside(up).to(device), "dtype": torch.float8_e5m2, "power_of_2": True})
        groups = scale.cpu()
        wanted = torch.full_like(groups, 2.0**-16)
        wanted[torch.arange(len(places)), places // 128 if groups.shape[1] > 1 else 0] = 2.0**-15
        if not torch.equal(groups, wanted):
            return False
    return True


def every_number(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the type's numbers come back as their codes, with up's signs"""
    for kind in DTYPES:
        found = torch.tensor(numbers(kind)[1:])
        values = torch.stack([found, -found])
        codes, scale = _answers(call, _beside((values / GATE).to(dtype)), device, dtype=kind)
        if not _are(scale, 1.0, dtype) or not torch.equal(codes, codes_of(values.to(kind))):
            return False
    return True


def both_sides_of_silu(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """silu of 0 and of very negative numbers is 0, and eps / largest their scale; silu(1) is 0.7311"""
    for kind in DTYPES:
        most = numbers(kind)[-1]
        up = torch.ones(3, 40, dtype=dtype)
        x = torch.stack([_beside(up[0], gate) for gate in (0.0, -200.0, 1.0)])
        codes, scale = _answers(call, x, device, dtype=kind, eps=2.0**-9)
        silu = torch.tensor(0.7310585786300049).to(dtype).double().item()
        least = torch.tensor(2.0**-9) / most
        if not (scale[:2] == least).all() or not _are(scale[2:], silu / most, dtype):
            return False
        if (codes[:2] & 0x7F).any():
            return False
        if not torch.equal(codes[2], codes_of(torch.full((40,), most).to(kind))):
            return False
    return True


def of_the_rounded_product(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """the scale is that of y as x's dtype has it: 33 * (1 + eps) is 33 + 32 eps in 16 bits"""
    eps = torch.finfo(dtype).eps
    up = torch.full((2, 90), 1 + eps, dtype=dtype)
    y = 33 * (1 + eps) if dtype == torch.float32 else 33 + 32 * eps
    for kind in DTYPES:
        _, scale = _answers(call, _beside(up, 33.0), device, dtype=kind)
        if not _are(scale, y / numbers(kind)[-1], dtype):
            return False
    return True


def as_the_quantiser(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """where y is known, in 16 bits, q and scale have the bits of quantize_fp8"""
    narrow = torch.float16 if dtype == torch.float32 else dtype
    up = ((torch.arange(5 * 128).view(5, 128) * 7919 % 1009 - 500) / 2048).to(narrow)
    for kind in DTYPES:
        name = str(kind).removeprefix("torch.")
        for power_of_2 in (False, True):
            codes, scale = _answers(call, _beside(up), device, dtype=kind, power_of_2=power_of_2)
            wanted, own = quantiser.row(up.double() * GATE, power_of_2, 1e-10, {"Q": name})
            code = codes_of(minifloat.encode(wanted, name).view(kind))
            if not torch.equal(codes, code) or not torch.equal(scale.double(), own[:, 0]):
                return False
    return True


def without_numbers(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a NaN of gate or up, and a gate of -Inf, make their group and its scale NaN; Inf makes the scale Inf,
    itself NaN and the others 0; the row beside is as it was"""
    x = _beside(torch.full((6, 9), -0.5, dtype=dtype))
    x[1, 0, 2], x[2, 1, 8], x[3, 0, 0] = torch.nan, torch.nan, -torch.inf
    x[4, 1, 3], x[5, 0, 4] = torch.inf, torch.inf
    for kind in DTYPES:
        most = numbers(kind)[-1]
        codes, scale = _answers(call, x, device, dtype=kind)
        if not (codes[1:4] == OF_NAN).all() or not scale[1:4].isnan().all():
            return False
        nan = codes[4:] == OF_NAN
        if nan.nonzero().tolist() != [[0, 3], [1, 4]] or not (scale[4:] == torch.inf).all():
            return False
        if (codes[4:][~nan] & 0x7F).any() or not _are(scale[:1], GATE / 2 / most, dtype):
            return False
        if not torch.equal(codes[0], codes_of(torch.full((9,), -most).to(kind))):
            return False
    return True


PROBES = (
    *(greatest_anywhere, every_number, both_sides_of_silu, of_the_rounded_product),
    *(as_the_quantiser, without_numbers),
)
