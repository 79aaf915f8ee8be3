"""Exact answers: which of the two bfloat16 beside it a value is rounded to.

A probe is a function of a call of the op (its arguments by name, answering the contents of the parameter and
both moments), a dtype and a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.kernels.adamw.stochastic import random_words, rounded_by

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
SIZE, STEP, SEED, NUMBER = 9001, 7, -(1 << 62) + 12345, (1 << 31) + 5


def _given(dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """A step that takes 2^-10 of the parameter away and moves it no further, and makes the second moment
    511 / 512 of what it was: both are numbers of float32 where they were of bfloat16."""
    generator = torch.Generator().manual_seed(0)
    param, exp_avg_sq = (torch.randn(SIZE, generator=generator).bfloat16() for _ in range(2))
    zeros = torch.zeros(SIZE)
    made = {"param": param, "grad": zeros, "exp_avg": zeros, "exp_avg_sq": exp_avg_sq.abs()}
    found: dict[str, Any] = {name: each.to(dtype).to(device) for name, each in made.items()}
    found["step"] = torch.full((1,), float(STEP), device=device)
    found["lr"] = torch.full((1,), 0.125, device=device)
    return found | {"weight_decay": 2.0**-7, "beta1": 0.5, "beta2": 511 / 512, "eps": 1.0}


def _exact(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    kind = torch.promote_types(given["param"].dtype, torch.float32)
    p, v = given["param"].to(kind), given["exp_avg_sq"].to(kind)
    return p - p * 2.0**-10, v * (511 / 512)


def by_its_bits(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """with stochastic rounding, each bfloat16 is the one that its bits of Philox name"""
    given = _given(dtype, device)
    p, m, v = call(given | {"stochastic_rounding": True, "seed": SEED, "number": NUMBER})
    param, exp_avg_sq = (each.cpu() for each in _exact(given))
    if dtype == torch.bfloat16:
        words = random_words(0, SIZE, NUMBER, torch.tensor([STEP]), SEED)
        param, exp_avg_sq = rounded_by(param, words & 0xFFFF), rounded_by(exp_avg_sq, words >> 16)
    same = (torch.equal(one.cpu(), two.to(dtype)) for one, two in ((p, param), (v, exp_avg_sq)))
    return all(same) and not m.any()


def to_the_nearest(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """without it, each element is rounded to the nearest"""
    given = _given(dtype, device)
    p, m, v = call(given)
    param, exp_avg_sq = (each.to(dtype) for each in _exact(given))
    return torch.equal(p, param) and torch.equal(v, exp_avg_sq) and not m.any()


def nothing_after_an_overflow(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """with found_inf nothing is written, also where gradients are infinite or NaN"""
    given = _given(dtype, device)
    grad = given["grad"].clone()
    grad[::2], grad[1::2] = float("inf"), float("nan")
    found = torch.ones(1, device=device)
    results = call(given | {"grad": grad, "found_inf": found, "grad_scale": found * 0})
    before = (given["param"], given["exp_avg"], given["exp_avg_sq"])
    return all(torch.equal(one, two) for one, two in zip(results, before, strict=True))


PROBES = (by_its_bits, to_the_nearest, nothing_after_an_overflow)
