"""Exact answers of kv_cache_write_fp8: the codes of every number, its midpoints and what saturates, by head.

A probe is a function of a call of the op (its arguments by name, answering the contents of both caches), the
dtype of k and a device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portable.kernels._lib.cache_scales import FORMATS
from portable.kernels.kv_cache_write.probes import Call
from portable.kernels.quantize_fp8.codes import codes_of, near_midpoints

SCALES = {"k": (0.5, 4.0, 1.0), "v": (2.0, 0.125, 8.0)}
"""Powers of two, so that the products are exact; those of k, of v and of neighbouring heads differ."""


def _points(kind: torch.dtype, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Numbers of `dtype` that keep their places beside the midpoints of `kind`, and their codes."""
    points, codes = near_midpoints(kind)
    kept = (points.to(dtype).float() == points) | points.isnan()
    for scale in (scale for scales in SCALES.values() for scale in scales):
        scaled = points * scale
        kept = kept & ((scaled.to(dtype).float() == scaled) | points.isnan())
    return points[kept], codes[kept]


def codes_of_heads(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """each head's elements over its own scale become the nearest codes, ties even, saturated, NaN kept"""
    for kind in FORMATS:
        points, codes = _points(kind, dtype)
        size = len(points)
        made = {
            name: torch.stack([points * scale for scale in scales])[None].to(dtype).to(device)
            for name, scales in SCALES.items()
        }
        empty = torch.zeros(2, 3, 3, size, dtype=torch.uint8, device=device).view(kind)
        scales = {f"{name}_scale": torch.tensor(each, device=device) for name, each in SCALES.items()}
        caches = {"k_cache": empty.clone(), "v_cache": empty.clone()}
        contents = call(made | caches | scales | {"slots": torch.tensor([4], device=device)})
        for cache in contents:
            got = codes_of(cache.cpu())
            if not torch.equal(got[1, 1], codes.expand(3, size)):
                return False
            got[1, 1] = 0
            if got.any():
                return False
    return True


def one_scale_for_all(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a scale with a stride of 0 gives the bits of as many equal ones"""
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(5, 3, 64, generator=generator).to(dtype).to(device) for _ in range(2))
    cache = torch.zeros(2, 3, 3, 64, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
    slots = torch.tensor([0, 5, 2, -1, 3], device=device)
    given = {"k": k, "v": v, "slots": slots}
    one = torch.full((), 0.3, device=device)
    found = []
    for scale in (one.expand(3), one.repeat(3)):
        caches = {"k_cache": cache.clone(), "v_cache": cache.clone()}
        found.append(call(given | caches | {"k_scale": scale, "v_scale": scale}))
    return all(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(found[0], found[1], strict=True)
    )


PROBES = (codes_of_heads, one_scale_for_all)
