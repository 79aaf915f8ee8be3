"""A few queries against a long cache, as planners see it: attention_paged, and attention with few queries."""

from __future__ import annotations

import math
from dataclasses import dataclass

from portable.layout import collapsible
from portable.plan import Argument, Call, Pointer, Rejected, Scalar, TensorInfo, Workspace

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

    @property
    def windows(self) -> tuple[tuple[str, int], ...]:
        """Which bounds a kernel is built with; one to the right may hide nothing that is there."""
        right = self.right is not None and self.right < self.M and not (self.right == 0 and self.M == 1)
        defines = {"LEFT": self.left is not None, "RIGHT": right, "CAP": self.softcap is not None}
        return tuple((name, int(there)) for name, there in defines.items())

    @property
    def reach(self) -> dict[str, int]:
        """How far before and behind its own place a query sees keys, as 32 bits hold it."""
        most = self.capacity + self.M
        right = None if self.right is None or self.right >= self.M else self.right
        return {"left": bounded(self.left, most), "right": bounded(right, most)}

    @property
    def score_factors(self) -> tuple[tuple[str, Argument], ...]:
        """What products are multiplied with, and the cap behind it, for exponentials of base 2."""
        scale, cap = self.scale * LOG2_E, 0.0
        if self.softcap is not None:
            scale, cap = 2 * LOG2_E * self.scale / self.softcap, LOG2_E * self.softcap
        return (("scale", Scalar("f32", scale)), ("cap", Scalar("f32", cap)))

    def parts(self, slots: int) -> tuple[Workspace, ...]:
        """What is kept of every query's `slots` chunks until they are merged: sums, maxima, totals."""
        shape = (self.Z, self.G * self.share, self.M, slots)
        names = {"part": (*shape, self.E), "part_m": shape, "part_l": shape}
        return tuple(Workspace(name, sizes, "float32") for name, sizes in names.items())


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


def page_arguments(call: Call, c: Cached) -> list[tuple[str, Argument]]:
    """Where a paged cache's pages lie, and how many keys each sequence has; zeros for keys in rows."""
    if not c.paged:
        return [(name, Scalar("i64", 0)) for name in ("table", "table_row", "lens")]
    row = numbers(("table_row",), call["block_table"].strides[:1])
    return [("table", Pointer("block_table")), *row, ("lens", Pointer("seq_lens"))]


def bounded(bound: int | None, reach: int) -> int:
    """A bound on the distance from the diagonal, as 32 bits hold it."""
    return 0 if bound is None else max(-reach, min(bound, reach))
