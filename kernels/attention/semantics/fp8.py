"""attention_fp8, as attention of the numbers that codes and scales stand for: the reference in float64, its
error scale, and probes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from portable.kernels._lib import minifloat

from . import error_scale as scales_of_error
from . import reference
from .probes import Call

RESULTS = (torch.bfloat16, torch.float16)
SCALES = ("q_scale", "k_scale", "v_scale")
P_LEAST = 2.0**-18
"""What P may lose where e4m3 has it subnormal, of the row's largest: P are at most 2^8 there, and the step of
subnormal numbers is 2^-9."""
UNITS = 2.0**10
"""eps of a sum that Hopper's matrix cores keep in 13 bits below the largest term, in units of float32's."""


def of_numbers(
    q: Tensor, k: Tensor, v: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers times scales; query heads have the scale of their key head."""
    of_q = q_scale.repeat_interleave(q.shape[-3] // k.shape[-3], -1)
    return tuple(x * s[..., None, None] for x, s in ((q, of_q), (k, k_scale), (v, v_scale)))  # pyright: ignore[reportReturnType]


def attention(
    q: Tensor, k: Tensor, v: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor, *,
    output_dtype: Any = None, **params: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse, whatever o is rounded to."""
    return reference.attention(*of_numbers(q, k, v, q_scale, k_scale, v_scale), **params)


class Precision(scales_of_error.Precision):
    """Sums of products of 8 bits, by Hopper's instruction (docs/notes/scaled_mm.md), and P of 4 bits."""

    def steps(self, count: int) -> float:
        """`count` up to 256 in one sum of 13 bits, as scaled_mm's use_fast_accum; else in parts of at most
        256, which float32 adds up."""
        return UNITS * (8 + min(count, 256) / 7) + super().steps(count)

    def weighted(self, o: Tensor, rss: Tensor, sizes: Tensor, count: int) -> Tensor:
        """Each P is rounded by at most half of eps(T): no sum of them is further off than that of `sizes`. Of
        many keys the roundings cancel as the other types' do, and the smaller bound is taken."""
        least = 0.5 * self.narrow * sizes
        usual = scales_of_error.ROUNDING * self.narrow * rss + 0.5 * self.narrow * o.abs()
        return torch.minimum(least, usual) + (scales_of_error.OWN + self.steps(count)) * (o.abs() + rss)

    def lost(self, weights: Tensor) -> Tensor:
        most = weights.amax(-1, keepdim=True) if weights.shape[-1] else weights
        return (torch.minimum(weights, P_LEAST * most) + weights.clamp(max=self.floor)) / self.unit


def error_scale(
    q: Tensor, k: Tensor, v: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor, *,
    types: Mapping[str, str], output_dtype: Any = None, **params: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """The error scales of o and lse: attention's, whose P are rounded to T once."""
    numbers = of_numbers(q, k, v, q_scale, k_scale, v_scale)
    return scales_of_error.forward(*numbers, types=types, kind=Precision(types), **params)


# --- probes: `dtype` is that of q, k and v ----------------------------------------------------------------


def _codes(shape: tuple[int, ...], kind: torch.dtype, device: torch.device, seed: int = 0) -> Tensor:
    """Of normal numbers."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return _of(values, kind).to(device)


def _of(values: Tensor, kind: torch.dtype) -> Tensor:
    return minifloat.encode(values, _name(kind)).view(kind)


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _ones(k: Tensor) -> dict[str, Tensor]:
    return {name: torch.ones(k.shape[:-2], device=k.device) for name in SCALES}


def _numbers(codes: Tensor) -> Tensor:
    return minifloat.decode(codes.view(torch.uint8).cpu(), _name(codes.dtype))


def every_code(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """with one key, o is the number of each finite code times the v_scale of its head"""
    codes = torch.arange(256, dtype=torch.uint8)
    codes = torch.where(minifloat.decode(codes, _name(dtype)).isfinite(), codes, 0)
    v = codes.view(1, 2, 1, 128).view(dtype).to(device)
    q, k = _codes((1, 4, 33, 64), dtype, device), _codes((1, 2, 1, 64), dtype, device, 1)
    scale = torch.tensor([[0.5, 4.0]])
    for result in RESULTS:
        given = {"q": q, "k": k, "v": v, **_ones(k), "v_scale": scale.to(device), "output_dtype": result}
        expected = (_numbers(v) * scale[..., None, None]).to(result).repeat_interleave(2, 1)
        if not torch.equal(call(given)[0].cpu(), expected.expand(1, 4, 33, 128)):
            return False
    return True


def scores_by_scales(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """with one key, lse is the score: q @ k by the scales of its batch and head, small integers exactly"""
    integers = torch.randint(-2, 3, (2, 6, 70, 64), generator=torch.Generator().manual_seed(3)).double()
    q, k = _of(integers, dtype), _of(integers[:, :3, :1], dtype)
    powers = torch.exp2(torch.arange(6).view(2, 3).float() - 3)
    given = {"q": q, "k": k, "v": k, "q_scale": powers, "k_scale": powers.flip(0), "v_scale": powers * 0 + 1}
    given = {name: tensor.to(device) for name, tensor in given.items()}
    _, lse = call(given | {"scale": 0.5, "output_dtype": torch.bfloat16})
    both = (powers * powers.flip(0)).repeat_interleave(2, 1)[..., None].double()
    keys = integers[:, :3, 0].repeat_interleave(2, 1)[..., None]
    exact = (integers @ keys)[..., 0] * both * 0.5
    return bool(((lse.cpu().double() - exact).abs() <= 1e-6 * exact.abs() + 1e-6).all())


def one_hot_keys(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a key whose score is 100 above all others gives its value"""
    D, turn = 64, torch.arange(97) * 7 % 64
    k = _of(torch.eye(D), dtype).expand(1, 2, D, D).to(device)
    q = _of(torch.eye(D)[turn] * 128, dtype).expand(1, 2, 97, D).to(device)
    v = _codes((1, 2, D, 32), dtype, device)
    o, lse = call({"q": q, "k": k, "v": v, **_ones(k), "scale": 1.0, "output_dtype": torch.bfloat16})
    same = torch.equal(o.cpu(), _numbers(v)[:, :, turn].bfloat16())
    return same and bool(((lse - 128).abs() < 1e-4).all())


def equal_scores(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """equal scores give the mean of the values, though there be 16384: no sum is kept in 13 bits"""
    for keys in (128, 16384):
        q, k = _codes((1, 2, 70, 64), dtype, device), _codes((1, 2, keys, 64), dtype, device, 1)
        eighths = torch.randint(8, 16, (1, 2, keys, 16), generator=torch.Generator().manual_seed(2))
        values = eighths.double() / 8 * (1 if keys > 128 else (-1) ** eighths)
        for scale in (0.0, -0.0):
            given = {"q": q, "k": k, "v": _of(values, dtype).to(device), **_ones(k), "scale": scale}
            o, lse = call(given | {"output_dtype": torch.bfloat16})
            mean = values.mean(-2, keepdim=True).bfloat16().expand(o.shape)
            exact = torch.tensor(float(keys), dtype=torch.float64).log()
            if not torch.equal(o.cpu(), mean) or bool(((lse.cpu().double() - exact).abs() > 4e-6).any()):
                return False
    return True


def no_key(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a query without a key gets zeros and -inf, whatever lies beside it"""
    q, k = _codes((1, 1, 96, 64), dtype, device), _codes((1, 1, 33, 64), dtype, device, 1)
    o, lse = call({"q": q, "k": k, "v": k, **_ones(k), "causal": True, "output_dtype": torch.bfloat16})
    alone = not o[:, :, :63].any() and bool(torch.isneginf(lse[:, :, :63]).all())
    return alone and bool(lse[:, :, 63:].isfinite().all())


def hidden_nan(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a NaN in a key that the mask hides reaches no query"""
    q, k, v = (_codes((1, 2, 64, 64), dtype, device, seed) for seed in (0, 1, 1))
    given = {"q": q, "v": v, **_ones(k), "causal": True, "output_dtype": torch.bfloat16}
    o, lse = call(given | {"k": k})
    k = k.clone()
    k.view(torch.uint8)[:, :, 40] = 0x80 if dtype == torch.float8_e4m3fnuz else 0x7F
    got, got_lse = call(given | {"k": k})
    same = torch.equal(got[:, :, :40], o[:, :, :40]) and torch.equal(got_lse[:, :, :40], lse[:, :, :40])
    return same and bool(got[:, :, 40:].isnan().all())


def one_scale_for_all(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """scales with strides of 0 give the bits of as many equal ones"""
    q, k, v = (_codes((2, n, 40, 64), dtype, device, seed) for seed, n in ((0, 4), (1, 2), (2, 2)))
    given = {"q": q, "k": k, "v": v, "output_dtype": torch.bfloat16}
    filled = {name: torch.full((2, 2), 0.3, device=device) for name in SCALES}
    one = {name: torch.full((), 0.3, device=device).expand(2, 2) for name in SCALES}
    return all(torch.equal(a, b) for a, b in zip(call(given | filled), call(given | one), strict=True))


def any_sign_of_scale(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a scale below 0 turns the scores' order; one of 0 makes them equal, and hidden keys stay hidden"""
    q, k, v = (_codes((1, 1, 40, 64), dtype, device, seed) for seed in (0, 1, 2))
    given = {"q": q, "k": k, "v": v, **_ones(k), "causal": True, "output_dtype": torch.bfloat16}
    turned = {"k": (-k.float()).to(dtype), "k_scale": -torch.ones(1, 1, device=device)}
    (o, lse), (got, got_lse) = call(given), call(given | turned)
    same = bool(((got - o).abs() < 0.2).all()) and bool(((got_lse - lse).abs() < 1e-4).all())
    _, lse = call(given | {"k_scale": torch.zeros(1, 1, device=device)})
    exact = torch.arange(1, 41, device=device).log()
    return same and bool(((lse[0, 0] - exact).abs() < 4e-6).all())


PROBES = (
    every_code, scores_by_scales, one_hot_keys, equal_scores, no_key, hidden_nan, one_scale_for_all,
    any_sign_of_scale,
)  # fmt: skip
