"""Exact answers that need no bound: each probe says what every implementation gives bit for bit.

A probe is a function of a call of the op (its arguments by name, answering o and lse), a dtype and a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]


def normal(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


def single_key(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """with one key, o is its value"""
    q, k = normal((2, 4, 33, 64), dtype, device), normal((2, 2, 1, 64), dtype, device, 1)
    v = normal((2, 2, 1, 64), dtype, device, 2)
    o, _ = call({"q": q, "k": k, "v": v})
    return equal(o, v.repeat_interleave(2, 1).expand(2, 4, 33, 64), dtype)


def one_hot_keys(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a key whose score is 100 above all others gives its value"""
    D = 64
    k = torch.eye(D, device=device).to(dtype).expand(1, 2, D, D)
    turn = torch.arange(97, device=device) * 7 % D
    q = (torch.eye(D, device=device)[turn] * 128).to(dtype).expand(1, 2, 97, D)
    v = normal((1, 2, D, 32), dtype, device)
    o, lse = call({"q": q, "k": k, "v": v, "scale": 1.0})
    return equal(o, v[:, :, turn], dtype) and bool(((lse - 128).abs() < 1e-4).all())


def equal_scores(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """equal scores give the mean of the values"""
    q, k = normal((1, 2, 70, 64), dtype, device), normal((1, 2, 128, 64), dtype, device, 1)
    v = (
        (torch.arange(128 * 16, device=device) * 37 % 17 - 8)
        .view(1, 1, 128, 16)
        .to(dtype)
        .expand(1, 2, 128, 16)
    )
    for scale in (0.0, -0.0):
        o, lse = call({"q": q, "k": k, "v": v, "scale": scale})
        mean = v.to(torch.float64).mean(-2, keepdim=True).to(dtype)
        if not equal(o, mean.expand(o.shape), dtype) or bool(((lse - 4.852030263919617).abs() > 2e-6).any()):
            return False
    return True


def no_key(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a query without a key gets zeros and -inf, whatever lies beside it"""
    q, k = normal((1, 1, 96, 64), dtype, device), normal((1, 1, 33, 64), dtype, device, 1)
    o, lse = call({"q": q, "k": k, "v": k, "causal": True})
    alone = o[:, :, :63], lse[:, :, :63]
    return (
        not alone[0].any() and bool(torch.isneginf(alone[1]).all()) and bool(lse[:, :, 63:].isfinite().all())
    )


def hidden_nan(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a NaN in a key that the mask hides reaches no query"""
    q, k = normal((1, 2, 64, 64), dtype, device), normal((1, 2, 64, 64), dtype, device, 1)
    o, lse = call({"q": q, "k": k, "v": k, "causal": True})
    k[:, :, 40] = torch.nan
    v = normal((1, 2, 64, 64), dtype, device, 1)
    got, got_lse = call({"q": q, "k": k, "v": v, "causal": True})
    same = torch.equal(got[:, :, :40], o[:, :, :40]) and torch.equal(got_lse[:, :, :40], lse[:, :, :40])
    return same and bool(got[:, :, 40:].isnan().all())


def far_window(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a window that reaches past all keys is none"""
    q, k = normal((1, 2, 40, 64), dtype, device), normal((1, 2, 90, 64), dtype, device, 1)
    plain = call({"q": q, "k": k, "v": k})
    wide = call({"q": q, "k": k, "v": k, "window_left": 2**31 - 1, "window_right": 1000})
    return all(torch.allclose(a, b, rtol=2e-2, atol=1e-2) for a, b in zip(plain, wide, strict=True))


def equal(got: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Bit for bit, but in float32 to within 8 units: exp of a rounded 0 need not be 1."""
    if dtype in (torch.float32, torch.float64):
        return torch.allclose(got, expected, rtol=8 * torch.finfo(dtype).eps, atol=1e-30)
    return torch.equal(got, expected)


PROBES = (single_key, one_hot_keys, equal_scores, no_key, hidden_nan, far_window)
