"""A few queries against a long cache, as planners see it: attention_paged, and attention with few queries."""

from __future__ import annotations

import math
from dataclasses import dataclass

from portable.layout import collapsible
from portable.plan import Argument, Call, Rejected, Scalar, TensorInfo

LOG2_E = math.log2(math.e)
MAX_ROWS = 64
"""Queries, times the heads that share a key head, that one program takes."""
MAX_KEYS = 2**30

Strides = tuple[int, int, int]
"""From batch to batch (page to page for a cache), head to head, row to row."""


@dataclass(frozen=True, slots=True)
class Cached:
    """A call: Z sequences of M queries of `share` heads for each of G key heads, up to `capacity` keys each,
    in pages of `page` keys (0: in rows). `left` and `right` bound the window around the diagonal."""

    Z: int
    M: int
    G: int
    share: int
    D: int
    E: int
    capacity: int
    page: int
    paged: bool
    q: Strides
    k: Strides
    v: Strides
    o: Strides
    names: tuple[str, str, str]
    scale: float
    softcap: float | None
    left: int | None
    right: int | None


def paged_of(call: Call) -> Cached | Rejected:
    """attention_paged: q [Z, M, H, D], caches [P, S, G, D] and [P, S, G, E], block_table [Z, W]."""
    a, q, k, v, o = call.axes, call["q"], call["k_cache"], call["v_cache"], call["o"]
    return _taken(call, Cached(
        Z=a["Z"], M=a["M"], G=a["G"], share=a["H"] // a["G"], D=a["D"], E=a["E"],
        capacity=a["W"] * a["S"] if a["P"] else 0, page=a["S"], paged=True,
        q=_strides(q, 0, 2, 1), k=_strides(k, 0, 2, 1), v=_strides(v, 0, 2, 1), o=_strides(o, 0, 2, 1),
        names=("q", "k_cache", "v_cache"), scale=_scale(call), softcap=call.params["softcap"],
        left=call.params["window_left"], right=0,
    ))  # fmt: skip


def contiguous_of(call: Call) -> Cached | Rejected:
    """attention with few queries: q [..., H, M, D], k [..., G, N, D], v [..., G, N, E]."""
    a = call.axes
    if a["M"] * (a["H"] // a["G"]) > MAX_ROWS:
        return Rejected(f"more than {MAX_ROWS} queries share a key head")
    if call.has("bias"):
        return Rejected("it has no bias")
    batches = {}
    for name in ("q", "k", "v", "o"):
        info = call[name]
        batch = collapsible(info.shape[:-3], info.strides[:-3])
        if batch is None:
            return Rejected(f"the leading dimensions of {name} cannot be walked with one stride")
        batches[name] = (batch, *info.strides[-3:-1])
    right = call.params["window_right"]
    if call.params["causal"]:
        right = 0 if right is None else min(right, 0)
    return _taken(call, Cached(
        Z=math.prod(call["q"].shape[:-3]), M=a["M"], G=a["G"], share=a["H"] // a["G"], D=a["D"], E=a["E"],
        capacity=a["N"], page=0, paged=False, q=batches["q"], k=batches["k"], v=batches["v"], o=batches["o"],
        names=("q", "k", "v"), scale=_scale(call), softcap=call.params["softcap"],
        left=call.params["window_left"], right=right,
    ))  # fmt: skip


def _taken(call: Call, c: Cached) -> Cached | Rejected:
    """The call, unless its rows or the number of its keys are what no kernel takes."""
    for name in c.names:
        info = call[name]
        if info.shape[-1] > 1 and info.strides[-1] != 1:
            return Rejected(f"{name}'s last dimension has a stride of {info.strides[-1]}, not 1")
    if c.capacity + c.M > MAX_KEYS:
        return Rejected(f"{c.capacity} keys: key numbers are 32-bit")
    return c


def _strides(info: TensorInfo, batch: int, head: int, row: int) -> Strides:
    return info.strides[batch], info.strides[head], info.strides[row]


def _scale(call: Call) -> float:
    scale = call.params["scale"]
    return call.axes["D"] ** -0.5 if scale is None else scale


def numbers(
    names: tuple[str, ...], values: tuple[int, ...], narrow: bool = False
) -> list[tuple[str, Argument]]:
    """Strides as arguments; with `narrow` in 32 bits where they fit: their product is one instruction."""
    made = []
    for name, value in zip(names, values, strict=True):
        kind = "i32" if narrow and value < 2**31 else "i64"
        made.append((name, Scalar(kind, value, value % 16 == 0)))
    return made


def bounded(bound: int | None, reach: int) -> int:
    """A bound on the distance from the diagonal, as 32 bits hold it."""
    return 0 if bound is None else max(-reach, min(bound, reach))
