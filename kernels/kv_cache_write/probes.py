"""Exact answers: each probe says what every implementation leaves in the caches bit for bit.

A probe is a function of a call of the op (its arguments by name, answering the contents of both caches), a
dtype and a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Call = Callable[[dict[str, Any]], tuple[Tensor, ...]]
PAGES, PAGE, HEADS, SIZE = 6, 16, 2, 64


def _given(slots: list[int], dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"k": (len(slots),), "v": (len(slots),), "k_cache": (PAGES, PAGE), "v_cache": (PAGES, PAGE)}
    made: dict[str, Any] = {
        name: torch.randn((*shape, HEADS, SIZE), generator=generator).to(dtype).to(device)
        for name, shape in shapes.items()
    }
    return made | {"slots": torch.tensor(slots, dtype=torch.int64, device=device)}


def _rows(
    given: dict[str, Any], contents: tuple[Tensor, ...], slot: int
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of both caches the new row of a slot, the rows of all tokens and the old row."""
    where = slot // PAGE, slot % PAGE
    names = (("k", "k_cache"), ("v", "v_cache"))
    return [
        (new[where], given[rows], given[cache][where])
        for new, (rows, cache) in zip(contents, names, strict=True)
    ]


def one_of_several(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """of tokens with one slot, each element is that of one of them, and no other slot changes"""
    given = _given([5, 40, 5, -1, 5, 90] * 8, dtype, device)
    contents = call(given)
    for slot in range(PAGES * PAGE):
        tokens = [i for i, own in enumerate(given["slots"].tolist()) if own == slot]
        for new, rows, old in _rows(given, contents, slot):
            candidates = rows[tokens] if tokens else old[None]
            if not (new == candidates).any(0).all():
                return False
    return True


def beyond_the_cache(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """slots that are not within the cache are skipped, those at its ends are written"""
    count = PAGES * PAGE
    far = [count, count + 1, -2, -count, 2**31, 2**32 + 3, -(2**63), 2**63 - 1]
    given = _given([*far, 0, -1, count - 1], dtype, device)
    contents = call(given)
    for slot in range(count):
        token = {0: len(far), count - 1: len(far) + 2}.get(slot)
        for new, rows, old in _rows(given, contents, slot):
            if not torch.equal(new, old if token is None else rows[token]):
                return False
    return True


def halves_of_one_tensor(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """caches that are the two parts of each page of one tensor are written as caches of their own"""
    given = _given([17, 2, 95, 50], dtype, device)
    expected = call(given)
    both = torch.stack([given["k_cache"], given["v_cache"]], 1)
    got = call(given | {"k_cache": both[:, 0], "v_cache": both[:, 1]})
    return all(torch.equal(one, two) for one, two in zip(got, expected, strict=True))


PROBES = (one_of_several, beyond_the_cache, halves_of_one_tensor)
