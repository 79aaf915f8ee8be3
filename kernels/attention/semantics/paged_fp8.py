"""attention_paged_fp8, as attention_paged of the keys and values that the codes and scales stand for: the
reference in float64, its error scale, and probes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable.kernels._lib import minifloat
from portable.kernels._lib.cache_scales import FORMATS

from . import paged
from .probes import Call, equal, normal


def gather(cache: Tensor, scale: Tensor, pages: Tensor, length: int) -> Tensor:
    """(C, key heads, length, dim), float32: the keys or the values of a batch (`paged.gather`)."""
    codes = paged.gather(cache.view(torch.uint8), pages, length)
    return codes.view(cache.dtype).to(torch.float32) * scale[:, None, None]


# --- the reference and its error scale --------------------------------------------------------------------


def reference_forward(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, k_scale: Tensor,
    v_scale: Tensor, sinks: Tensor | None = None, **params: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse, of codes' numbers in float64."""
    k, v = k_cache * k_scale[:, None], v_cache * v_scale[:, None]
    return paged.reference_forward(q, k, v, block_table, seq_lens, sinks, **params)


def error_scale_forward(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, k_scale: Tensor,
    v_scale: Tensor, sinks: Tensor | None = None, *, types: dict[str, str], **params: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """The error scales of o and lse: those of a cache in T that needed no rounding."""
    k, v = k_cache * k_scale[:, None], v_cache * v_scale[:, None]
    return paged.error_scale_forward(q, k, v, block_table, seq_lens, sinks, types=types, **params)


# --- probes -----------------------------------------------------------------------------------------------


def _quantised(call: Call, given: dict[str, Any]) -> tuple[Tensor, ...]:
    """A call of attention_paged as one over codes of e4m3, with scales of 1."""
    heads = given["k_cache"].shape[2]
    ones = torch.ones(heads, device=given["q"].device)
    caches = {name: given[name].to(torch.float8_e4m3fn) for name in ("k_cache", "v_cache")}
    return call(given | caches | {"k_scale": ones, "v_scale": ones})


def _of_codes(probe: Callable[..., bool]) -> Callable[..., bool]:
    """A probe of attention_paged as one of this op."""

    @functools.wraps(probe)
    def own(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
        return probe(functools.partial(_quantised, call), dtype, device)

    return own


def _every_code(kind: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """A cache of four pages, one key in each, two heads of 32: all codes; and their numbers in float64."""
    codes = torch.arange(256, dtype=torch.uint8).view(4, 1, 2, 32)
    cache = torch.zeros(4, 16, 2, 32, dtype=torch.uint8)
    cache[:, :1] = codes
    return cache.view(kind).to(device), minifloat.decode(codes, str(kind).removeprefix("torch."))[:, 0]


def _one_key(kind: torch.dtype, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Four sequences of one key each; two query heads to a key head, all of 0."""
    return {
        "q": torch.zeros(4, 1, 4, 32, dtype=dtype, device=device),
        "k_cache": torch.zeros(4, 16, 2, 32, dtype=torch.uint8, device=device).view(kind),
        "v_cache": torch.zeros(4, 16, 2, 32, dtype=torch.uint8, device=device).view(kind),
        "block_table": torch.arange(4, dtype=torch.int32, device=device)[:, None],
        "seq_lens": torch.ones(4, dtype=torch.int32, device=device),
        "k_scale": torch.tensor([2.0, 0.25], device=device),
        "v_scale": torch.tensor([0.5, 4.0], device=device),
    }


def values_of_codes(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """with one key, o is the number of each code times the v_scale of its head, or not finite as it"""
    for kind in FORMATS:
        cache, numbers = _every_code(kind, device)
        o, lse = call(_one_key(kind, dtype, device) | {"v_cache": cache})
        expected = (numbers * torch.tensor([[0.5], [4.0]])).to(dtype).to(device).repeat_interleave(2, 1)
        endless = ~numbers.isfinite().to(device).repeat_interleave(2, 1)  # a weight of 0 makes NaN of Inf
        if o[:, 0][endless].isfinite().any() or lse.any():
            return False
        if not equal(o[:, 0].masked_fill(endless, 0), expected.masked_fill(endless, 0), dtype):
            return False
    return True


def scores_of_codes(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """with one key, lse is the number of a code times the k_scale of its head, for each finite code"""
    for kind in FORMATS:
        cache, numbers = _every_code(kind, device)
        given = _one_key(kind, dtype, device) | {"k_cache": cache.clone(), "scale": 0.5}
        bytes_of = given["k_cache"].view(torch.uint8)
        for column in range(32):
            bytes_of[:] = 0
            bytes_of[:, 0, :, column] = cache.view(torch.uint8)[:, 0, :, column]
            given["q"][:] = 0
            given["q"][..., column] = 3.0
            _, lse = call(given)
            exact = (numbers[..., column] * torch.tensor([3.0, 0.375])).repeat_interleave(2, 1)
            for got, wanted in zip(lse.flatten().tolist(), exact.flatten().tolist(), strict=True):
                if abs(wanted) < float("inf") and not abs(got - wanted) <= 1e-5 * abs(wanted) + 1e-6:
                    return False
                if wanted != wanted and got == got:
                    return False
    return True


def one_scale_for_all(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a scale with a stride of 0 gives the bits of as many equal ones"""
    given = _one_key(torch.float8_e4m3fn, dtype, device)
    filled = normal((4, 16, 2, 32), torch.float32, device, 1)
    given |= {name: filled.to(torch.float8_e4m3fn) for name in ("k_cache", "v_cache")}
    given |= {"q": normal((4, 1, 4, 32), dtype, device), "seq_lens": given["seq_lens"] * 9}
    whole = call(given | {name: torch.full((2,), 0.3, device=device) for name in ("k_scale", "v_scale")})
    one = torch.full((), 0.3, device=device).expand(2)
    got = call(given | {"k_scale": one, "v_scale": one})
    return all(torch.equal(a, b) for a, b in zip(got, whole, strict=True))


def far_queries(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """queries far beyond float16, or far below it, meet codes as bfloat16 has them"""
    if dtype != torch.bfloat16:
        return True
    given = _one_key(torch.float8_e4m3fn, dtype, device)
    given["k_cache"] = torch.ones(4, 16, 2, 32, device=device).to(torch.float8_e4m3fn)
    for power in (120, 20, -20, -120):
        given["q"][:] = 2.0**power
        given["q"][..., 0] = 3 * 2.0**power
        scale = 2.0**-power
        _, lse = call(given | {"scale": scale})
        exact = torch.tensor([68.0, 68.0, 8.5, 8.5], device=device)
        if not bool(((lse[:, :, 0] - exact).abs() < 1e-4).all()):
            return False
    return True


PROBES = (
    *map(_of_codes, paged.PROBES),
    values_of_codes,
    scores_of_codes,
    one_scale_for_all,
    far_queries,
)
